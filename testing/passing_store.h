// For tests: a store to derive from.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kvc/store.h"

namespace kvc::testlib {

/// A store that passes everything on; tests override what they spoil.
class PassingStore : public Store {
 public:
  explicit PassingStore(std::shared_ptr<Store> inner) : inner_(std::move(inner)) {}

  StoreCapabilities capabilities() const override { return inner_->capabilities(); }
  std::vector<Reaction> exists(std::vector<std::string> keys, CallContext context) override {
    return inner_->exists(std::move(keys), std::move(context));
  }
  std::vector<PutResult> put(std::vector<PutItem> items, CallContext context) override {
    return inner_->put(std::move(items), std::move(context));
  }
  std::vector<GetResult> get(std::vector<GetItem> items, CallContext context) override {
    return inner_->get(std::move(items), std::move(context));
  }
  std::vector<Reaction> remove(std::vector<std::string> keys, CallContext context) override {
    return inner_->remove(std::move(keys), std::move(context));
  }
  std::vector<Reaction> replicate(std::vector<ReplicaItem> items, CallContext context) override {
    return inner_->replicate(std::move(items), std::move(context));
  }
  Status register_memory(std::span<std::byte> memory) override {
    return inner_->register_memory(memory);
  }
  Status unregister_memory(std::span<std::byte> memory) override {
    return inner_->unregister_memory(memory);
  }
  void close(Deadline deadline) override { inner_->close(deadline); }

 protected:
  const std::shared_ptr<Store> inner_;
};

}  // namespace kvc::testlib
