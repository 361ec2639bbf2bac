// Time that a test moves by hand.
#pragma once

#include <atomic>

#include "kvc/clock.h"

namespace kvc::testlib {

/// Starts at the epoch of the monotonic clock, so that every instant of it lies in the real past:
/// code that waits "until" one of them wakes at once and asks this clock again. Safe to use from
/// any thread.
class SimClock final : public Clock {
 public:
  SimClock() = default;
  /// Each reading moves time on by `tick`: a loop that waits for a deadline ends by itself.
  explicit SimClock(Duration tick) : tick_(tick.count()) {}

  Instant now() const override {
    return Instant(Duration(now_.fetch_add(tick_.load()) + tick_.load()));
  }

  void advance(Duration by) { now_.fetch_add(by.count()); }
  void set_tick(Duration tick) { tick_.store(tick.count()); }

 private:
  mutable std::atomic<Duration::rep> now_{0};
  std::atomic<Duration::rep> tick_{0};
};

}  // namespace kvc::testlib
