#include "connector/page_copies.h"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "base/hand_over.h"
#include "kvc/block_format.h"

namespace kvc {
namespace {

/// With fewer bytes the others would come too late.
constexpr std::size_t kHelpFromBytes = std::size_t{4} << 20;
constexpr std::size_t kHelpers = 3;

/// So short that its string takes no memory.
constexpr const char* kBroken = "it broke off";

Status failed(const char* why) noexcept {
  try {
    return {Code::kUnavailable, why};
  } catch (...) {
    return {Code::kUnavailable, kBroken};
  }
}

}  // namespace

PageCopies::PageCopies(const PipelineParts& parts, std::vector<Copy> copies, StreamHandle stream)
    : parts_(parts), stream_(stream), copies_(std::move(copies)), count_(copies_.size()) {}

void PageCopies::run() {
  call_helpers();
  work();
  const MutexLock lock(mutex_);
  while (done_ < count_) changed_.wait(mutex_);
}

/// A helper that comes when everything is done finds nothing to begin, or this gone.
void PageCopies::call_helpers() {
  const std::size_t bytes = count_ * parts_.shards.part_bytes();
  if (!parts_.worker.copier->concurrent() || bytes < kHelpFromBytes || count_ < 2) return;
  for (std::size_t i = 0; i < std::min(kHelpers, count_ - 1); ++i) {
    const bool taken = hand_over(*parts_.worker.executor, [self = weak_from_this()] {
      if (const std::shared_ptr<PageCopies> copies = self.lock()) copies->work();
    });
    if (!taken) return;  // Then with those that were called, or alone.
  }
}

void PageCopies::work() {
  for (std::size_t i = next_.fetch_add(1); i < count_; i = next_.fetch_add(1)) {
    copies_[i].outcome = copy(copies_[i]);
    const MutexLock lock(mutex_);
    if (++done_ == count_) changed_.notify_all();
  }
}

/// Throws nothing, also for lack of memory: whoever waits counts the copies that have ended.
Status PageCopies::copy(const Copy& copy) const noexcept {
  try {
    return parts_.worker.copier->copy_in(
        parts_.groups.front(), copy.task->slot,
        copy.page->bytes().subspan(kBlockHeaderBytes, parts_.shards.part_bytes()), stream_);
  } catch (const std::exception& error) {
    return failed(error.what());
  } catch (...) {
    return failed(kBroken);
  }
}

}  // namespace kvc
