// A store that fails on purpose, the same way each time for the same seed.
//
//   FaultStoreOptions options;
//   options.seed = test_seed(1);
//   options.rules = {{.kind = FaultKind::kCorrupt, .op = StoreOp::kGet, .chance = 10'000}};
//   auto store = make_fault_store(inner, options);
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kvc/store.h"
#include "store/store_op.h"

namespace kvc {

enum class FaultKind {
  kError,      ///< The inner store is not asked; the item is answered with `reaction`.
  kLoseReply,  ///< The inner store is asked; the item is kDown, a put's effect unknown.
  kCorrupt,    ///< One bit of the object is flipped: of what is stored (put) or read (get).
  kShorten,    ///< The object lacks its last byte or more: what is stored (put) or read (get).
};

struct FaultRule {
  FaultKind kind = FaultKind::kError;
  std::optional<StoreOp> op = {};    ///< None: every call that the fault can happen to.
  std::string key_part = {};         ///< Only keys that contain this.
  std::uint32_t chance = 1'000'000;  ///< In a million.
  Reaction reaction = Reaction::kDown;
  std::uint64_t skip = 0;  ///< Faults that would have fired and do not, in order of arrival.
  std::uint64_t limit = std::numeric_limits<std::uint64_t>::max();  ///< Fires at most this often.
};

struct FaultStoreOptions {
  std::uint64_t seed = 0;
  /// The first rule that applies and fires decides about an item.
  std::vector<FaultRule> rules;
  /// Called for every item before the inner store is asked, without a lock: the place to delay a
  /// call, or to do something between two of them.
  std::function<void(StoreOp op, const std::string& key)> before_item;
};

/// Safe to use from any thread. Whether a rule fires depends on seed, rule, operation, key and on
/// how often this operation met this key, not on the order of threads or batches.
class FaultStore : public Store {
 public:
  /// How often each rule fired.
  virtual std::vector<std::uint64_t> fired() const = 0;
};

std::shared_ptr<FaultStore> make_fault_store(std::shared_ptr<Store> inner,
                                             FaultStoreOptions options);

}  // namespace kvc
