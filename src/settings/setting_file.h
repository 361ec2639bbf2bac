// Reads a settings file, TOML or JSON, or the store client's own, into flat names and values.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kvc/result.h"

namespace kvc {

struct FileSetting {
  enum class Kind { kText, kInteger, kBoolean, kOther };

  std::string name;
  Kind kind = Kind::kOther;
  std::string text;  ///< The value as one would write it; of kOther what it is ("an array", ...).
};

/// The names of the outermost table in the order of the file or by name. kInvalid, naming file and
/// place, for bad syntax, a name that stands twice, or text above 1 MiB. TOML if the name ends in
/// .toml, JSON if in .json; else JSON if the text starts with '{'.
Result<std::vector<FileSetting>> read_settings_file(std::string_view file_name,
                                                    const std::string& text);

/// The store client's own file, which is JSON whatever its name.
Result<std::vector<FileSetting>> read_store_file(std::string_view file_name,
                                                 const std::string& text);

/// How messages name the two files.
std::string settings_file_place(std::string_view file_name);
std::string store_file_place(std::string_view file_name);

}  // namespace kvc
