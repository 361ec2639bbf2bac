// Decides which blocks of a step get how many copies. See kvc/replication.h for the rule.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kvc/block_hash.h"
#include "kvc/clock.h"
#include "kvc/replication.h"
#include "kvc/step_plan.h"
#include "replication/heat_table.h"

namespace kvc {

/// Not thread-safe; no clock and no threads of its own.
class ReplicationPolicy {
 public:
  /// `store_max`: copies that the store can keep of an object.
  ReplicationPolicy(const ReplicationOptions& options, std::uint32_t store_max);

  bool enabled() const { return max_replicas_ > 1; }

  /// A request asks for a prompt of these blocks.
  void requested(std::span<const BlockHash> blocks, Instant now);

  /// Copies that a block has earned, 1 to the most.
  std::uint32_t replicas(const BlockHash& block, Instant now);

  /// The blocks of a step that are to have several copies: those that are loaded, each once per
  /// `repeat_after`, and those that are put.
  std::vector<HotBlock> choose(std::span<const PageTask> loads, std::span<const PageTask> saves,
                               Instant now);

 private:
  std::uint32_t settle(BlockHeat& block, Instant now) const;
  double earned_at(std::uint32_t replicas) const;

  const ReplicationOptions options_;
  const std::uint32_t max_replicas_;
  HeatTable table_;
};

}  // namespace kvc
