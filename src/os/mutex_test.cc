#include "base/mutex.h"

#include <gtest/gtest.h>

#include "os/thread.h"

namespace kvc {
namespace {

Thread start(std::function<void()> body) {
  Result<Thread> thread = Thread::start("test", std::move(body));
  EXPECT_TRUE(thread.ok()) << thread.status().to_string();
  return std::move(thread).value();
}

struct Counter {
  Mutex mutex;
  CondVar changed;
  int value KVC_GUARDED_BY(mutex) = 0;
};

TEST(Mutex, KeepsTwoThreadsApart) {
  Counter counter;
  const auto add = [&counter] {
    for (int i = 0; i < 20000; ++i) {
      const MutexLock lock(counter.mutex);
      ++counter.value;
    }
  };
  Thread other = start(add);
  add();
  other.join();
  const MutexLock lock(counter.mutex);
  EXPECT_EQ(counter.value, 40000);
}

TEST(CondVar, WakesTheWaitingThread) {
  Counter counter;
  Thread other = start([&counter] {
    const MutexLock lock(counter.mutex);
    counter.value = 1;
    counter.changed.notify_all();
  });
  {
    const MutexLock lock(counter.mutex);
    while (counter.value == 0) counter.changed.wait(counter.mutex);
    EXPECT_EQ(counter.value, 1);
  }
  other.join();
}

TEST(CondVar, WaitUntilWithoutAnEndStillWakes) {
  Counter counter;
  Thread other = start([&counter] {
    const MutexLock lock(counter.mutex);
    counter.value = 1;
    counter.changed.notify_all();
  });
  {
    const MutexLock lock(counter.mutex);
    while (counter.value == 0) {
      EXPECT_TRUE(counter.changed.wait_until(counter.mutex, Instant::max()));
    }
  }
  other.join();
}

TEST(CondVar, WaitUntilEndsAtAnInstantThatHasPassed) {
  Counter counter;
  const MutexLock lock(counter.mutex);
  EXPECT_FALSE(counter.changed.wait_until(counter.mutex, Instant{}));
  counter.value = 1;  // Still holding the lock.
}

}  // namespace
}  // namespace kvc
