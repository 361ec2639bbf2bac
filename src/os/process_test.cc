#include "os/process.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <future>
#include <stdexcept>
#include <thread>

#include "os/thread.h"

namespace kvc {
namespace {

TEST(ProcessDeathTest, SkipsEarlierExitHandlersAndKeepsTheStatus) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(
      {
        std::atexit([] { std::_Exit(99); });
        skip_registered_exit_handlers();
        std::atexit([] { std::fputs("later handlers run", stderr); });
        std::exit(7);
      },
      ::testing::ExitedWithCode(7), "later handlers run");
}

void end_this_thread() noexcept { ::pthread_exit(nullptr); }

TEST(ProcessDeathTest, ThreadThatIsUnwoundWaitsAndOthersEndTheProcess) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(
      {
        park_threads_that_are_unwound();
        std::promise<void> begun;
        std::thread unwound([&begun] {
          begun.set_value();
          end_this_thread();
        });
        begun.get_future().wait();
        const auto parked = [&unwound] {
          return ::pthread_tryjoin_np(unwound.native_handle(), nullptr) == EBUSY;
        };
        std::this_thread::sleep_for(std::chrono::milliseconds(50));  // For an abort to come.
        const int status = parked() ? 7 : 8;
        unwound.detach();
        std::_Exit(status);
      },
      ::testing::ExitedWithCode(7), "");
}

TEST(ProcessDeathTest, NobodyWaitsForAThreadThatIsUnwound) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(
      {
        park_threads_that_are_unwound();
        {
          const Result<Thread> unwound = Thread::start("unwound", [] { end_this_thread(); });
        }
        std::_Exit(7);
      },
      ::testing::ExitedWithCode(7), "");
}

TEST(ProcessDeathTest, OtherReasonsToTerminateStillDo) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_DEATH(
      {
        park_threads_that_are_unwound();
        std::thread([] { throw std::runtime_error("nobody catches this"); }).join();
      },
      "nobody catches this");
  EXPECT_DEATH(
      {
        park_threads_that_are_unwound();
        std::terminate();
      },
      "without an active exception");
}

}  // namespace
}  // namespace kvc
