#pragma once

#include <cstdint>

#include "base/mutex.h"

namespace kvc {

/// Statistics that several threads count in.
template <typename Stats>
class Counters {
 public:
  /// Runs `change` on the counters; all that it changes is seen at once.
  template <typename Change>
  void update(Change change) {
    const MutexLock lock(mutex_);
    change(stats_);
  }
  void add(std::uint64_t Stats::*field) {
    update([field](Stats& stats) { ++(stats.*field); });
  }

  Stats read() const {
    const MutexLock lock(mutex_);
    return stats_;
  }

 private:
  mutable Mutex mutex_;
  Stats stats_ KVC_GUARDED_BY(mutex_);
};

}  // namespace kvc
