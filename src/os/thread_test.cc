#include "os/thread.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <array>
#include <memory>
#include <utility>

namespace kvc {
namespace {

TEST(Thread, RunsItsBodyAndIsJoinedByTheDestructor) {
  int ran = 0;
  {
    Result<Thread> thread = Thread::start("body", [&ran] { ran = 1; });
    ASSERT_TRUE(thread.ok());
  }
  EXPECT_EQ(ran, 1);
}

TEST(Thread, ShowsItsNameCutToWhatTheSystemTakes) {
  std::array<char, 32> name{};
  Result<Thread> thread = Thread::start("a-name-that-is-far-too-long", [&name] {
    pthread_getname_np(pthread_self(), name.data(), name.size());
  });
  ASSERT_TRUE(thread.ok());
  thread->join();
  EXPECT_STREQ(name.data(), "a-name-that-is-");
}

TEST(Thread, KnowsWhetherItIsTheCaller) {
  Thread thread;
  EXPECT_FALSE(thread.is_current());
  Result<Thread> started = Thread::start("other", [] {});
  ASSERT_TRUE(started.ok());
  EXPECT_FALSE(started->is_current());
}

TEST(Thread, AssigningOverARunningThreadJoinsItFirst) {
  int first = 0;
  int second = 0;
  Result<Thread> thread = Thread::start("first", [&first] { first = 1; });
  ASSERT_TRUE(thread.ok());
  Result<Thread> next = Thread::start("second", [&second] { second = 1; });
  ASSERT_TRUE(next.ok());
  *thread = std::move(next).value();
  EXPECT_EQ(first, 1);
  thread->join();
  EXPECT_EQ(second, 1);
}

TEST(Thread, ReleasesWhatItsBodyHeldBeforeJoinReturns) {
  auto held = std::make_shared<int>(1);
  Result<Thread> thread = Thread::start("holder", [held] { EXPECT_EQ(*held, 1); });
  ASSERT_TRUE(thread.ok());
  thread->join();
  EXPECT_EQ(held.use_count(), 1);
}

}  // namespace
}  // namespace kvc
