#include "store/file/evictor.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace kvc {
namespace {

constexpr std::size_t kSampleObjects = 1024;
constexpr std::size_t kVictimShare = 8;
/// Work that one call does at most; a store with 400,000 objects has 1,600 in a folder.
constexpr int kSamplesPerCall = 32;
/// Older victims may long be used again, or gone.
constexpr Duration kSampleLife = std::chrono::seconds(10);
/// A clock that ran ahead must not make objects immortal: those from the future go first.
constexpr std::int64_t kFutureNs = 60'000'000'000;

}  // namespace

Evictor::Evictor(std::shared_ptr<const Clock> clock, std::function<std::int64_t()> wall_ns,
                 std::uint64_t seed)
    : clock_(std::move(clock)), wall_ns_(std::move(wall_ns)), folder_(seed % kFileFolders) {}

bool Evictor::make_room(StoreRoot& root, std::uint64_t limit_bytes, Deadline deadline) {
  int samples = 0;
  for (;;) {
    std::uint64_t total = 0;
    if (!ok(root.record().total(&total))) return false;
    if (total <= limit_bytes) return true;
    if (deadline.passed(*clock_)) return false;
    const std::optional<StoreRoot::Found> victim = next_victim(root, &samples);
    if (!victim.has_value()) return false;
    evict(root, *victim);
  }
}

void Evictor::look_around(StoreRoot& root) {
  std::size_t folder = 0;
  {
    const MutexLock lock(mutex_);
    folder = next_folder();
  }
  bool settled = false;
  (void)root.scan(
      folder, [](const StoreRoot::Found& /*found*/) {}, &settled);
}

std::optional<StoreRoot::Found> Evictor::next_victim(StoreRoot& root, int* samples) {
  const MutexLock lock(mutex_);
  if (clock_->now() - sampled_at_ > kSampleLife) victims_.clear();
  while (victims_.empty()) {
    if (++*samples > kSamplesPerCall) return std::nullopt;
    take_sample(root);
    sampled_at_ = clock_->now();
    // Nothing in the whole store: what the record has is other writers' work in progress.
    if (victims_.empty()) return std::nullopt;
  }
  StoreRoot::Found victim = std::move(victims_.back());
  victims_.pop_back();
  return victim;
}

void Evictor::take_sample(StoreRoot& root) {
  const std::int64_t future_ns = wall_ns_() + kFutureNs;
  std::vector<StoreRoot::Found> sample;
  for (std::size_t folders = 0; folders < kFileFolders && sample.size() < kSampleObjects;
       ++folders) {
    bool settled = false;
    (void)root.scan(
        next_folder(),
        [&](StoreRoot::Found found) {
          // An empty file is what a power loss left.
          if (found.bytes == 0 || found.used_ns > future_ns) found.used_ns = 0;
          sample.push_back(std::move(found));
        },
        &settled);
  }
  const auto older = [](const StoreRoot::Found& a, const StoreRoot::Found& b) {
    return a.used_ns < b.used_ns;
  };
  const std::size_t kept = (sample.size() + kVictimShare - 1) / kVictimShare;
  const auto end = sample.begin() + static_cast<std::ptrdiff_t>(kept);
  std::partial_sort(sample.begin(), end, sample.end(), older);
  sample.erase(end, sample.end());
  std::reverse(sample.begin(), sample.end());
  victims_ = std::move(sample);
}

std::size_t Evictor::next_folder() {
  folder_ = (folder_ + 1) % kFileFolders;
  return folder_;
}

void Evictor::evict(StoreRoot& root, const StoreRoot::Found& victim) {
  Folder folder;
  FileInfo info;
  if (!ok(root.folder(victim.folder, &folder))) return;
  if (!ok(folder.info(victim.file.c_str(), &info))) return;  // another process was faster
  // Used since the sample was taken. (0: never told by its time.)
  if (victim.used_ns != 0 && info.modified_ns != victim.used_ns) return;
  if (ok(root.remove(victim.folder, folder, victim.file, info.bytes))) evicted_.fetch_add(1);
}

}  // namespace kvc
