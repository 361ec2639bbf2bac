// How often blocks were asked for, decaying exponentially, of a bounded number of blocks.
//
// Two lists in the order of use: what was asked for once, and what was asked for again. A block
// that is new takes the place of the oldest of the first list, so that any number of prompts that
// nobody repeats cannot push out those that are repeated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <unordered_map>

#include "kvc/block_hash.h"
#include "kvc/clock.h"

namespace kvc {

struct BlockHeat {
  double heat = 0;  ///< As of `at`.
  Instant at{};
  std::uint32_t replicas = 1;        ///< That it has earned; kept for who decides.
  Instant offered = Instant::min();  ///< When it was last handed out; likewise.
};

/// Not thread-safe. Takes time as it is told, so that runs repeat.
class HeatTable {
 public:
  /// REQUIRES: half_life > 0, limit > 0.
  HeatTable(Duration half_life, std::size_t limit);

  /// One more request asks for `block`. The reference holds until the next touch().
  BlockHeat& touch(const BlockHash& block, Instant now);
  /// Null if nothing is known.
  BlockHeat* find(const BlockHash& block);
  /// What is left of `block` by `now`. Time that goes back counts as standing still.
  double heat_at(const BlockHeat& block, Instant now) const;

  std::size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    BlockHash block;
    BlockHeat heat;
    bool repeated = false;
  };
  using Entries = std::list<Entry>;  // The latest in front.

  void keep_bounds();

  const double half_life_;
  const std::size_t limit_;
  Entries once_;
  Entries repeated_;
  std::unordered_map<BlockHash, Entries::iterator, BlockHashHasher> entries_;
};

}  // namespace kvc
