// A store whose calls wait at a gate until the test lets them go, and which remembers every call.
//
//   GatedStore store(make_memory_store({}));
//   store.close_gate(GatePoint::kBeforeCall);
//   ... another thread calls store.get() ...
//   ASSERT_TRUE(store.wait_for_waiting(1));   // the call is at the gate now
//   ... look at what the caller's caller does meanwhile ...
//   store.open_gate();
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "kvc/store.h"
#include "store/store_op.h"

namespace kvc::testlib {

enum class GatePoint {
  kBeforeCall,   ///< The request is on its way: the inner store has seen nothing.
  kBeforeReply,  ///< The reply is on its way: the inner store has done the work.
};

struct StoreCall {
  StoreOp op;
  std::vector<std::string> keys;
  Deadline deadline;
};

/// Safe to use from any thread. The destructor requires that no call is inside.
class GatedStore final : public Store {
 public:
  explicit GatedStore(std::shared_ptr<Store> inner) : inner_(std::move(inner)) {}

  /// Calls that reach `point` from now on wait.
  void close_gate(GatePoint point);
  /// Lets every waiting call go, and all later ones pass.
  void open_gate();
  /// Lets the `count` calls go that have waited longest, or the next ones to come.
  void let_pass(std::size_t count);

  std::size_t waiting() const;
  /// Waits until `count` calls stand at the gate. False if that took longer than half a minute.
  bool wait_for_waiting(std::size_t count);

  /// Every call so far, in the order of arrival.
  std::vector<StoreCall> calls() const;
  std::size_t count(StoreOp op) const;
  /// Answers every item of the next calls with `reaction` instead of asking the inner store; kOk
  /// ends it.
  void answer_with(Reaction reaction);

  StoreCapabilities capabilities() const override { return inner_->capabilities(); }
  std::vector<Reaction> exists(std::vector<std::string> keys, CallContext context) override;
  std::vector<PutResult> put(std::vector<PutItem> items, CallContext context) override;
  std::vector<GetResult> get(std::vector<GetItem> items, CallContext context) override;
  std::vector<Reaction> remove(std::vector<std::string> keys, CallContext context) override;
  std::vector<Reaction> replicate(std::vector<ReplicaItem> items, CallContext context) override;
  Status register_memory(std::span<std::byte> memory) override;
  Status unregister_memory(std::span<std::byte> memory) override;
  void close(Deadline deadline) override { inner_->close(deadline); }

  /// Regions that are registered now.
  std::size_t registered() const;

 private:
  template <typename Result, typename Items, typename Call>
  std::vector<Result> guard(StoreOp op, Items items, CallContext context, Call call);
  void pass(GatePoint point);

  const std::shared_ptr<Store> inner_;
  mutable Mutex mutex_;
  CondVar changed_;
  bool closed_ KVC_GUARDED_BY(mutex_) = false;
  GatePoint point_ KVC_GUARDED_BY(mutex_) = GatePoint::kBeforeCall;
  std::size_t waiting_ KVC_GUARDED_BY(mutex_) = 0;
  std::size_t passes_ KVC_GUARDED_BY(mutex_) = 0;
  std::size_t registered_ KVC_GUARDED_BY(mutex_) = 0;
  Reaction answer_ KVC_GUARDED_BY(mutex_) = Reaction::kOk;
  std::vector<StoreCall> calls_ KVC_GUARDED_BY(mutex_);
};

}  // namespace kvc::testlib
