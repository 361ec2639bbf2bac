// Folders and files by descriptor: every name is looked up in one folder that is held open, and no
// link is followed, so that nothing that is renamed or planted leads anywhere else.
//
// Outcomes are std::errc, the system's own reasons; `ok` is the absence of one. Nothing here waits
// for anything but the disk, except lock().
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "kvc/clock.h"

namespace kvc {

constexpr bool ok(std::errc outcome) { return outcome == std::errc{}; }
/// The system's words for it.
std::string message_of(std::errc outcome);

struct FileInfo {
  enum class Kind { kFile, kFolder, kOther };

  Kind kind = Kind::kOther;
  std::uint64_t bytes = 0;
  std::int64_t modified_ns = 0;  ///< Wall time since 1970.
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t links = 0;
  std::uint32_t owner = 0;
  std::uint32_t permissions = 0;  ///< The twelve lowest bits of the mode.

  bool same_file(const FileInfo& other) const {
    return device == other.device && inode == other.inode;
  }
};

struct FreeSpace {
  std::uint64_t available_bytes = 0;  ///< To this user.
  std::uint64_t total_bytes = 0;
};

/// Wall time since 1970. It may jump.
std::int64_t wall_time_ns();
/// The user in whose name files are made.
std::uint32_t effective_user();
/// A text that differs after every boot of the machine; empty where the system does not say.
std::string boot_id();
/// Largest file that this process may write.
std::uint64_t file_size_limit();

/// A number that closes itself. Empty when moved from.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor();

  int number() const { return number_; }
  /// Somebody else closes it.
  int release() { return std::exchange(number_, -1); }
  bool is_open() const { return number_ >= 0; }

 private:
  int number_ = -1;
};

/// A regular file. Safe to use from several threads.
class OpenFile {
 public:
  OpenFile() = default;
  explicit OpenFile(Descriptor descriptor) : descriptor_(std::move(descriptor)) {}

  bool is_open() const { return descriptor_.is_open(); }
  int descriptor() const { return descriptor_.number(); }

  std::errc info(FileInfo* out) const;
  /// `got` is smaller than `out` only where the file ends.
  std::errc read_at(std::uint64_t offset, std::span<std::byte> out, std::size_t* got) const;
  /// All of `bytes`, or an error with part of them written.
  std::errc write_at(std::uint64_t offset, std::span<const std::byte> bytes) const;
  std::errc truncate(std::uint64_t bytes) const;
  std::errc set_modified(std::int64_t wall_ns) const;

  // Locks on single bytes, which need not exist. They belong to this open file: the system lets go
  // of them when its last descriptor is closed, so at the latest when the process dies. Threads
  // that share an OpenFile do not exclude one another.

  /// Alone, waiting at most `patience` (timed_out then).
  std::errc lock(std::uint64_t at, Duration patience) const;
  /// Together with other sharers. resource_unavailable_try_again if somebody holds it alone.
  std::errc try_lock_shared(std::uint64_t at) const;
  std::errc unlock(std::uint64_t at) const;
  /// Whether another open file holds that byte in any way.
  std::errc locked_elsewhere(std::uint64_t at, bool* locked) const;
  /// The whole file, alone, in a space of its own beside the bytes above.
  std::errc try_lock_file() const;

 private:
  Descriptor descriptor_;
};

/// Safe to use from several threads. `name` is a single component everywhere.
class Folder {
 public:
  enum class Access { kRead, kReadWrite };

  Folder() = default;
  explicit Folder(Descriptor descriptor) : descriptor_(std::move(descriptor)) {}

  /// The last component must not be a link; `path` ends without a slash.
  static std::errc open_path(const std::string& path, Folder* out);
  static std::errc make_path(const std::string& path);
  static std::errc info_of_path(const std::string& path, FileInfo* out);

  bool is_open() const { return descriptor_.is_open(); }
  std::errc info(FileInfo* out) const;
  std::errc free_space(FreeSpace* out) const;

  std::errc open_folder(const char* name, Folder* out) const;
  /// Accessible to this user alone.
  std::errc make_folder(const char* name) const;

  std::errc info(const char* name, FileInfo* out) const;
  std::errc set_modified(const char* name, std::int64_t wall_ns) const;
  std::errc remove(const char* name) const;
  std::errc remove_folder(const char* name) const;

  /// Anything but a regular file is no_such_file_or_directory, without waiting for it.
  std::errc open_file(const char* name, Access access, OpenFile* out, FileInfo* info) const;
  /// An empty file for writing, of this user alone, that has no name and goes with its descriptor.
  std::errc create_unnamed(OpenFile* out) const;
  /// file_exists if the name is taken.
  std::errc create_named(const char* name, OpenFile* out) const;
  /// Names a file of create_unnamed(). file_exists if the name is taken, whatever by.
  std::errc publish(const OpenFile& file, const char* name) const;
  /// Gives the file `from` of another folder a second name here.
  std::errc publish(const Folder& other, const char* from, const char* name) const;

  /// Every name but "." and "..", in the system's order; `visit` ends it with false.
  std::errc list(const std::function<bool(const char* name)>& visit) const;

 private:
  Descriptor descriptor_;
};

}  // namespace kvc
