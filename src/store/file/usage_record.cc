#include "store/file/usage_record.h"

#include <algorithm>
#include <cstring>

#include "base/bytes.h"

namespace kvc {
namespace {

constexpr std::string_view kMagic = "kvcfiles";
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kVersionAt = 8;
constexpr std::size_t kFoldersAt = 12;
constexpr std::size_t kBootAt = 16;
constexpr std::size_t kBootBytes = 40;
constexpr std::size_t kEntriesAt = 64;
constexpr std::size_t kEntryBytes = 16;

// Places of the byte locks, far behind the content.
constexpr std::uint64_t kChangeLock = 1u << 20;
constexpr std::uint64_t kFlightLocks = kChangeLock + 1;

std::array<std::byte, kBootBytes> boot_bytes(std::string_view boot) {
  std::array<std::byte, kBootBytes> bytes{};
  if (!boot.empty()) {
    std::memcpy(bytes.data(), boot.data(), std::min(boot.size(), bytes.size()));
  }
  return bytes;
}

}  // namespace

std::vector<std::byte> UsageRecord::empty_image() {
  std::vector<std::byte> image(kFileBytes);
  std::memcpy(image.data(), kMagic.data(), kMagic.size());
  put_le(image.data() + kVersionAt, kVersion);
  put_le(image.data() + kFoldersAt, static_cast<std::uint32_t>(kFileFolders));
  return image;
}

std::errc UsageRecord::check(Check* out) const {
  Image image{};
  std::size_t got = 0;
  if (const std::errc failed = file_.read_at(0, image, &got); !ok(failed)) return failed;
  if (got < kEntriesAt || std::memcmp(image.data(), kMagic.data(), kMagic.size()) != 0) {
    *out = Check::kDamaged;
  } else if (get_le<std::uint32_t>(image.data() + kVersionAt) != kVersion ||
             get_le<std::uint32_t>(image.data() + kFoldersAt) != kFileFolders) {
    *out = Check::kOtherVersion;
  } else {
    *out = got == kFileBytes ? Check::kGood : Check::kDamaged;
  }
  return {};
}

std::errc UsageRecord::repair() {
  const MutexLock lock(change_mutex_);
  if (const std::errc failed = file_.lock(kChangeLock, patience_); !ok(failed)) return failed;
  Check found = Check::kDamaged;
  std::errc result = check(&found);
  // Another process may have been faster.
  if (ok(result) && found == Check::kDamaged) result = file_.write_at(0, empty_image());
  (void)file_.unlock(kChangeLock);
  return result;
}

std::errc UsageRecord::vouched_for(std::string_view boot, bool* out) const {
  Image image{};
  if (const std::errc failed = read(&image); !ok(failed)) return failed;
  const auto expected = boot_bytes(boot);
  *out = !boot.empty() && std::memcmp(image.data() + kBootAt, expected.data(), kBootBytes) == 0;
  return {};
}

std::errc UsageRecord::vouch(std::string_view boot) {
  return under_lock([&](Image& /*image*/) { return file_.write_at(kBootAt, boot_bytes(boot)); });
}

std::errc UsageRecord::total(std::uint64_t* bytes) const {
  Image image{};
  if (const std::errc failed = read(&image); !ok(failed)) return failed;
  *bytes = total_of(image);
  return {};
}

std::errc UsageRecord::add(std::size_t folder, std::uint64_t bytes, std::uint64_t* total) {
  return under_lock([&](Image& image) {
    Entry entry = entry_of(image, folder);
    entry.bytes += bytes;
    ++entry.change;
    *total = total_of(image) + bytes;
    return write(folder, entry);
  });
}

std::errc UsageRecord::subtract(std::size_t folder, std::uint64_t bytes) {
  return under_lock([&](Image& image) {
    Entry entry = entry_of(image, folder);
    entry.bytes -= std::min(bytes, entry.bytes);
    ++entry.change;
    return write(folder, entry);
  });
}

template <typename Change>
std::errc UsageRecord::under_lock(Change change) {
  const MutexLock lock(change_mutex_);
  if (const std::errc failed = file_.lock(kChangeLock, patience_); !ok(failed)) return failed;
  Image image{};
  std::errc result = read(&image);
  if (ok(result)) result = change(image);
  (void)file_.unlock(kChangeLock);
  return result;
}

std::errc UsageRecord::read(Image* image) const {
  std::size_t got = 0;
  if (const std::errc failed = file_.read_at(0, *image, &got); !ok(failed)) return failed;
  return got == image->size() ? std::errc{} : std::errc::bad_message;
}

std::errc UsageRecord::write(std::size_t folder, Entry entry) const {
  // One small write, which a process that dies does not leave half done.
  std::array<std::byte, kEntryBytes> bytes{};
  put_le(bytes.data(), entry.bytes);
  put_le(bytes.data() + 8, entry.change);
  return file_.write_at(kEntriesAt + folder * kEntryBytes, bytes);
}

UsageRecord::Entry UsageRecord::entry_of(const Image& image, std::size_t folder) {
  const std::byte* const at = image.data() + kEntriesAt + folder * kEntryBytes;
  return {get_le<std::uint64_t>(at), get_le<std::uint64_t>(at + 8)};
}

std::uint64_t UsageRecord::total_of(const Image& image) {
  std::uint64_t total = 0;
  for (std::size_t folder = 0; folder < kFileFolders; ++folder) {
    total += entry_of(image, folder).bytes;
  }
  return total;
}

// ---- in flight -----------------------------------------------------------------------------

UsageRecord::InFlight::InFlight(UsageRecord* record, std::size_t folder)
    : record_(record), folder_(folder) {
  const MutexLock lock(record_->flight_mutex_);
  // Nobody holds these alone, so this neither waits nor fails.
  if (record_->flights_[folder]++ == 0) {
    (void)record_->file_.try_lock_shared(kFlightLocks + folder);
  }
}

UsageRecord::InFlight::~InFlight() {
  const MutexLock lock(record_->flight_mutex_);
  if (--record_->flights_[folder_] == 0) (void)record_->file_.unlock(kFlightLocks + folder_);
}

bool UsageRecord::in_flight(std::size_t folder) {
  const MutexLock lock(flight_mutex_);
  bool elsewhere = true;
  return flights_[folder] > 0 || !ok(file_.locked_elsewhere(kFlightLocks + folder, &elsewhere)) ||
         elsewhere;
}

// ---- scans ---------------------------------------------------------------------------------

UsageRecord::Scan::Scan(UsageRecord* record, std::size_t folder)
    : record_(record), folder_(folder) {
  (void)record_->under_lock([&](Image& image) {
    change_ = entry_of(image, folder_).change;
    quiet_ = !record_->in_flight(folder_);
    return std::errc{};
  });
}

bool UsageRecord::Scan::finish(std::uint64_t bytes_found) {
  if (!quiet_) return false;
  bool settled = false;
  const std::errc failed = record_->under_lock([&](Image& image) {
    Entry entry = entry_of(image, folder_);
    if (entry.change != change_ || record_->in_flight(folder_)) return std::errc{};
    settled = true;
    if (entry.bytes == bytes_found) return std::errc{};
    entry.bytes = bytes_found;
    ++entry.change;
    return record_->write(folder_, entry);
  });
  return ok(failed) && settled;
}

}  // namespace kvc
