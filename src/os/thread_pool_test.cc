#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <set>

#include "base/mutex.h"
#include "kvc/executor.h"

namespace kvc {
namespace {

/// A gate that tasks wait at until the test opens it.
class Gate {
 public:
  void open() {
    const MutexLock lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

  void pass() {
    const MutexLock lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    while (!open_) changed_.wait(mutex_);
  }

  void await_waiting(int count) {
    const MutexLock lock(mutex_);
    while (waiting_ < count) changed_.wait(mutex_);
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool open_ KVC_GUARDED_BY(mutex_) = false;
  int waiting_ KVC_GUARDED_BY(mutex_) = 0;
};

TEST(ThreadPool, RunsEveryTaskOnceBeforeItEnds) {
  std::atomic<int> ran{0};
  {
    const auto pool = make_thread_pool({.name = "kvc", .threads = 3, .queue_limit = 1000});
    for (int i = 0; i < 1000; ++i) ASSERT_TRUE(pool->submit([&ran] { ++ran; }));
  }
  EXPECT_EQ(ran, 1000);
}

TEST(ThreadPool, ItsThreadsYieldByTheNicenessThatIsSetAndNoOtherDoes) {
  const int ours = getpriority(PRIO_PROCESS, 0);
  std::atomic<int> theirs{-100};
  std::atomic<int> next{-100};
  {
    const auto pool = make_thread_pool({.name = "kvc", .threads = 1, .niceness = 3});
    ASSERT_TRUE(pool->submit([&theirs] { theirs = getpriority(PRIO_PROCESS, 0); }));
    const auto other = make_thread_pool({.name = "kvc", .threads = 1});
    ASSERT_TRUE(other->submit([&next] { next = getpriority(PRIO_PROCESS, 0); }));
  }
  EXPECT_EQ(theirs, std::min(ours + 3, 19));
  EXPECT_EQ(next, ours);
  EXPECT_EQ(getpriority(PRIO_PROCESS, 0), ours);
}

TEST(ThreadPool, OneThreadKeepsTheOrder) {
  std::vector<int> order;
  {
    const auto pool = make_thread_pool({.name = "kvc", .threads = 1, .queue_limit = 100});
    for (int i = 0; i < 100; ++i) ASSERT_TRUE(pool->submit([&order, i] { order.push_back(i); }));
  }
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
}

TEST(ThreadPool, GrowsUpToItsThreadsWhileTheyAreBusy) {
  Gate gate;
  Mutex mutex;
  std::set<std::string> names;
  {
    const auto pool = make_thread_pool({.name = "kvc-growing-name", .threads = 3});
    for (int i = 0; i < 3; ++i) {
      ASSERT_TRUE(pool->submit([&] {
        std::array<char, 16> name{};
        pthread_getname_np(pthread_self(), name.data(), name.size());
        {
          const MutexLock lock(mutex);
          names.insert(name.data());
        }
        gate.pass();
      }));
    }
    gate.await_waiting(3);  // Fewer threads than tasks would stay here for ever.
    gate.open();
  }
  EXPECT_EQ(names, (std::set<std::string>{"kvc-growing-0", "kvc-growing-1", "kvc-growing-2"}));
}

TEST(ThreadPool, AnIdleThreadIsUsedBeforeAnotherIsStarted) {
  Mutex mutex;
  std::set<std::string> names;
  {
    const auto pool = make_thread_pool({.name = "kvc", .threads = 1});
    for (int i = 0; i < 10; ++i) {
      ASSERT_TRUE(pool->submit([&] {
        std::array<char, 16> name{};
        pthread_getname_np(pthread_self(), name.data(), name.size());
        const MutexLock lock(mutex);
        names.insert(name.data());
      }));
    }
  }
  EXPECT_EQ(names, (std::set<std::string>{"kvc-0"}));
}

TEST(ThreadPool, RefusesOneTaskTooManyAndTakesAgainLater) {
  Gate gate;
  std::atomic<int> ran{0};
  {
    const auto pool = make_thread_pool({.name = "kvc", .threads = 1, .queue_limit = 2});
    ASSERT_TRUE(pool->submit([&] { gate.pass(); }));
    gate.await_waiting(1);
    EXPECT_TRUE(pool->submit([&ran] { ++ran; }));
    EXPECT_TRUE(pool->submit([&ran] { ++ran; }));
    EXPECT_FALSE(pool->submit([&ran] { ran += 100; }));
    gate.open();
    gate.await_waiting(1);
  }
  EXPECT_EQ(ran, 2);
}

TEST(ThreadPool, ReleasesWhatATaskHeldWhenItIsDone) {
  auto held = std::make_shared<int>(0);
  std::weak_ptr<int> watch = held;
  Gate gate;
  const auto pool = make_thread_pool({.name = "kvc", .threads = 1});
  ASSERT_TRUE(pool->submit([held = std::move(held)] {}));
  ASSERT_TRUE(pool->submit([&gate] { gate.pass(); }));
  gate.await_waiting(1);  // The same thread has left the first task.
  EXPECT_TRUE(watch.expired());
  gate.open();
}

TEST(ThreadPool, MayBeDestroyedByItsOwnTask) {
  // Nobody joins the thread of that task, which may outlive the test: it shares what it touches.
  const auto gate = std::make_shared<Gate>();
  const auto done = std::make_shared<Gate>();
  done->open();
  std::shared_ptr<Executor> pool = make_thread_pool({.name = "kvc", .threads = 2});
  ASSERT_TRUE(pool->submit([gate, done, mine = pool]() mutable {
    gate->pass();
    mine.reset();
    done->pass();
  }));
  gate->await_waiting(1);
  pool.reset();
  gate->open();
  done->await_waiting(1);
}

TEST(ThreadPool, WithoutThreadsRefuses) {
  const auto pool = make_thread_pool({.name = "kvc", .threads = 0});
  EXPECT_FALSE(pool->submit([] {}));
}

}  // namespace
}  // namespace kvc
