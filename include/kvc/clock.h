// Time as a parameter. The core never reads a clock of its own, so that tests and simulations step
// it. `Deadline` is an absolute instant that a whole callback shares: nested calls get what is
// left.
#pragma once

#include <chrono>
#include <memory>

namespace kvc {

using Duration = std::chrono::nanoseconds;
using Instant = std::chrono::time_point<std::chrono::steady_clock, Duration>;

/// Monotonic time. Implementations are safe to call from any thread.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual Instant now() const = 0;
};

/// The machine's monotonic clock.
std::shared_ptr<const Clock> system_clock();

struct Deadline {
  Instant at = Instant::max();

  static Deadline never() { return {}; }
  /// A budget too long to be added means never.
  static Deadline after(const Clock& clock, Duration budget) {
    const Instant now = clock.now();
    return budget > Instant::max() - now ? never() : Deadline{now + budget};
  }

  bool passed(const Clock& clock) const { return clock.now() >= at; }
  /// Zero once passed.
  Duration remaining(const Clock& clock) const {
    const Instant now = clock.now();
    return now >= at ? Duration::zero() : at - now;
  }
  Deadline earlier_of(Deadline other) const { return at < other.at ? *this : other; }
};

}  // namespace kvc
