#include "store/mooncake/transfer_budget.h"

#include <gtest/gtest.h>

#include <atomic>
#include <utility>
#include <vector>

#include "os/thread.h"
#include "testing/sim_clock.h"

namespace kvc {
namespace {

using testlib::SimClock;

TEST(TransferBudget, GrantsUpToItsLimitsAndTakesBack) {
  TransferBudget budget({.buffers = 10, .bytes = 100});
  const SimClock clock(std::chrono::milliseconds(10));
  const auto soon = [&] { return Deadline::after(clock, std::chrono::seconds(1)); };
  {
    const TransferBudget::Grant first = budget.acquire(6, 60, soon(), clock);
    EXPECT_TRUE(first);
    EXPECT_FALSE(budget.acquire(5, 1, soon(), clock)) << "too many buffers";
    EXPECT_FALSE(budget.acquire(1, 50, soon(), clock)) << "too many bytes";
    const TransferBudget::Grant second = budget.acquire(4, 40, soon(), clock);
    EXPECT_TRUE(second);
    EXPECT_EQ(budget.buffers_in_flight(), 10u);
  }
  EXPECT_EQ(budget.buffers_in_flight(), 0u);
  EXPECT_TRUE(budget.acquire(10, 100, soon(), clock));
}

TEST(TransferBudget, RequestAboveTheLimitsIsGrantedAlone) {
  TransferBudget budget({.buffers = 10, .bytes = 100});
  const SimClock clock(std::chrono::milliseconds(10));
  const TransferBudget::Grant large = budget.acquire(1000, 1000, Deadline::never(), clock);
  EXPECT_TRUE(large);
  EXPECT_FALSE(budget.acquire(1, 1, Deadline::after(clock, std::chrono::seconds(1)), clock));
}

TEST(TransferBudget, MovedGrantGivesBackOnce) {
  TransferBudget budget({.buffers = 10, .bytes = 100});
  TransferBudget::Grant first = budget.acquire(3, 3, Deadline::never(), *system_clock());
  {
    const TransferBudget::Grant second = std::move(first);
    EXPECT_EQ(budget.buffers_in_flight(), 3u);
  }
  EXPECT_EQ(budget.buffers_in_flight(), 0u);
}

TEST(TransferBudget, NeverMoreInFlightThanTheLimit) {
  TransferBudget budget({.buffers = 10, .bytes = 1000});
  std::atomic<int> served{0};
  std::atomic<bool> exceeded{false};
  std::vector<Thread> threads;
  for (int i = 0; i < 4; ++i) {
    Result<Thread> thread = Thread::start("budget", [&, i] {
      for (int call = 0; call < 200; ++call) {
        const auto buffers = static_cast<std::size_t>(1 + (call + i) % 7);
        const TransferBudget::Grant grant =
            budget.acquire(buffers, 1, Deadline::never(), *system_clock());
        if (grant) served.fetch_add(1);
        if (budget.buffers_in_flight() > 10) exceeded.store(true);
      }
    });
    ASSERT_TRUE(thread.ok());
    threads.push_back(std::move(thread).value());
  }
  for (Thread& thread : threads) thread.join();
  EXPECT_EQ(served.load(), 800);
  EXPECT_FALSE(exceeded.load());
  EXPECT_EQ(budget.buffers_in_flight(), 0u);
}

TEST(TransferBudget, WhoeverGivesUpDoesNotBlockThoseBehind) {
  TransferBudget budget({.buffers = 10, .bytes = 100});
  const SimClock clock(std::chrono::milliseconds(10));
  const TransferBudget::Grant held = budget.acquire(5, 5, Deadline::never(), clock);
  EXPECT_FALSE(budget.acquire(6, 6, Deadline::after(clock, std::chrono::seconds(1)), clock));
  EXPECT_TRUE(budget.acquire(5, 5, Deadline::after(clock, std::chrono::seconds(1)), clock));
}

}  // namespace
}  // namespace kvc
