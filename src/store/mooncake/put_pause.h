// Whether to offer the store new objects, after it said that it has no room.
//
// A Mooncake master evicts on every put that it has to refuse, and a store full of leased objects
// refuses all of them for the length of a lease. So puts stop for a while after a refusal, twice as
// long each time, and resume at full speed once one was accepted.
#pragma once

#include <algorithm>

#include "base/mutex.h"
#include "kvc/clock.h"

namespace kvc {

struct PutPauseOptions {
  Duration first = std::chrono::milliseconds(100);
  Duration longest = std::chrono::seconds(5);
};

/// Safe to use from any thread.
class PutPause {
 public:
  explicit PutPause(PutPauseOptions options) : options_(options) {}

  bool active(Instant now) const {
    const MutexLock lock(mutex_);
    return now < until_;
  }

  /// True if this begins a row of refusals. Refusals of calls that were already under way when the
  /// pause began do not lengthen it.
  bool refused(Instant now) {
    const MutexLock lock(mutex_);
    if (now < until_) return false;
    const bool first = length_ == Duration::zero();
    length_ = first ? options_.first : std::min(2 * length_, options_.longest);
    until_ = now + length_;
    return first;
  }

  /// True if this ends a row of refusals.
  bool accepted(Instant now) {
    const MutexLock lock(mutex_);
    if (now < until_ || length_ == Duration::zero()) return false;
    length_ = Duration::zero();
    return true;
  }

 private:
  const PutPauseOptions options_;
  mutable Mutex mutex_;
  Instant until_ KVC_GUARDED_BY(mutex_) = Instant::min();
  Duration length_ KVC_GUARDED_BY(mutex_) = Duration::zero();
};

}  // namespace kvc
