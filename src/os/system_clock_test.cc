#include <gtest/gtest.h>

#include "kvc/clock.h"

namespace kvc {
namespace {

class FixedClock final : public Clock {
 public:
  explicit FixedClock(Instant at) : at_(at) {}
  Instant now() const override { return at_; }

 private:
  Instant at_;
};

TEST(SystemClock, NeverGoesBack) {
  const std::shared_ptr<const Clock> clock = system_clock();
  Instant last = clock->now();
  for (int i = 0; i < 1000; ++i) {
    const Instant now = clock->now();
    ASSERT_GE(now, last);
    last = now;
  }
}

TEST(Deadline, PassesAtItsInstantAndLeavesNothingAfterwards) {
  const FixedClock clock(Instant{} + std::chrono::seconds(10));
  const Deadline later = Deadline::after(clock, std::chrono::seconds(3));
  EXPECT_FALSE(later.passed(clock));
  EXPECT_EQ(later.remaining(clock), std::chrono::seconds(3));
  const Deadline now{clock.now()};
  EXPECT_TRUE(now.passed(clock));
  EXPECT_EQ(now.remaining(clock), Duration::zero());
  const Deadline earlier{Instant{}};
  EXPECT_TRUE(earlier.passed(clock));
  EXPECT_EQ(earlier.remaining(clock), Duration::zero());
}

TEST(Deadline, NeverDoesNotPassAndTheEarlierOfTwoWins) {
  const FixedClock clock(Instant{} + std::chrono::seconds(10));
  EXPECT_FALSE(Deadline::never().passed(clock));
  EXPECT_GT(Deadline::never().remaining(clock), std::chrono::hours(24 * 365));
  const Deadline soon = Deadline::after(clock, std::chrono::seconds(1));
  EXPECT_EQ(Deadline::never().earlier_of(soon).at, soon.at);
  EXPECT_EQ(soon.earlier_of(Deadline::never()).at, soon.at);
}

TEST(Deadline, ABudgetWithoutEndNeverPasses) {
  const FixedClock clock(Instant{} + std::chrono::seconds(10));
  EXPECT_FALSE(Deadline::after(clock, Duration::max()).passed(clock));
}

}  // namespace
}  // namespace kvc
