// A pool of threads whose callers run out of memory.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>

#include "base/hand_over.h"
#include "kvc/executor.h"
#include "tests/out_of_memory/failing_new.h"

namespace kvc::testlib {
namespace {

TEST(OutOfMemoryInAThreadPool, TasksRunOrAreNotTaken) {
  for (const Shortage shortage : {Shortage::kOnce, Shortage::kFromThenOn}) {
    const std::size_t points = at_every_allocation(shortage, [] {
      std::unique_ptr<Executor> pool = make_thread_pool({.name = "short", .threads = 3});
      std::atomic<int> ran = 0;
      int taken = 0;
      for (int i = 0; i < 8; ++i) {
        const Armed armed;
        if (hand_over(*pool, [&ran] { ++ran; })) ++taken;
      }
      pool.reset();  // Runs what was taken.
      EXPECT_EQ(ran, taken);
    });
    EXPECT_GT(points, 3u);
  }
}

}  // namespace
}  // namespace kvc::testlib
