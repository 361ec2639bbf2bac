// How many copies the blocks of recent plans are to have, for puts that come later than their plan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <unordered_map>

#include "base/mutex.h"
#include "kvc/block_hash.h"
#include "kvc/step_plan.h"

namespace kvc {

/// Safe to use from any thread.
class HotBlocks {
 public:
  static constexpr std::size_t kLimit = 4096;

  /// Beyond the limit the oldest is forgotten: it gets one copy, as any other block.
  void note(std::span<const HotBlock> blocks);
  /// 1 of blocks that nobody noted.
  std::uint32_t replicas(const BlockHash& block) const;

 private:
  mutable Mutex mutex_;
  std::unordered_map<BlockHash, std::uint32_t, BlockHashHasher> replicas_ KVC_GUARDED_BY(mutex_);
  std::deque<BlockHash> oldest_first_ KVC_GUARDED_BY(mutex_);
};

}  // namespace kvc
