#include "connector/step_time.h"

#include <gtest/gtest.h>

namespace kvc {
namespace {

using std::chrono::milliseconds;

constexpr Duration kBudget = milliseconds(50);
constexpr Instant kBegin{std::chrono::hours(1)};

/// A step whose first query has spent so much.
StepTime step_after(Duration spent) {
  StepTime time(kBudget);
  EXPECT_TRUE(time.query_began(kBegin));
  time.spend(spent);
  time.query_ended(kBegin + spent);
  return time;
}

TEST(StepTime, IsSpentByAllQueriesOfAStep) {
  StepTime time = step_after(milliseconds(20));
  EXPECT_EQ(time.left(kBudget), milliseconds(30));
  time.spend(milliseconds(25));
  EXPECT_EQ(time.left(kBudget), milliseconds(5));
  EXPECT_EQ(time.left(milliseconds(40)), Duration::zero());
  time.begin(kBegin);
  EXPECT_EQ(time.left(kBudget), kBudget);
}

TEST(StepTime, AStepBeginsAfterAPauseOfTheEngine) {
  StepTime time = step_after(kBudget);
  const Instant ended = kBegin + kBudget;
  EXPECT_FALSE(time.query_began(ended + StepTime::kPause - Duration(1)));
  time.query_ended(ended + 2 * StepTime::kPause);
  EXPECT_FALSE(time.query_began(ended + 3 * StepTime::kPause - Duration(1)))
      << "measured from the end of the query before";
  time.query_ended(ended + 3 * StepTime::kPause);
  time.heard(ended + 3 * StepTime::kPause + milliseconds(1));
  EXPECT_FALSE(time.query_began(ended + 4 * StepTime::kPause));
  EXPECT_EQ(time.left(kBudget), Duration::zero());
}

TEST(StepTime, AQueryOfAnotherThreadIsNoPause) {
  StepTime time = step_after(milliseconds(10));
  EXPECT_FALSE(time.query_began(kBegin + milliseconds(20)));
  EXPECT_FALSE(time.query_began(kBegin + milliseconds(300))) << "that one is waiting still";
  time.query_ended(kBegin + milliseconds(310));
  time.query_ended(kBegin + milliseconds(320));
  EXPECT_TRUE(time.query_began(kBegin + milliseconds(420)));
}

TEST(StepTime, WithoutPlansAndPausesABudgetIsGivenOnceInTen) {
  StepTime time = step_after(kBudget);
  int steps = 0;
  for (Instant now = kBegin + kBudget; now < kBegin + 40 * kBudget; now += milliseconds(10)) {
    steps += time.query_began(now) ? 1 : 0;
    time.query_ended(now);
  }
  EXPECT_EQ(steps, 3);
}

}  // namespace
}  // namespace kvc
