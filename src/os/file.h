// Reading of files and folders. Every call is bounded by its arguments; none waits for anything but
// the disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvc/result.h"

namespace kvc {

/// The whole of a regular file. kInvalid, naming the path, if it cannot be read, is not a regular
/// file or is larger than `max_bytes`.
Result<std::string> read_file(const std::filesystem::path& path, std::size_t max_bytes);

/// Whether anything is at `path`, links followed. An unreadable folder counts as absent.
bool path_exists(const std::filesystem::path& path);

/// Whether `path` is a folder, links followed.
bool is_folder(const std::filesystem::path& path);

/// `path` with every link resolved. kInvalid, naming the path, if it does not exist.
Result<std::filesystem::path> canonical_path(const std::filesystem::path& path);

struct FolderEntry {
  std::string name;
  bool is_file = false;                              ///< A regular file, links followed.
  std::uint64_t bytes = 0;                           ///< Of a regular file.
  std::optional<std::filesystem::path> link_target;  ///< As written in the link, if it is one.
};

/// Entries of a folder, sorted by name. kInvalid, naming the path, if it cannot be listed or has
/// more than `max_entries`.
Result<std::vector<FolderEntry>> list_folder(const std::filesystem::path& path,
                                             std::size_t max_entries);

/// A regular file open for reading at any place. Movable; safe to read from several threads.
class RandomAccessFile {
 public:
  static Result<RandomAccessFile> open(const std::filesystem::path& path);

  RandomAccessFile(RandomAccessFile&& other) noexcept;
  RandomAccessFile& operator=(RandomAccessFile&& other) noexcept;
  ~RandomAccessFile();

  /// When it was opened.
  std::uint64_t bytes() const { return bytes_; }

  /// Fills `out` with the bytes from `offset` on. kInvalid, naming the path, if the file cannot be
  /// read or ends before; `out` is then undefined.
  Status read_at(std::uint64_t offset, std::span<std::byte> out) const;

 private:
  RandomAccessFile(std::string path, int descriptor, std::uint64_t bytes);

  std::string path_;
  int descriptor_ = -1;
  std::uint64_t bytes_ = 0;
};

}  // namespace kvc
