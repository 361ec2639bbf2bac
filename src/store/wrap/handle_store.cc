#include "store/wrap/handle_store.h"

#include <utility>

#include "base/mutex.h"
#include "store/call_gate.h"
#include "store/item_traits.h"
#include "store/registered_ranges.h"

namespace kvc {
namespace {

class HandleStore final : public Store {
 public:
  HandleStore(std::shared_ptr<Store> shared, std::shared_ptr<const Clock> clock)
      : shared_(std::move(shared)), clock_(std::move(clock)) {}
  // No call is inside: whoever destroys the handle has no other reference to it.
  ~HandleStore() override { unregister_all(); }

  StoreCapabilities capabilities() const override { return shared_->capabilities(); }

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
    return call(&Store::replicate, std::move(items), std::move(context));
  }

  Status register_memory(std::span<std::byte> memory) override {
    return control([&] {
      Status status = shared_->register_memory(memory);
      if (!status.ok()) return status;
      const MutexLock lock(mutex_);
      return registered_.add(memory);
    });
  }

  Status unregister_memory(std::span<std::byte> memory) override {
    return control([&] {
      {
        const MutexLock lock(mutex_);
        if (Status status = registered_.remove(memory); !status.ok()) return status;
      }
      return shared_->unregister_memory(memory);
    });
  }

  void close(Deadline deadline) override {
    if (gate_.shut(deadline, *clock_)) unregister_all();
  }

 private:
  template <typename Item, typename Answer>
  std::vector<Answer> call(std::vector<Answer> (Store::*method)(std::vector<Item>, CallContext),
                           std::vector<Item> items, CallContext context) {
    if (!gate_.enter()) return all_not_done<Answer>(items.size(), Reaction::kDown);
    std::vector<Answer> answers = (shared_.get()->*method)(std::move(items), std::move(context));
    if (gate_.leave()) unregister_all();
    return answers;
  }

  template <typename Work>
  Status control(Work work) {
    if (!gate_.enter()) return {Code::kUnavailable, "this handle on the store is closed"};
    Status status = work();
    if (gate_.leave()) unregister_all();
    return status;
  }

  void unregister_all() {
    RegisteredRanges left;
    {
      const MutexLock lock(mutex_);
      std::swap(left, registered_);
    }
    while (left.count() > 0) {
      const std::span<std::byte> memory = left.first();
      // Nothing can be done about a store that refuses; it forgets the memory when it ends.
      (void)shared_->unregister_memory(memory);
      (void)left.remove(memory);
    }
  }

  const std::shared_ptr<Store> shared_;
  const std::shared_ptr<const Clock> clock_;
  CallGate gate_;
  Mutex mutex_;
  RegisteredRanges registered_ KVC_GUARDED_BY(mutex_);
};

}  // namespace

std::shared_ptr<Store> make_store_handle(std::shared_ptr<Store> shared,
                                         std::shared_ptr<const Clock> clock) {
  return std::make_shared<HandleStore>(std::move(shared), std::move(clock));
}

}  // namespace kvc
