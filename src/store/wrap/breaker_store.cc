#include "store/wrap/breaker_store.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "store/item_traits.h"

namespace kvc {
namespace {

enum class Verdict { kGood, kFailed, kSaysNothing };

template <typename Answer>
Verdict judge(const std::vector<Answer>& answers) {
  bool answered = false;
  for (const Answer& answer : answers) {
    if (reaction_of(answer) == Reaction::kDown) return Verdict::kFailed;
    if (reaction_of(answer) != Reaction::kCallerBug) answered = true;
  }
  return answered ? Verdict::kGood : Verdict::kSaysNothing;
}

std::string in_milliseconds(Duration duration) {
  return std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(duration).count()) +
         " ms";
}

/// The state machine. Safe to use from any thread.
class Breaker {
 public:
  /// Which state a call was let in under; its answer counts only while that lasts.
  using Epoch = std::uint64_t;

  struct Change {
    bool opened = false;
    bool closed = false;
    Duration time{0};  // until the next probe, or since the breaker opened
  };

  Breaker(BreakerStoreOptions options, std::shared_ptr<const Clock> clock)
      : options_(options), clock_(std::move(clock)), pause_(options.first_pause) {}

  /// Empty: do not call.
  std::optional<Epoch> admit() {
    const MutexLock lock(mutex_);
    if (state_ == State::kClosed) return epoch_;
    if (state_ == State::kProbing || clock_->now() < probe_at_) return std::nullopt;
    state_ = State::kProbing;
    return ++epoch_;
  }

  /// Whether calls pass that are never to be the probe.
  bool is_closed() const {
    const MutexLock lock(mutex_);
    return state_ == State::kClosed;
  }

  Change settle(Epoch epoch, Verdict verdict) {
    const MutexLock lock(mutex_);
    if (epoch != epoch_) return {};
    return state_ == State::kClosed ? settle_closed(verdict) : settle_probe(verdict);
  }

 private:
  enum class State { kClosed, kOpen, kProbing };

  Change settle_closed(Verdict verdict) KVC_REQUIRES(mutex_) {
    if (verdict == Verdict::kGood) failures_ = 0;
    if (verdict != Verdict::kFailed || ++failures_ < options_.failures_to_open) return {};
    opened_at_ = clock_->now();
    open();
    return {true, false, pause_};
  }

  Change settle_probe(Verdict verdict) KVC_REQUIRES(mutex_) {
    switch (verdict) {
      case Verdict::kGood:
        state_ = State::kClosed;
        ++epoch_;
        failures_ = 0;
        pause_ = options_.first_pause;
        return {false, true, clock_->now() - opened_at_};
      case Verdict::kFailed:
        pause_ = std::min(2 * pause_, options_.longest_pause);
        open();
        break;
      case Verdict::kSaysNothing:
        // The next call may probe at once.
        state_ = State::kOpen;
        ++epoch_;
        break;
    }
    return {};
  }

  void open() KVC_REQUIRES(mutex_) {
    state_ = State::kOpen;
    ++epoch_;
    probe_at_ = clock_->now() + pause_;
  }

  const BreakerStoreOptions options_;
  const std::shared_ptr<const Clock> clock_;
  mutable Mutex mutex_;
  State state_ KVC_GUARDED_BY(mutex_) = State::kClosed;
  Epoch epoch_ KVC_GUARDED_BY(mutex_) = 0;
  std::uint32_t failures_ KVC_GUARDED_BY(mutex_) = 0;  // in a row, while closed
  Duration pause_ KVC_GUARDED_BY(mutex_);
  Instant probe_at_ KVC_GUARDED_BY(mutex_);
  Instant opened_at_ KVC_GUARDED_BY(mutex_);
};

class BreakerStore final : public Store {
 public:
  BreakerStore(std::shared_ptr<Store> inner, std::shared_ptr<const Clock> clock,
               std::shared_ptr<Logger> logger, std::shared_ptr<StoreCallCounters> counters,
               BreakerStoreOptions options)
      : inner_(std::move(inner)),
        clock_(clock),
        logger_(std::move(logger)),
        counters_(std::move(counters)),
        breaker_(options, std::move(clock)) {}

  StoreCapabilities capabilities() const override { return inner_->capabilities(); }

  std::vector<Reaction> exists(std::vector<std::string> keys, CallContext context) override {
    return call(&Store::exists, std::move(keys), std::move(context));
  }
  std::vector<PutResult> put(std::vector<PutItem> items, CallContext context) override {
    return call(&Store::put, std::move(items), std::move(context));
  }
  std::vector<GetResult> get(std::vector<GetItem> items, CallContext context) override {
    return call(&Store::get, std::move(items), std::move(context));
  }
  std::vector<Reaction> remove(std::vector<std::string> keys, CallContext context) override {
    return call(&Store::remove, std::move(keys), std::move(context));
  }
  std::vector<Reaction> replicate(std::vector<ReplicaItem> items, CallContext context) override {
    if (items.empty()) return {};
    if (context.deadline.passed(*clock_) || !breaker_.is_closed()) {
      return refuse<Reaction>(items.size());
    }
    return inner_->replicate(std::move(items), std::move(context));
  }

  Status register_memory(std::span<std::byte> memory) override {
    return inner_->register_memory(memory);
  }
  Status unregister_memory(std::span<std::byte> memory) override {
    return inner_->unregister_memory(memory);
  }
  void close(Deadline deadline) override { inner_->close(deadline); }

 private:
  template <typename Item, typename Answer>
  std::vector<Answer> call(std::vector<Answer> (Store::*method)(std::vector<Item>, CallContext),
                           std::vector<Item> items, CallContext context) {
    const std::size_t count = items.size();
    // An empty batch and an impatient caller are no evidence against the store.
    if (count == 0) return {};
    if (context.deadline.passed(*clock_)) return refuse<Answer>(count);
    const std::optional<Breaker::Epoch> epoch = breaker_.admit();
    if (!epoch) return refuse<Answer>(count);
    std::vector<Answer> answers = (inner_.get()->*method)(std::move(items), std::move(context));
    tell(breaker_.settle(*epoch, judge(answers)));
    return answers;
  }

  template <typename Answer>
  std::vector<Answer> refuse(std::size_t count) {
    counters_->refused.fetch_add(1);
    return all_not_done<Answer>(count, Reaction::kDown);
  }

  void tell(const Breaker::Change& change) {
    if (change.opened) {
      counters_->breaker_opened.fetch_add(1);
      logger_->log(LogLevel::kWarning, "the store counts as down; it is tried again after " +
                                           in_milliseconds(change.time) +
                                           ", then ever more seldom");
    }
    if (change.closed) {
      logger_->log(LogLevel::kInfo,
                   "the store answers again after " + in_milliseconds(change.time));
    }
  }

  const std::shared_ptr<Store> inner_;
  const std::shared_ptr<const Clock> clock_;
  const std::shared_ptr<Logger> logger_;
  const std::shared_ptr<StoreCallCounters> counters_;
  Breaker breaker_;
};

}  // namespace

std::shared_ptr<Store> make_breaker_store(std::shared_ptr<Store> inner,
                                          std::shared_ptr<const Clock> clock,
                                          std::shared_ptr<Logger> logger,
                                          std::shared_ptr<StoreCallCounters> counters,
                                          BreakerStoreOptions options) {
  return std::make_shared<BreakerStore>(std::move(inner), std::move(clock), std::move(logger),
                                        std::move(counters), options);
}

}  // namespace kvc
