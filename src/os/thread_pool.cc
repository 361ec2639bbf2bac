#include <deque>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/mutex.h"
#include "kvc/executor.h"
#include "os/thread.h"

namespace kvc {
namespace {

constexpr std::size_t kNameLength = 11;

/// What pool and threads share. It outlives the pool when a task drops the last reference to it.
struct PoolState {
  Mutex mutex;
  CondVar work;
  std::deque<std::function<void()>> queue KVC_GUARDED_BY(mutex);
  std::size_t idle KVC_GUARDED_BY(mutex) = 0;
  bool stopping KVC_GUARDED_BY(mutex) = false;
};

/// Takes the next task, waiting for one. Empty: the pool stops and nothing is queued.
std::function<void()> next_task(PoolState& state) {
  const MutexLock lock(state.mutex);
  ++state.idle;
  while (state.queue.empty() && !state.stopping) state.work.wait(state.mutex);
  --state.idle;
  if (state.queue.empty()) return nullptr;
  std::function<void()> task = std::move(state.queue.front());
  state.queue.pop_front();
  return task;
}

class ThreadPool final : public Executor {
 public:
  explicit ThreadPool(ThreadPoolOptions options)
      : options_(std::move(options)), state_(std::make_shared<PoolState>()) {
    options_.name.resize(std::min(options_.name.size(), kNameLength));
    // A thread that has started needs its place: what is thrown would wait for it, under the lock.
    const MutexLock lock(state_->mutex);
    threads_.reserve(options_.threads);
  }

  ~ThreadPool() override {
    std::vector<Thread> threads;
    {
      const MutexLock lock(state_->mutex);
      state_->stopping = true;
      threads.swap(threads_);
    }
    state_->work.notify_all();
    for (Thread& thread : threads) {
      // A task may hold the last reference to the pool's owner; its thread cannot wait for itself.
      if (thread.is_current()) {
        thread.detach();
      } else {
        thread.join();
      }
    }
  }

  bool submit(std::function<void()> task) override {
    KVC_CHECK(task != nullptr, "an empty task was submitted");
    {
      const MutexLock lock(state_->mutex);
      const std::size_t waiting = state_->queue.size();
      if (state_->stopping || waiting >= options_.queue_limit) return false;
      if (state_->idle <= waiting && threads_.size() < options_.threads) add_thread();
      if (threads_.empty()) return false;
      state_->queue.push_back(std::move(task));
    }
    state_->work.notify_one();
    return true;
  }

 private:
  /// Without effect if the system has no thread to give: the others then do the work.
  void add_thread() KVC_REQUIRES(state_->mutex) {
    Result<Thread> thread = Thread::start(options_.name + "-" + std::to_string(threads_.size()),
                                          [state = state_, niceness = options_.niceness] {
                                            if (niceness > 0) Thread::yield_to_others(niceness);
                                            while (std::function<void()> task = next_task(*state))
                                              task();
                                          });
    if (thread.ok()) threads_.push_back(std::move(thread).value());
  }

  ThreadPoolOptions options_;
  const std::shared_ptr<PoolState> state_;
  std::vector<Thread> threads_ KVC_GUARDED_BY(state_->mutex);
};

}  // namespace

std::unique_ptr<Executor> make_thread_pool(ThreadPoolOptions options) {
  return std::make_unique<ThreadPool>(std::move(options));
}

}  // namespace kvc
