#include "replication/replication_policy.h"

#include <algorithm>
#include <cmath>
#include <unordered_set>

namespace kvc {
namespace {

/// A block loses a copy when its heat is this part of what earned it, so that one whose heat stands
/// near the mark is not handed out again and again.
constexpr double kHysteresis = 0.5;

/// Heat counts as whole requests: a moment's decay must not ask for one request more than is
/// stated.
constexpr double kRounding = 0.5;

}  // namespace

ReplicationPolicy::ReplicationPolicy(const ReplicationOptions& options, std::uint32_t store_max)
    : options_(options),
      max_replicas_(std::min(options.max_replicas, store_max)),
      table_(options.half_life, std::max<std::size_t>(options.max_blocks, 1)) {}

void ReplicationPolicy::requested(std::span<const BlockHash> blocks, Instant now) {
  if (!enabled()) return;
  for (const BlockHash& block :
       blocks.first(std::min(blocks.size(), options_.max_blocks_per_request))) {
    settle(table_.touch(block, now), now);
  }
}

std::uint32_t ReplicationPolicy::replicas(const BlockHash& block, Instant now) {
  BlockHeat* const known = enabled() ? table_.find(block) : nullptr;
  return known == nullptr ? 1 : settle(*known, now);
}

double ReplicationPolicy::earned_at(std::uint32_t replicas) const {
  return options_.hot_at * std::exp2(static_cast<double>(replicas) - 2);
}

std::uint32_t ReplicationPolicy::settle(BlockHeat& block, Instant now) const {
  const double heat = table_.heat_at(block, now);
  while (block.replicas < max_replicas_ && heat + kRounding >= earned_at(block.replicas + 1)) {
    ++block.replicas;
    block.offered = Instant::min();
  }
  while (block.replicas > 1 && heat < kHysteresis * earned_at(block.replicas)) {
    --block.replicas;
  }
  return block.replicas;
}

std::vector<HotBlock> ReplicationPolicy::choose(std::span<const PageTask> loads,
                                                std::span<const PageTask> saves, Instant now) {
  std::vector<HotBlock> hot;
  if (!enabled()) return hot;
  std::unordered_set<BlockHash, BlockHashHasher> chosen;
  const auto add = [&](const BlockHash& block, bool only_if_due) {
    BlockHeat* const known = table_.find(block);
    if (known == nullptr || hot.size() >= options_.max_blocks_per_step) return;
    const std::uint32_t replicas = settle(*known, now);
    const bool due =
        known->offered == Instant::min() || now - known->offered >= options_.repeat_after;
    if (replicas == 1 || (only_if_due && !due) || !chosen.insert(block).second) return;
    known->offered = now;
    hot.push_back({block, replicas});
  };
  for (const PageTask& task : saves) add(task.block, false);
  for (const PageTask& task : loads) add(task.block, true);
  return hot;
}

}  // namespace kvc
