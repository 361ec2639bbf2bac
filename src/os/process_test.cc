#include "os/process.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

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

}  // namespace
}  // namespace kvc
