// Loads of many bytes from the host tier, whose copies several threads make.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <set>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/random.h"
#include "connector/worker_fixture.h"
#include "kvc/clock.h"
#include "kvc/executor.h"
#include "kvc/stage.h"
#include "kvc/worker.h"
#include "store/memory/memory_store.h"

namespace kvc {
namespace {

constexpr Fingerprint kKeyspace{std::byte{1}};
constexpr std::size_t kPage = std::size_t{256} << 10;
constexpr std::size_t kBlocks = 24;

/// Threads, of which a test may keep all tasks back.
class HeldExecutor : public Executor {
 public:
  bool submit(std::function<void()> task) override {
    {
      const MutexLock lock(mutex_);
      if (refuses_) return false;
      if (holds_) {
        held_.push_back(std::move(task));
        return true;
      }
    }
    return pool_->submit(std::move(task));
  }
  void hold() {
    const MutexLock lock(mutex_);
    holds_ = true;
  }
  void refuse() {
    const MutexLock lock(mutex_);
    refuses_ = true;
  }
  std::size_t run_held() {
    std::vector<std::function<void()>> tasks;
    {
      const MutexLock lock(mutex_);
      tasks.swap(held_);
    }
    for (const auto& task : tasks) task();
    return tasks.size();
  }

 private:
  Mutex mutex_;
  bool holds_ KVC_GUARDED_BY(mutex_) = false;
  bool refuses_ KVC_GUARDED_BY(mutex_) = false;
  std::vector<std::function<void()>> held_ KVC_GUARDED_BY(mutex_);
  std::unique_ptr<Executor> pool_ = make_thread_pool({.name = "copies", .threads = 4});
};

/// Several threads may copy; counts the copies into each page.
class CountingCopier final : public WatchedCopier {
 public:
  bool concurrent() const override { return true; }
  Status copy_in(const PageGroup& group, SlotIndex slot, std::span<const std::byte> staging,
                 StreamHandle stream) override {
    ++copies_[static_cast<std::size_t>(slot)];
    return WatchedCopier::copy_in(group, slot, staging, stream);
  }

  int copies(std::size_t slot) const { return copies_[slot]; }

 private:
  std::array<std::atomic<int>, kBlocks> copies_{};
};

class PageCopiesTest : public testing::Test {
 protected:
  PageCopiesTest() : memory_(kBlocks * kPage) {
    Random(1).fill(memory_);
    expected_ = memory_;
    WorkerOptions options{.tokens_per_block = 32, .staged = true};
    options.save_queue_bytes = memory_.size();
    options.staging_bytes = 3 * memory_.size();
    worker_ = std::move(Worker::create(options, {.store = make_memory_store({}),
                                                 .executor = executor_,
                                                 .clock = system_clock(),
                                                 .logger = make_stderr_logger(LogLevel::kError),
                                                 .copier = copier_}))
                  .value();
    PageGroup group;
    group.layers = {0};
    group.regions = {{memory_.data(), kPage, kPage, kBlocks}};
    EXPECT_TRUE(worker_->register_layout(kKeyspace, {.groups = {group}}).ok());
    for (std::size_t b = 0; b < kBlocks; ++b) {
      BlockHash hash;
      std::memcpy(hash.bytes.data(), &b, sizeof(b));
      tasks_.push_back({.request = 1, .block = hash, .slot = static_cast<SlotIndex>(b)});
    }
    worker_->bind({.keyspace = kKeyspace, .loads = {}, .saves = tasks_});
    EXPECT_TRUE(worker_->save(0).empty());
    EXPECT_TRUE(worker_->drain(Deadline::after(*system_clock(), std::chrono::seconds(60))));
  }

  /// Loads all blocks and compares every byte.
  void load() {
    std::ranges::fill(memory_, std::byte{0});
    worker_->bind({.keyspace = kKeyspace, .loads = tasks_, .saves = {}});
    EXPECT_TRUE(worker_->load(0).empty());
    EXPECT_TRUE(memory_ == expected_);
    loaded_ += kBlocks;
    EXPECT_EQ(worker_->stats().tier_hits, loaded_);
  }

  std::shared_ptr<HeldExecutor> executor_ = std::make_shared<HeldExecutor>();
  std::shared_ptr<CountingCopier> copier_ = std::make_shared<CountingCopier>();
  std::vector<std::byte> memory_;
  std::vector<std::byte> expected_;
  std::vector<PageTask> tasks_;
  std::size_t loaded_ = 0;
  std::unique_ptr<Worker> worker_;
};

TEST_F(PageCopiesTest, ThreadsThatHelpLeaveEveryByteInPlace) {
  for (int i = 0; i < 50; ++i) load();
}

TEST_F(PageCopiesTest, HelpersThatNeverComeAreNotWaitedFor) {
  executor_->hold();
  load();
  load();
}

TEST_F(PageCopiesTest, HelpersThatComeLateTouchNothing) {
  executor_->hold();
  load();
  std::ranges::fill(memory_, std::byte{7});
  const std::vector<std::byte> others = memory_;
  EXPECT_GT(executor_->run_held(), 0u);
  EXPECT_TRUE(memory_ == others);
}

TEST_F(PageCopiesTest, APageThatSeveralTasksWantIsFilledOnce) {
  std::vector<PageTask> twice = tasks_;
  for (PageTask task : tasks_) {
    task.request = 2;
    twice.insert(twice.begin() + task.slot, task);
  }
  std::ranges::fill(memory_, std::byte{0});
  worker_->bind({.keyspace = kKeyspace, .loads = twice, .saves = {}});
  EXPECT_TRUE(worker_->load(0).empty());
  EXPECT_TRUE(memory_ == expected_);
  for (std::size_t slot = 0; slot < kBlocks; ++slot) EXPECT_EQ(copier_->copies(slot), 1);
  EXPECT_EQ(worker_->stats().blocks_loaded, kBlocks);
  // One that fails is told to all who want it.
  copier_->before_copy_in = [](SlotIndex slot) {
    if (slot == 3) throw std::runtime_error("no");
    return Status();
  };
  worker_->bind({.keyspace = kKeyspace, .loads = twice, .saves = {}});
  std::set<RequestId> failed;
  for (const LoadFailure& failure : worker_->load(0)) failed.insert(failure.request);
  EXPECT_EQ(failed, (std::set<RequestId>{1, 2}));
}

TEST_F(PageCopiesTest, WhateverACopyThrowsAllOthersAreAwaited) {
  const std::vector<std::function<void()>> throwers = {
      [] { throw std::runtime_error("a reason"); },
      [] { throw std::bad_alloc(); },
      [] { throw 42; },
  };
  for (const auto& thrower : throwers) {
    std::atomic<int> inside = 0;
    copier_->before_copy_in = [&](SlotIndex slot) {
      ++inside;
      const std::shared_ptr<void> leaves(nullptr, [&](void*) { --inside; });
      if (slot % 5 == 0) thrower();
      return Status();
    };
    std::ranges::fill(memory_, std::byte{0});
    worker_->bind({.keyspace = kKeyspace, .loads = tasks_, .saves = {}});
    const std::vector<LoadFailure> failures = worker_->load(0);
    EXPECT_EQ(inside, 0);
    EXPECT_EQ(failures.size(), (kBlocks + 4) / 5);
    for (std::size_t slot = 0; slot < kBlocks; ++slot) {
      if (slot % 5 == 0) continue;
      EXPECT_EQ(memory_[slot * kPage], expected_[slot * kPage]) << slot;
    }
  }
}

TEST_F(PageCopiesTest, WithoutAnExecutorTheCallerCopiesAlone) {
  executor_->refuse();
  load();
}

}  // namespace
}  // namespace kvc
