// An executor whose tasks run when the test says so, on the test's own thread.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <new>
#include <utility>

#include "base/mutex.h"
#include "kvc/executor.h"

namespace kvc::testlib {

/// Tasks wait in order until a step. Safe to submit to from any thread; step from one at a time.
/// Tasks that are left over are destroyed without having run.
class SteppableExecutor final : public Executor {
 public:
  /// At most `queue_limit` tasks wait; one more is refused.
  explicit SteppableExecutor(std::size_t queue_limit = 1024) : queue_limit_(queue_limit) {}

  bool submit(std::function<void()> task) override;

  std::size_t pending() const;
  /// Runs the oldest task. False if there is none.
  bool step() { return step_at(0); }
  /// Runs the task that `ahead` others precede. False if there is none.
  bool step_at(std::size_t ahead);
  /// Runs tasks, also those that they submit, until none is left or `limit` have run; returns how
  /// many ran.
  std::size_t run_all(std::size_t limit = 1'000'000);
  /// Refuses tasks from now on, as an executor does that is stopping.
  void refuse();

 private:
  const std::size_t queue_limit_;
  mutable Mutex mutex_;
  std::deque<std::function<void()>> tasks_ KVC_GUARDED_BY(mutex_);
  bool refusing_ KVC_GUARDED_BY(mutex_) = false;
};

/// Runs each task inside submit(), on the caller's thread.
class InlineExecutor final : public Executor {
 public:
  bool submit(std::function<void()> task) override {
    task();
    return true;
  }
};

/// Breaks instead of taking a task while that is switched on.
class ThrowingExecutor final : public Executor {
 public:
  explicit ThrowingExecutor(std::shared_ptr<Executor> inner) : inner_(std::move(inner)) {}
  bool submit(std::function<void()> task) override {
    if (throws) throw std::bad_alloc();
    return inner_->submit(std::move(task));
  }
  bool throws = true;

 private:
  const std::shared_ptr<Executor> inner_;
};

}  // namespace kvc::testlib
