// Where the object of a key lies: docs/format/file-store.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace kvc {

inline constexpr std::size_t kFileFolders = 256;

/// Two keys never have the same name, unless both are so long that their names are digests; then
/// the file ends with the key, which whoever reads it compares.
struct ObjectName {
  /// REQUIRES: `key` is not empty.
  static ObjectName of(std::string_view key);
  /// Whether an entry of one of the folders can be an object.
  static bool is_object(std::string_view file);
  /// "00" to "ff".
  static std::string folder_name(std::size_t folder);

  std::size_t folder = 0;
  std::string file;
  std::size_t trailer_bytes = 0;  ///< Length of the key if the file ends with it, else 0.
};

}  // namespace kvc
