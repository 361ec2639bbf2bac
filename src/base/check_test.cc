#include "base/check.h"

#include <gtest/gtest.h>

namespace kvc {
namespace {

TEST(CheckDeathTest, SaysWhatDidNotHoldAndWhere) {
  EXPECT_DEATH(KVC_CHECK(1 + 1 == 3, "arithmetic"), "check_test.cc:[0-9]+: arithmetic .1 . 1 == 3");
}

TEST(Check, PassesWhenTheConditionHolds) {
  int evaluated = 0;
  KVC_CHECK(++evaluated == 1, "evaluated once");
  EXPECT_EQ(evaluated, 1);
}

TEST(CheckDeathTest, DebugChecksAreOnExactlyWhereTheyShould) {
  int evaluated = 0;
#if defined(KVC_DCHECKS) || !defined(NDEBUG)
  KVC_DCHECK(++evaluated == 1, "evaluated once");
  EXPECT_EQ(evaluated, 1);
  EXPECT_DEATH(KVC_DCHECK(evaluated == 2, "debug"), "debug");
#else
  KVC_DCHECK(++evaluated == 2, "not evaluated");
  EXPECT_EQ(evaluated, 0);
#endif
}

}  // namespace
}  // namespace kvc
