#include "store/mooncake/put_pause.h"

#include <gtest/gtest.h>

namespace kvc {
namespace {

using std::chrono::milliseconds;

Instant at(int ms) { return Instant{} + milliseconds(ms); }

TEST(PutPause, GrowsWithEachRefusalUpToItsLimitAndEndsWithAnAcceptedPut) {
  PutPause pause({milliseconds(100), milliseconds(300)});
  EXPECT_FALSE(pause.active(at(0)));
  EXPECT_TRUE(pause.refused(at(0)));
  EXPECT_TRUE(pause.active(at(99)));
  EXPECT_FALSE(pause.active(at(100)));
  EXPECT_FALSE(pause.refused(at(100))) << "the row began before";
  EXPECT_TRUE(pause.active(at(299)));
  EXPECT_FALSE(pause.active(at(300)));
  pause.refused(at(300));
  EXPECT_TRUE(pause.active(at(599)));
  EXPECT_FALSE(pause.active(at(600)));
  EXPECT_TRUE(pause.accepted(at(600)));
  EXPECT_FALSE(pause.accepted(at(601))) << "nothing to end";
  EXPECT_TRUE(pause.refused(at(700)));
  EXPECT_FALSE(pause.active(at(800))) << "short again";
}

TEST(PutPause, CallsThatWereUnderWayWhenItBeganChangeNothing) {
  PutPause pause({milliseconds(100), milliseconds(1000)});
  pause.refused(at(0));
  EXPECT_FALSE(pause.refused(at(50)));
  EXPECT_FALSE(pause.accepted(at(60)));
  EXPECT_TRUE(pause.active(at(99)));
  EXPECT_FALSE(pause.active(at(100)));
}

}  // namespace
}  // namespace kvc
