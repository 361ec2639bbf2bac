#include "connector/hot_blocks.h"

namespace kvc {

void HotBlocks::note(std::span<const HotBlock> blocks) {
  const MutexLock lock(mutex_);
  for (const HotBlock& hot : blocks) {
    const auto [found, is_new] = replicas_.insert_or_assign(hot.block, hot.replicas);
    if (!is_new) continue;
    oldest_first_.push_back(hot.block);
    if (oldest_first_.size() <= kLimit) continue;
    replicas_.erase(oldest_first_.front());
    oldest_first_.pop_front();
  }
}

std::uint32_t HotBlocks::replicas(const BlockHash& block) const {
  const MutexLock lock(mutex_);
  const auto found = replicas_.find(block);
  return found == replicas_.end() ? 1 : found->second;
}

}  // namespace kvc
