#include "os/folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <limits>
#include <memory>

namespace kvc {
namespace {

constexpr std::int64_t kNsPerSecond = 1'000'000'000;
constexpr mode_t kOwnFile = 0600;
constexpr mode_t kOwnFolder = 0700;

std::errc last_error() { return static_cast<std::errc>(errno); }

std::errc outcome(int result) { return result < 0 ? last_error() : std::errc{}; }

/// open() and its like may be interrupted on slow devices.
template <typename Call>
int retried(Call call) {
  int result = 0;
  do {
    result = call();
  } while (result < 0 && errno == EINTR);
  return result;
}

FileInfo described(const struct stat& found) {
  FileInfo info;
  if (S_ISREG(found.st_mode)) info.kind = FileInfo::Kind::kFile;
  if (S_ISDIR(found.st_mode)) info.kind = FileInfo::Kind::kFolder;
  info.bytes = static_cast<std::uint64_t>(found.st_size);
  info.modified_ns = found.st_mtim.tv_sec * kNsPerSecond + found.st_mtim.tv_nsec;
  info.device = found.st_dev;
  info.inode = found.st_ino;
  info.links = found.st_nlink;
  info.owner = found.st_uid;
  info.permissions = found.st_mode & 07777u;
  return info;
}

std::array<timespec, 2> both_times(std::int64_t wall_ns) {
  timespec time{};
  time.tv_sec = wall_ns / kNsPerSecond;
  time.tv_nsec = wall_ns % kNsPerSecond;
  // Access time too: were it older than the other, the next read would write it anew.
  return {time, time};
}

struct flock byte_range(short kind, std::uint64_t at) {
  struct flock range {};
  range.l_type = kind;
  range.l_whence = SEEK_SET;
  range.l_start = static_cast<off_t>(at);
  range.l_len = 1;
  return range;
}

bool is_held(int error) { return error == EAGAIN || error == EACCES; }

/// First only makes room for the others, then sleeps a little longer each time.
void pause_before_try(int tries) {
  constexpr int kYields = 64;
  constexpr long kFirstNs = 20'000;
  constexpr long kLongestNs = 1'000'000;
  if (tries < kYields) {
    sched_yield();
    return;
  }
  const timespec time{0, std::min(kFirstNs * (tries - kYields + 1), kLongestNs)};
  nanosleep(&time, nullptr);
}

}  // namespace

std::string message_of(std::errc outcome) { return std::make_error_code(outcome).message(); }

std::int64_t wall_time_ns() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return now.tv_sec * kNsPerSecond + now.tv_nsec;
}

std::uint32_t effective_user() { return geteuid(); }

std::string boot_id() {
  const Descriptor file(
      retried([] { return ::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC); }));
  if (!file.is_open()) return {};
  std::array<char, 64> text{};
  const ssize_t got = ::read(file.number(), text.data(), text.size());
  std::string id(text.data(), got > 0 ? static_cast<std::size_t>(got) : 0);
  id.erase(std::find(id.begin(), id.end(), '\n'), id.end());
  return id;
}

std::uint64_t file_size_limit() {
  struct rlimit limit {};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return static_cast<std::uint64_t>(std::numeric_limits<off_t>::max());
  }
  return limit.rlim_cur;
}

Descriptor::~Descriptor() {
  if (number_ >= 0) ::close(number_);
}

// ---- files ---------------------------------------------------------------------------------

std::errc OpenFile::info(FileInfo* out) const {
  struct stat found {};
  if (::fstat(descriptor(), &found) != 0) return last_error();
  *out = described(found);
  return {};
}

std::errc OpenFile::read_at(std::uint64_t offset, std::span<std::byte> out,
                            std::size_t* got) const {
  *got = 0;
  while (*got < out.size()) {
    const std::span<std::byte> rest = out.subspan(*got);
    const ssize_t read =
        ::pread(descriptor(), rest.data(), rest.size(), static_cast<off_t>(offset + *got));
    if (read < 0 && errno == EINTR) continue;
    if (read < 0) return last_error();
    if (read == 0) break;
    *got += static_cast<std::size_t>(read);
  }
  return {};
}

std::errc OpenFile::write_at(std::uint64_t offset, std::span<const std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t put =
        ::pwrite(descriptor(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return last_error();
    if (put == 0) return std::errc::no_space_on_device;
    offset += static_cast<std::uint64_t>(put);
    bytes = bytes.subspan(static_cast<std::size_t>(put));
  }
  return {};
}

std::errc OpenFile::truncate(std::uint64_t bytes) const {
  return outcome(retried([&] { return ::ftruncate(descriptor(), static_cast<off_t>(bytes)); }));
}

std::errc OpenFile::set_modified(std::int64_t wall_ns) const {
  return outcome(::futimens(descriptor(), both_times(wall_ns).data()));
}

std::errc OpenFile::lock(std::uint64_t at, Duration patience) const {
  const auto until = std::chrono::steady_clock::now() + patience;
  for (int tries = 0;; ++tries) {
    struct flock range = byte_range(F_WRLCK, at);
    if (::fcntl(descriptor(), F_OFD_SETLK, &range) == 0) return {};
    if (errno != EINTR && !is_held(errno)) return last_error();
    if (std::chrono::steady_clock::now() >= until) return std::errc::timed_out;
    pause_before_try(tries);
  }
}

std::errc OpenFile::try_lock_shared(std::uint64_t at) const {
  struct flock range = byte_range(F_RDLCK, at);
  if (::fcntl(descriptor(), F_OFD_SETLK, &range) == 0) return {};
  return is_held(errno) ? std::errc::resource_unavailable_try_again : last_error();
}

std::errc OpenFile::unlock(std::uint64_t at) const {
  struct flock range = byte_range(F_UNLCK, at);
  return outcome(::fcntl(descriptor(), F_OFD_SETLK, &range));
}

std::errc OpenFile::locked_elsewhere(std::uint64_t at, bool* locked) const {
  struct flock range = byte_range(F_WRLCK, at);
  if (::fcntl(descriptor(), F_OFD_GETLK, &range) != 0) return last_error();
  *locked = range.l_type != F_UNLCK;
  return {};
}

std::errc OpenFile::try_lock_file() const {
  return outcome(retried([&] { return ::flock(descriptor(), LOCK_EX | LOCK_NB); }));
}

// ---- folders -------------------------------------------------------------------------------

std::errc Folder::open_path(const std::string& path, Folder* out) {
  Descriptor opened(retried(
      [&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC); }));
  if (!opened.is_open()) return last_error();
  *out = Folder(std::move(opened));
  return {};
}

std::errc Folder::make_path(const std::string& path) {
  return outcome(::mkdir(path.c_str(), kOwnFolder));
}

std::errc Folder::info_of_path(const std::string& path, FileInfo* out) {
  struct stat found {};
  if (::lstat(path.c_str(), &found) != 0) return last_error();
  *out = described(found);
  return {};
}

std::errc Folder::info(FileInfo* out) const {
  struct stat found {};
  if (::fstat(descriptor_.number(), &found) != 0) return last_error();
  *out = described(found);
  return {};
}

std::errc Folder::free_space(FreeSpace* out) const {
  struct statvfs found {};
  if (retried([&] { return ::fstatvfs(descriptor_.number(), &found); }) != 0) return last_error();
  out->available_bytes = found.f_bavail * found.f_frsize;
  out->total_bytes = found.f_blocks * found.f_frsize;
  return {};
}

std::errc Folder::open_folder(const char* name, Folder* out) const {
  Descriptor opened(retried([&] {
    return ::openat(descriptor_.number(), name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  }));
  if (!opened.is_open()) return last_error();
  *out = Folder(std::move(opened));
  return {};
}

std::errc Folder::make_folder(const char* name) const {
  return outcome(::mkdirat(descriptor_.number(), name, kOwnFolder));
}

std::errc Folder::info(const char* name, FileInfo* out) const {
  struct stat found {};
  if (::fstatat(descriptor_.number(), name, &found, AT_SYMLINK_NOFOLLOW) != 0) {
    return last_error();
  }
  *out = described(found);
  return {};
}

std::errc Folder::set_modified(const char* name, std::int64_t wall_ns) const {
  return outcome(
      ::utimensat(descriptor_.number(), name, both_times(wall_ns).data(), AT_SYMLINK_NOFOLLOW));
}

std::errc Folder::remove(const char* name) const {
  return outcome(::unlinkat(descriptor_.number(), name, 0));
}

std::errc Folder::remove_folder(const char* name) const {
  return outcome(::unlinkat(descriptor_.number(), name, AT_REMOVEDIR));
}

std::errc Folder::open_file(const char* name, Access access, OpenFile* out, FileInfo* info) const {
  const int mode = access == Access::kRead ? O_RDONLY : O_RDWR;
  // O_NONBLOCK: a pipe must not make us wait for its other end. It has no effect on files.
  Descriptor opened(retried([&] {
    return ::openat(descriptor_.number(), name, mode | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  }));
  if (!opened.is_open()) {
    // A link; a socket, or a pipe that nobody reads; a folder that is opened for writing.
    const bool other_kind = errno == ELOOP || errno == ENXIO || errno == EISDIR;
    return other_kind ? std::errc::no_such_file_or_directory : last_error();
  }
  OpenFile file(std::move(opened));
  if (const std::errc failed = file.info(info); !ok(failed)) return failed;
  if (info->kind != FileInfo::Kind::kFile) return std::errc::no_such_file_or_directory;
  *out = std::move(file);
  return {};
}

std::errc Folder::create_unnamed(OpenFile* out) const {
  Descriptor opened(retried([&] {
    return ::openat(descriptor_.number(), ".", O_TMPFILE | O_RDWR | O_CLOEXEC, kOwnFile);
  }));
  if (!opened.is_open()) return last_error();
  *out = OpenFile(std::move(opened));
  return {};
}

std::errc Folder::create_named(const char* name, OpenFile* out) const {
  Descriptor opened(retried([&] {
    return ::openat(descriptor_.number(), name, O_CREAT | O_EXCL | O_RDWR | O_NOFOLLOW | O_CLOEXEC,
                    kOwnFile);
  }));
  if (!opened.is_open()) return last_error();
  *out = OpenFile(std::move(opened));
  return {};
}

std::errc Folder::publish(const OpenFile& file, const char* name) const {
  const int here = descriptor_.number();
  if (::linkat(file.descriptor(), "", here, name, AT_EMPTY_PATH) == 0) return {};
  if (errno != ENOENT && errno != EPERM) return last_error();
  // Older systems let only the superuser do that, and everybody this.
  const std::string path = "/proc/self/fd/" + std::to_string(file.descriptor());
  return outcome(::linkat(AT_FDCWD, path.c_str(), here, name, AT_SYMLINK_FOLLOW));
}

std::errc Folder::publish(const Folder& other, const char* from, const char* name) const {
  return outcome(::linkat(other.descriptor_.number(), from, descriptor_.number(), name, 0));
}

std::errc Folder::list(const std::function<bool(const char* name)>& visit) const {
  // A descriptor of its own, since the place in the listing belongs to the open folder.
  Descriptor own(retried(
      [&] { return ::openat(descriptor_.number(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  if (!own.is_open()) return last_error();
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(::fdopendir(own.number()), &::closedir);
  if (listing == nullptr) return last_error();
  own.release();  // the listing closes it
  for (;;) {
    errno = 0;
    const dirent* const entry = ::readdir(listing.get());
    if (entry == nullptr) return static_cast<std::errc>(errno);
    const std::string_view name = entry->d_name;
    if (name != "." && name != ".." && !visit(entry->d_name)) return {};
  }
}

}  // namespace kvc
