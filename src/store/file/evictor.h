// Which objects go when room is needed: the least recently used of a sample.
//
// A sample is whole folders, taken in turn, until they hold enough objects; names are spread over
// the folders by a hash, so they are a random sample of the store, and a small store is sampled
// whole, which makes the order exact. The oldest eighth of a sample is evicted as room is needed,
// then the next is taken: a handful of look-ups per evicted object, however large the store is.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "kvc/clock.h"
#include "store/file/store_root.h"

namespace kvc {

/// Of one process; several processes may evict from one store at the same time. Safe to use from
/// any thread.
class Evictor {
 public:
  /// `seed` is where in the folders this process begins.
  Evictor(std::shared_ptr<const Clock> clock, std::function<std::int64_t()> wall_ns,
          std::uint64_t seed);

  /// Removes objects until the record says at most `limit_bytes`. False: `deadline` passed, or so
  /// much work was done that the caller should come again, or nothing is left to remove.
  bool make_room(StoreRoot& root, std::uint64_t limit_bytes, Deadline deadline);

  /// Looks at the next folder, so that what dead writers took is found in the course of time.
  void look_around(StoreRoot& root);

  std::uint64_t evicted() const { return evicted_.load(); }

 private:
  std::optional<StoreRoot::Found> next_victim(StoreRoot& root, int* samples);
  void take_sample(StoreRoot& root) KVC_REQUIRES(mutex_);
  std::size_t next_folder() KVC_REQUIRES(mutex_);
  void evict(StoreRoot& root, const StoreRoot::Found& victim);

  const std::shared_ptr<const Clock> clock_;
  const std::function<std::int64_t()> wall_ns_;
  std::atomic<std::uint64_t> evicted_{0};
  Mutex mutex_;
  std::size_t folder_ KVC_GUARDED_BY(mutex_);
  /// Youngest first, so that the oldest is taken from the end.
  std::vector<StoreRoot::Found> victims_ KVC_GUARDED_BY(mutex_);
  Instant sampled_at_ KVC_GUARDED_BY(mutex_){};
};

}  // namespace kvc
