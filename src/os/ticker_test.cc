#include "os/ticker.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace kvc {
namespace {

TEST(Ticker, CallsAgainAndAgain) {
  Mutex mutex;
  CondVar changed;
  int calls = 0;
  Result<std::unique_ptr<Ticker>> ticker =
      Ticker::start("ticks", std::chrono::microseconds(100), [&](const std::stop_token&) {
        const MutexLock lock(mutex);
        ++calls;
        changed.notify_all();
      });
  ASSERT_TRUE(ticker.ok());
  const MutexLock lock(mutex);
  while (calls < 3) changed.wait(mutex);
}

TEST(Ticker, EndsWithoutWaitingForTheNextCall) {
  std::atomic<int> calls = 0;
  {
    Result<std::unique_ptr<Ticker>> ticker =
        Ticker::start("ticks", std::chrono::hours(1), [&](const std::stop_token&) { ++calls; });
    ASSERT_TRUE(ticker.ok());
  }
  EXPECT_EQ(calls, 0);
}

TEST(Ticker, NoCallComesAfterItsEnd) {
  std::atomic<int> calls = 0;
  std::atomic<bool> ended = false;
  std::atomic<int> late = 0;
  Result<std::unique_ptr<Ticker>> ticker =
      Ticker::start("ticks", std::chrono::microseconds(1), [&](const std::stop_token&) {
        if (ended) ++late;
        ++calls;
      });
  ASSERT_TRUE(ticker.ok());
  while (calls == 0) {
  }
  ticker->reset();
  ended = true;
  EXPECT_EQ(late, 0);
}

TEST(Ticker, ACallThatIsUnderWayIsAskedToStop) {
  std::atomic<bool> begun = false;
  Result<std::unique_ptr<Ticker>> ticker =
      Ticker::start("ticks", std::chrono::microseconds(1), [&](const std::stop_token& stop) {
        begun = true;
        while (!stop.stop_requested()) std::this_thread::yield();
      });
  ASSERT_TRUE(ticker.ok());
  while (!begun) std::this_thread::yield();
  ticker->reset();
}

}  // namespace
}  // namespace kvc
