#include "store/wrap/deadline_store.h"

#include <atomic>
#include <functional>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/hand_over.h"
#include "base/mutex.h"
#include "os/thread.h"
#include "store/item_traits.h"

namespace kvc {
namespace {

/// What the decorator and its tasks share. Does not own the executor: a task must not be what ends
/// its own threads.
struct Shared {
  Shared(std::shared_ptr<Store> store, std::shared_ptr<StoreCallCounters> counts)
      : inner(std::move(store)), counters(std::move(counts)) {}

  const std::shared_ptr<Store> inner;
  const std::shared_ptr<StoreCallCounters> counters;
  std::atomic<bool> closed{false};
  std::atomic<std::size_t> copying{0};
};

/// The right to be one of few replicate() inside, until the last hold on its buffers goes.
class CopyTurn {
 public:
  /// Null: others have them all.
  static BufferHold take(std::shared_ptr<Shared> shared, std::size_t most, BufferHold also) {
    auto turn = std::make_shared<CopyTurn>();
    turn->shared_ = std::move(shared);
    turn->also_ = std::move(also);
    if (turn->shared_->copying.fetch_add(1) >= most) return nullptr;
    return turn;
  }

  CopyTurn() = default;
  CopyTurn(const CopyTurn&) = delete;
  CopyTurn& operator=(const CopyTurn&) = delete;
  ~CopyTurn() {
    if (shared_ != nullptr) shared_->copying.fetch_sub(1);
  }

 private:
  std::shared_ptr<Shared> shared_;
  BufferHold also_;
};

/// How waiting for a task ended.
enum class Wait {
  kDone,
  kNotStarted,  ///< The task will do nothing.
  kAbandoned,   ///< The task is in the inner store.
};

/// A piece of work on its way through the executor. The waiter and the task agree under the mutex
/// on who comes first.
template <typename Answer>
class PendingCall {
 public:
  explicit PendingCall(std::function<Answer()> work) : work_(std::move(work)) {}

  /// The task's side. `abandoned_now` is lowered once an abandoned call is over.
  void run(std::atomic<std::uint64_t>& abandoned_now) {
    std::function<Answer()> work;
    {
      const MutexLock lock(mutex_);
      if (phase_ != Phase::kQueued) return;
      phase_ = Phase::kRunning;
      work = std::move(work_);
    }
    Answer answer = work();
    work = nullptr;  // releases the hold before anybody learns that the call is over
    const MutexLock lock(mutex_);
    if (phase_ == Phase::kGivenUp) {
      abandoned_now.fetch_sub(1);
      return;
    }
    phase_ = Phase::kDone;
    answer_ = std::move(answer);
    changed_.notify_all();
  }

  /// The waiter's side, once. With kDone `answer` is the work's.
  Wait wait(Deadline deadline, const Clock& clock, StoreCallCounters& counters, Answer& answer) {
    std::function<Answer()> dropped;  // destroyed after the lock
    const MutexLock lock(mutex_);
    while (phase_ != Phase::kDone && !deadline.passed(clock)) {
      changed_.wait_until(mutex_, deadline.at);
    }
    if (phase_ == Phase::kDone) {
      answer = std::move(answer_);
      return Wait::kDone;
    }
    const bool started = phase_ == Phase::kRunning;
    phase_ = Phase::kGivenUp;
    if (!started) {
      dropped = std::move(work_);
      return Wait::kNotStarted;
    }
    counters.abandoned.fetch_add(1);
    counters.abandoned_now.fetch_add(1);
    return Wait::kAbandoned;
  }

 private:
  enum class Phase { kQueued, kRunning, kDone, kGivenUp };

  Mutex mutex_;
  CondVar changed_;
  Phase phase_ KVC_GUARDED_BY(mutex_) = Phase::kQueued;
  std::function<Answer()> work_ KVC_GUARDED_BY(mutex_);
  Answer answer_ KVC_GUARDED_BY(mutex_) = {};
};

class DeadlineStore final : public Store {
 public:
  DeadlineStore(std::shared_ptr<Store> inner, std::shared_ptr<Executor> executor,
                std::shared_ptr<const Clock> clock, std::shared_ptr<StoreCallCounters> counters,
                DeadlineStoreOptions options)
      : shared_(std::make_shared<Shared>(std::move(inner), std::move(counters))),
        executor_(std::move(executor)),
        clock_(std::move(clock)),
        options_(std::move(options)) {}

  StoreCapabilities capabilities() const override { return shared_->inner->capabilities(); }

  std::vector<Reaction> exists(std::vector<std::string> keys, CallContext context) override {
    return call(&Store::exists, std::move(keys), std::move(context));
  }
  std::vector<PutResult> put(std::vector<PutItem> items, CallContext context) override {
    return transfer(&Store::put, std::move(items), std::move(context));
  }
  std::vector<GetResult> get(std::vector<GetItem> items, CallContext context) override {
    return transfer(&Store::get, std::move(items), std::move(context));
  }
  std::vector<Reaction> remove(std::vector<std::string> keys, CallContext context) override {
    return call(&Store::remove, std::move(keys), std::move(context));
  }
  std::vector<Reaction> replicate(std::vector<ReplicaItem> items, CallContext context) override {
    if (items.empty()) return {};
    // Copying waits for most of its time, and lookups need the threads.
    context.hold = CopyTurn::take(shared_, options_.max_replicating, std::move(context.hold));
    if (context.hold == nullptr) return all_not_done<Reaction>(items.size(), Reaction::kBackOff);
    return transfer(&Store::replicate, std::move(items), std::move(context));
  }

  Status register_memory(std::span<std::byte> memory) override {
    return control("register_memory",
                   [memory](Store& store) { return store.register_memory(memory); });
  }
  Status unregister_memory(std::span<std::byte> memory) override {
    return control("unregister_memory",
                   [memory](Store& store) { return store.unregister_memory(memory); });
  }

  void close(Deadline deadline) override {
    if (shared_->closed.exchange(true)) return;
    bool closed = false;
    run_until<bool>(
        *executor_, deadline,
        [shared = shared_, deadline] {
          shared->inner->close(deadline);
          return true;
        },
        closed);
  }

 private:
  template <typename Item, typename Answer>
  using Method = std::vector<Answer> (Store::*)(std::vector<Item>, CallContext);

  template <typename Item, typename Answer>
  std::vector<Answer> call(Method<Item, Answer> method, std::vector<Item> items,
                           CallContext context) {
    return call_on(*executor_, method, std::move(items), std::move(context));
  }

  template <typename Item, typename Answer>
  std::vector<Answer> transfer(Method<Item, Answer> method, std::vector<Item> items,
                               CallContext context) {
    Executor& executor = options_.transfers == nullptr ? *executor_ : *options_.transfers;
    return call_on(executor, method, std::move(items), std::move(context));
  }

  template <typename Item, typename Answer>
  std::vector<Answer> call_on(Executor& executor, Method<Item, Answer> method,
                              std::vector<Item> items, CallContext context) {
    StoreCallCounters& counters = *shared_->counters;
    const std::size_t count = items.size();
    if (count == 0) return {};
    const Deadline deadline = context.deadline;
    if (shared_->closed.load() || deadline.passed(*clock_) ||
        counters.abandoned_now.load() >= options_.max_abandoned) {
      counters.refused.fetch_add(1);
      return all_not_done<Answer>(count, Reaction::kDown);
    }
    std::vector<Answer> answers;
    const Wait end = run_until<std::vector<Answer>>(
        executor, deadline,
        [shared = shared_, method, items = std::move(items),
         context = std::move(context)]() mutable {
          shared->counters->calls.fetch_add(1);
          shared->counters->items.fetch_add(items.size());
          return (shared->inner.get()->*method)(std::move(items), context);
        },
        answers);
    switch (end) {
      case Wait::kDone:
        KVC_CHECK(answers.size() == count, "a store answered with a wrong number of results");
        return answers;
      case Wait::kNotStarted:
        counters.refused.fetch_add(1);
        return all_not_done<Answer>(count, Reaction::kDown);
      case Wait::kAbandoned:
        break;
    }
    return std::vector<Answer>(count, reply_lost<Answer>());
  }

  Status control(const char* what, std::function<Status(Store&)> work) {
    if (shared_->closed.load()) {
      return {Code::kUnavailable, std::string(what) + ": the store is closed"};
    }
    Status status;
    const Wait end = run_until<Status>(
        *executor_, Deadline::after(*clock_, options_.registration_budget),
        [shared = shared_, work = std::move(work)] { return work(*shared->inner); }, status);
    if (end == Wait::kDone) return status;
    return {Code::kTimedOut, std::string(what) +
                                 ": the store did not answer in time; the memory must stay "
                                 "allocated until the store is gone"};
  }

  template <typename Answer>
  Wait run_until(Executor& executor, Deadline deadline, std::function<Answer()> work,
                 Answer& answer) {
    const auto pending = std::make_shared<PendingCall<Answer>>(std::move(work));
    const bool taken = hand_over(
        executor, [shared = shared_, pending] { pending->run(shared->counters->abandoned_now); });
    if (!taken) return Wait::kNotStarted;
    return pending->wait(deadline, *clock_, *shared_->counters, answer);
  }

  const std::shared_ptr<Shared> shared_;
  const std::shared_ptr<Executor> executor_;
  const std::shared_ptr<const Clock> clock_;
  const DeadlineStoreOptions options_;
};

}  // namespace

std::shared_ptr<Store> make_deadline_store(std::shared_ptr<Store> inner,
                                           std::shared_ptr<Executor> executor,
                                           std::shared_ptr<const Clock> clock,
                                           std::shared_ptr<StoreCallCounters> counters,
                                           DeadlineStoreOptions options) {
  return std::make_shared<DeadlineStore>(std::move(inner), std::move(executor), std::move(clock),
                                         std::move(counters), std::move(options));
}

std::shared_ptr<Executor> make_call_threads(ThreadPoolOptions options,
                                            std::shared_ptr<StoreCallCounters> counters) {
  // With the pool goes the last user of its store, so that no call can be given up any more.
  const auto end = [counters = std::move(counters)](Executor* threads) {
    if (counters->abandoned_now.load() == 0) return delete threads;
    try {
      Result<Thread> reaper = Thread::start("kvc-reaper", [threads] { delete threads; });
      if (reaper.ok()) reaper->detach();  // Else they are never ended.
    } catch (const std::exception&) {     // No memory: the same.
    }
  };
  return {make_thread_pool(std::move(options)).release(), end};
}

}  // namespace kvc
