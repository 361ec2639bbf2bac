// What a rank remembers of its shards in the store, bounded, so that it neither saves again what is
// there nor takes for stored what is broken.
#pragma once

#include <chrono>
#include <cstddef>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/mutex.h"
#include "kvc/block_hash.h"
#include "kvc/clock.h"

namespace kvc {

/// Blocks of which something was seen a short while ago: the shard of this rank in the store, or
/// that they were handed out to be saved. Safe to use from any thread.
class RecentShards {
 public:
  static constexpr std::size_t kLimit = 65536;
  static constexpr Duration kLifetime = std::chrono::seconds(30);

  explicit RecentShards(std::shared_ptr<const Clock> clock, std::size_t limit = kLimit,
                        Duration lifetime = kLifetime)
      : clock_(std::move(clock)), limit_(limit), lifetime_(lifetime) {}

  /// It was seen just now. Sightings whose time is over go, and beyond the limit the
  /// oldest one.
  void saw(const BlockHash& block);
  bool contains(const BlockHash& block) const;
  /// Since `before`, that moment not included.
  bool seen_after(const BlockHash& block, Instant before) const;
  void forget(const BlockHash& block);
  /// The store may have lost everything.
  void clear();
  std::size_t size() const;

 private:
  struct Sighting {
    BlockHash block;
    Instant until;
  };
  using Sightings = std::list<Sighting>;  // Oldest first.

  const std::shared_ptr<const Clock> clock_;
  const std::size_t limit_;
  const Duration lifetime_;
  mutable Mutex mutex_;
  Sightings sightings_ KVC_GUARDED_BY(mutex_);
  std::unordered_map<BlockHash, Sightings::iterator, BlockHashHasher> by_block_
      KVC_GUARDED_BY(mutex_);
};

/// Objects of this rank that were found broken and could not be removed at once: the next save
/// removes them before it puts its own. Safe to use from any thread.
class BrokenObjects {
 public:
  static constexpr std::size_t kLimit = 4096;

  /// Beyond the limit the key is not remembered: it will be found broken again.
  void add(const std::string& key);
  bool contains(const std::string& key) const;
  bool empty() const;
  void remove(const std::string& key);

 private:
  mutable Mutex mutex_;
  std::unordered_set<std::string> keys_ KVC_GUARDED_BY(mutex_);
};

}  // namespace kvc
