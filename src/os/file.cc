#include "os/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <system_error>
#include <utility>

namespace kvc {
namespace {

std::string reason(int error) { return std::generic_category().message(error); }

Status cannot(const char* verb, const std::string& path, const std::string& why) {
  return invalid(std::string("cannot ") + verb + " '" + path + "': " + why);
}

FolderEntry describe(const std::filesystem::directory_entry& found) {
  FolderEntry entry;
  entry.name = found.path().filename().string();
  std::error_code error;
  if (found.is_symlink(error)) {
    std::filesystem::path target = std::filesystem::read_symlink(found.path(), error);
    if (!error) entry.link_target = std::move(target);
  }
  entry.is_file = found.is_regular_file(error) && !error;
  if (entry.is_file) {
    const std::uintmax_t bytes = found.file_size(error);
    entry.bytes = error ? 0 : bytes;
  }
  return entry;
}

}  // namespace

Result<std::string> read_file(const std::filesystem::path& path, std::size_t max_bytes) {
  Result<RandomAccessFile> file = RandomAccessFile::open(path);
  if (!file.ok()) return file.status();
  if (file->bytes() > max_bytes) {
    return cannot("read", path.string(),
                  "it has " + std::to_string(file->bytes()) + " bytes, more than the " +
                      std::to_string(max_bytes) + " that are accepted here");
  }
  std::string text(static_cast<std::size_t>(file->bytes()), '\0');
  const Status status =
      file->read_at(0, std::as_writable_bytes(std::span<char>(text.data(), text.size())));
  if (!status.ok()) return status;
  return text;
}

bool path_exists(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::exists(path, error) && !error;
}

bool is_folder(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error) && !error;
}

Result<std::filesystem::path> canonical_path(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::path resolved = std::filesystem::canonical(path, error);
  if (error) return cannot("resolve", path.string(), error.message());
  return resolved;
}

Result<std::vector<FolderEntry>> list_folder(const std::filesystem::path& path,
                                             std::size_t max_entries) {
  std::error_code error;
  std::filesystem::directory_iterator at(path, error);
  if (error) return cannot("list", path.string(), error.message());
  std::vector<FolderEntry> entries;
  while (at != std::filesystem::directory_iterator()) {
    if (entries.size() == max_entries) {
      return cannot("list", path.string(),
                    "it has more than " + std::to_string(max_entries) + " entries");
    }
    entries.push_back(describe(*at));
    at.increment(error);
    if (error) return cannot("list", path.string(), error.message());
  }
  std::sort(entries.begin(), entries.end(),
            [](const FolderEntry& a, const FolderEntry& b) { return a.name < b.name; });
  return entries;
}

Result<RandomAccessFile> RandomAccessFile::open(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a pipe must not wait for its other end. It has no effect on files.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return cannot("open", path.string(), reason(errno));
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) {
    const int error = errno;
    ::close(descriptor);
    return cannot("open", path.string(), reason(error));
  }
  if (!S_ISREG(status.st_mode)) {
    ::close(descriptor);
    return cannot("open", path.string(), "it is not a regular file");
  }
  return RandomAccessFile(path.string(), descriptor, static_cast<std::uint64_t>(status.st_size));
}

RandomAccessFile::RandomAccessFile(std::string path, int descriptor, std::uint64_t bytes)
    : path_(std::move(path)), descriptor_(descriptor), bytes_(bytes) {}

RandomAccessFile::RandomAccessFile(RandomAccessFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      bytes_(other.bytes_) {}

RandomAccessFile& RandomAccessFile::operator=(RandomAccessFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

RandomAccessFile::~RandomAccessFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Status RandomAccessFile::read_at(std::uint64_t offset, std::span<std::byte> out) const {
  constexpr auto kOffsetMax = static_cast<std::uint64_t>(std::numeric_limits<off_t>::max());
  if (offset > kOffsetMax || out.size() > kOffsetMax - offset) {
    return cannot("read", path_, "offset " + std::to_string(offset) + " is out of range");
  }
  while (!out.empty()) {
    const ssize_t got = ::pread(descriptor_, out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return cannot("read", path_, reason(errno));
    if (got == 0) return cannot("read", path_, "it ends at byte " + std::to_string(offset));
    offset += static_cast<std::uint64_t>(got);
    out = out.subspan(static_cast<std::size_t>(got));
  }
  return {};
}

}  // namespace kvc
