#include "testing/gated_store.h"

#include <algorithm>
#include <utility>

#include "store/item_traits.h"

namespace kvc::testlib {
namespace {

// Only a broken test waits this long.
constexpr Duration kPatience = std::chrono::seconds(30);

}  // namespace

template <typename Result, typename Items, typename Call>
std::vector<Result> GatedStore::guard(StoreOp op, Items items, CallContext context, Call call) {
  std::vector<std::string> keys;
  keys.reserve(items.size());
  for (const auto& item : items) keys.push_back(key_of(item));
  const std::size_t count = items.size();
  Reaction instead;
  {
    const MutexLock lock(mutex_);
    calls_.push_back({op, std::move(keys), context.deadline});
    instead = answer_;
  }
  pass(GatePoint::kBeforeCall);
  std::vector<Result> results = instead == Reaction::kOk
                                    ? call(std::move(items), std::move(context))
                                    : all_not_done<Result>(count, instead);
  pass(GatePoint::kBeforeReply);
  return results;
}

void GatedStore::pass(GatePoint point) {
  const MutexLock lock(mutex_);
  if (!closed_ || point_ != point) return;
  ++waiting_;
  changed_.notify_all();
  while (closed_ && passes_ == 0) changed_.wait(mutex_);
  if (passes_ > 0) --passes_;
  --waiting_;
  changed_.notify_all();
}

void GatedStore::close_gate(GatePoint point) {
  const MutexLock lock(mutex_);
  closed_ = true;
  point_ = point;
}

void GatedStore::open_gate() {
  const MutexLock lock(mutex_);
  closed_ = false;
  passes_ = 0;
  changed_.notify_all();
}

void GatedStore::let_pass(std::size_t count) {
  const MutexLock lock(mutex_);
  passes_ += count;
  changed_.notify_all();
}

std::size_t GatedStore::waiting() const {
  const MutexLock lock(mutex_);
  return waiting_;
}

bool GatedStore::wait_for_waiting(std::size_t count) {
  const Instant until = system_clock()->now() + kPatience;
  const MutexLock lock(mutex_);
  while (waiting_ < count) {
    if (!changed_.wait_until(mutex_, until)) return waiting_ >= count;
  }
  return true;
}

std::vector<StoreCall> GatedStore::calls() const {
  const MutexLock lock(mutex_);
  return calls_;
}

std::size_t GatedStore::count(StoreOp op) const {
  const MutexLock lock(mutex_);
  return static_cast<std::size_t>(std::count_if(
      calls_.begin(), calls_.end(), [op](const StoreCall& call) { return call.op == op; }));
}

void GatedStore::answer_with(Reaction reaction) {
  const MutexLock lock(mutex_);
  answer_ = reaction;
}

std::vector<Reaction> GatedStore::exists(std::vector<std::string> keys, CallContext context) {
  return guard<Reaction>(StoreOp::kExists, std::move(keys), std::move(context),
                         [this](std::vector<std::string> passed, CallContext with) {
                           return inner_->exists(std::move(passed), std::move(with));
                         });
}

std::vector<PutResult> GatedStore::put(std::vector<PutItem> items, CallContext context) {
  return guard<PutResult>(StoreOp::kPut, std::move(items), std::move(context),
                          [this](std::vector<PutItem> passed, CallContext with) {
                            return inner_->put(std::move(passed), std::move(with));
                          });
}

std::vector<GetResult> GatedStore::get(std::vector<GetItem> items, CallContext context) {
  return guard<GetResult>(StoreOp::kGet, std::move(items), std::move(context),
                          [this](std::vector<GetItem> passed, CallContext with) {
                            return inner_->get(std::move(passed), std::move(with));
                          });
}

std::vector<Reaction> GatedStore::remove(std::vector<std::string> keys, CallContext context) {
  return guard<Reaction>(StoreOp::kRemove, std::move(keys), std::move(context),
                         [this](std::vector<std::string> passed, CallContext with) {
                           return inner_->remove(std::move(passed), std::move(with));
                         });
}

std::vector<Reaction> GatedStore::replicate(std::vector<ReplicaItem> items, CallContext context) {
  return guard<Reaction>(StoreOp::kReplicate, std::move(items), std::move(context),
                         [this](std::vector<ReplicaItem> passed, CallContext with) {
                           return inner_->replicate(std::move(passed), std::move(with));
                         });
}

Status GatedStore::register_memory(std::span<std::byte> memory) {
  Status status = inner_->register_memory(memory);
  const MutexLock lock(mutex_);
  if (status.ok()) ++registered_;
  return status;
}

Status GatedStore::unregister_memory(std::span<std::byte> memory) {
  Status status = inner_->unregister_memory(memory);
  const MutexLock lock(mutex_);
  if (status.ok() && registered_ > 0) --registered_;
  return status;
}

std::size_t GatedStore::registered() const {
  const MutexLock lock(mutex_);
  return registered_;
}

}  // namespace kvc::testlib
