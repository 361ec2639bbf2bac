// The simulated world as its inhabitants see it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "connector/rank_shards.h"
#include "kvc/block_format.h"
#include "testing/sim/choice.h"
#include "testing/sim/coverage.h"
#include "testing/sim/event_loop.h"
#include "testing/sim/fault_plan.h"
#include "testing/sim/journal.h"
#include "testing/sim/oracle.h"
#include "testing/sim/sim_store.h"

namespace kvc::sim {

/// What everybody shares. All outlive the world's inhabitants.
struct Site {
  EventLoop& loop;
  Choice& choice;
  Faults& faults;
  Oracle& oracle;
  Journal& journal;
  Coverage& coverage;
  SimStore& store;
  Shape shape;
};

/// A block of some request: what it is, and what the product calls it.
struct NamedBlock {
  Content content = 0;
  BlockHash hash;
};

/// Bytes of the payload of one object, in every simulated world.
inline constexpr std::size_t kPayloadBytes = 24;
inline constexpr std::size_t kObjectBytes = kBlockHeaderBytes + kPayloadBytes;
inline constexpr std::uint32_t kTokensPerBlock = 2;

/// The shards of one rank in a keyspace.
RankShards shards_of(std::uint32_t keyspace, std::uint32_t rank, const Shape& shape);

inline Tag shard_tag(const NamedBlock& block, std::uint32_t rank, std::uint32_t part) {
  return {block.content, ObjectIs::kShard, static_cast<std::uint8_t>(rank),
          static_cast<std::uint8_t>(part)};
}

/// Notes in the coverage why an object was refused.
void mark_rejection(Coverage& coverage, Rejection rejection);

}  // namespace kvc::sim
