// How many copies a stored block deserves, by how often it is asked for.
//
// A block's name covers everything before it, so the heat of a block is the popularity of a prefix.
// Every request counts once for each block of its prompt, stored or not, and once more each time
// that it is resumed after a preemption; counts decay by half in each `half_life`. A block is hot
// from `hot_at` on and deserves two copies, from twice that three, and so on, up to `max_replicas`;
// it loses one only when its heat has fallen to half of what earned it. What is asked for seldom
// has one copy.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "kvc/clock.h"

namespace kvc {

/// Nobody asks for more copies of a block.
inline constexpr std::uint32_t kReplicasMax = 8;

struct ReplicationOptions {
  /// 1: no replication. At most kReplicasMax; the store's capability bounds it too.
  std::uint32_t max_replicas = 1;
  double hot_at = 8;  ///< Requests, decayed, to the nearest whole one. > 0
  Duration half_life = std::chrono::minutes(10);  ///< > 0
  /// Blocks whose heat is kept. Beyond it go those that were asked for once, then the oldest.
  std::size_t max_blocks = 65536;
  /// Blocks of one request that count; the ends of longer ones are hardly ever shared.
  std::size_t max_blocks_per_request = 4096;
  /// Blocks of one step that are to get copies.
  std::size_t max_blocks_per_step = 256;
  /// Until a block that stays hot is offered to the store once more: its copies may have been lost,
  /// or never been made.
  Duration repeat_after = std::chrono::seconds(60);
};

}  // namespace kvc
