// A store whose existence probes lease what they find, as Mooncake's do.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "testing/passing_store.h"
#include "testing/sim_clock.h"

namespace kvc::testlib {

/// Safe to use from any thread.
class LeasingStore final : public PassingStore {
 public:
  /// Without a clock it only says that there are leases.
  LeasingStore(std::shared_ptr<Store> inner, Duration lease,
               std::shared_ptr<SimClock> clock = nullptr)
      : PassingStore(std::move(inner)), lease_(lease), clock_(std::move(clock)) {}

  StoreCapabilities capabilities() const override {
    StoreCapabilities all = inner_->capabilities();
    all.lease = lease_;
    return all;
  }

  std::vector<Reaction> exists(std::vector<std::string> keys, CallContext context) override {
    std::vector<Reaction> reactions = inner_->exists(keys, std::move(context));
    if (clock_ == nullptr) return reactions;
    const Instant now = clock_->now();
    const MutexLock lock(mutex_);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (reactions[i] == Reaction::kOk) leased_until_[keys[i]] = now + lease_;
    }
    return reactions;
  }

  /// Evicts an object, unless it is leased. Whether it went.
  bool evict(const std::string& key) {
    {
      const MutexLock lock(mutex_);
      const auto found = leased_until_.find(key);
      if (found != leased_until_.end() && found->second > clock_->now()) return false;
    }
    return inner_->remove({key}, {}).front() == Reaction::kOk;
  }

 private:
  const Duration lease_;
  const std::shared_ptr<SimClock> clock_;
  mutable Mutex mutex_;
  std::map<std::string, Instant> leased_until_ KVC_GUARDED_BY(mutex_);
};

}  // namespace kvc::testlib
