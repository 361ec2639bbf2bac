#include "store/wrap/fault_store.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/mutex.h"
#include "base/random.h"
#include "store/item_traits.h"

namespace kvc {
namespace {

// Keys beyond this share one count, so that the memory of a long run is bounded.
constexpr std::size_t kMaxCountedKeys = std::size_t{1} << 20;

bool can_happen_to(FaultKind kind, StoreOp op) {
  const bool needs_bytes = kind == FaultKind::kCorrupt || kind == FaultKind::kShorten;
  return !needs_bytes || op == StoreOp::kPut || op == StoreOp::kGet;
}

/// What happens to one item. `random` places the damage.
struct Fault {
  const FaultRule* rule = nullptr;  // null: nothing happens
  Random random{0};

  bool is(FaultKind kind) const { return rule != nullptr && rule->kind == kind; }
};

/// Flips one bit of `bytes`. REQUIRES: not empty.
void flip_bit(std::span<std::byte> bytes, Random& random) {
  bytes[random.below(bytes.size())] ^= std::byte{1} << random.below(8);
}

class FaultStoreImpl final : public FaultStore {
 public:
  FaultStoreImpl(std::shared_ptr<Store> inner, FaultStoreOptions options)
      : inner_(std::move(inner)), options_(std::move(options)), counts_(options_.rules.size()) {}

  StoreCapabilities capabilities() const override { return inner_->capabilities(); }

  std::vector<Reaction> exists(std::vector<std::string> keys, CallContext context) override {
    return call(StoreOp::kExists, &Store::exists, std::move(keys), std::move(context));
  }

  std::vector<PutResult> put(std::vector<PutItem> items, CallContext context) override {
    return call(StoreOp::kPut, &Store::put, std::move(items), std::move(context));
  }

  std::vector<GetResult> get(std::vector<GetItem> items, CallContext context) override {
    return call(StoreOp::kGet, &Store::get, std::move(items), std::move(context));
  }

  std::vector<Reaction> remove(std::vector<std::string> keys, CallContext context) override {
    return call(StoreOp::kRemove, &Store::remove, std::move(keys), std::move(context));
  }

  std::vector<Reaction> replicate(std::vector<ReplicaItem> items, CallContext context) override {
    return call(StoreOp::kReplicate, &Store::replicate, std::move(items), std::move(context));
  }

  Status register_memory(std::span<std::byte> memory) override {
    return inner_->register_memory(memory);
  }
  Status unregister_memory(std::span<std::byte> memory) override {
    return inner_->unregister_memory(memory);
  }
  void close(Deadline deadline) override { inner_->close(deadline); }

  std::vector<std::uint64_t> fired() const override {
    const MutexLock lock(mutex_);
    std::vector<std::uint64_t> fired;
    for (const RuleCount& count : counts_) fired.push_back(count.fired);
    return fired;
  }

 private:
  struct RuleCount {
    std::uint64_t skipped = 0;
    std::uint64_t fired = 0;
  };
  /// Copies of altered payload, with the caller's own hold.
  struct Altered {
    BufferHold hold;
    std::vector<std::vector<std::byte>> payloads;
  };

  template <typename Item, typename Answer>
  std::vector<Answer> call(StoreOp op,
                           std::vector<Answer> (Store::*method)(std::vector<Item>, CallContext),
                           std::vector<Item> items, CallContext context) {
    std::vector<Fault> faults;
    faults.reserve(items.size());
    for (const Item& item : items) {
      faults.push_back(decide(op, key_of(item)));
      if (options_.before_item) options_.before_item(op, key_of(item));
    }
    std::vector<Answer> answers(items.size());
    std::vector<Item> passed;
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (faults[i].is(FaultKind::kError)) {
        answers[i] = not_done<Answer>(faults[i].rule->reaction);
      } else {
        passed.push_back(items[i]);
        places.push_back(i);
      }
    }
    if (passed.empty()) return answers;
    alter_sent(passed, places, faults, context);
    std::vector<Answer> received = (inner_.get()->*method)(std::move(passed), std::move(context));
    for (std::size_t i = 0; i < places.size(); ++i) {
      const std::size_t place = places[i];
      if (faults[place].is(FaultKind::kLoseReply)) {
        answers[place] = reply_lost<Answer>();
      } else {
        answers[place] = received[i];
        alter_received(items[place], faults[place], answers[place]);
      }
    }
    return answers;
  }

  Fault decide(StoreOp op, const std::string& key) {
    const MutexLock lock(mutex_);
    const std::uint64_t occurrence = next_occurrence(op, key);
    for (std::size_t i = 0; i < options_.rules.size(); ++i) {
      const FaultRule& rule = options_.rules[i];
      if (rule.op.has_value() ? *rule.op != op : false) continue;
      if (!can_happen_to(rule.kind, op) || key.find(rule.key_part) == std::string::npos) continue;
      const std::uint64_t site = (occurrence << 24) + (static_cast<std::uint64_t>(op) << 16) + i;
      Random random(mix_text(options_.seed ^ mix_bits(site + 1), key));
      RuleCount& count = counts_[i];
      if (!random.chance(rule.chance) || count.fired >= rule.limit) continue;
      if (count.skipped < rule.skip) {
        ++count.skipped;
        continue;
      }
      ++count.fired;
      return {&rule, random};
    }
    return {};
  }

  std::uint64_t next_occurrence(StoreOp op, const std::string& key) KVC_REQUIRES(mutex_) {
    std::string site = std::to_string(static_cast<int>(op));
    site += key;
    if (occurrences_.size() >= kMaxCountedKeys && !occurrences_.contains(site)) site.clear();
    return occurrences_[site]++;
  }

  static void alter_sent(std::vector<PutItem>& items, const std::vector<std::size_t>& places,
                         std::vector<Fault>& faults, CallContext& context) {
    const auto altered = std::make_shared<Altered>();
    for (std::size_t i = 0; i < items.size(); ++i) {
      PutItem& item = items[i];
      Fault& fault = faults[places[i]];
      const bool damage = fault.is(FaultKind::kCorrupt) || fault.is(FaultKind::kShorten);
      if (!damage || item.data == nullptr || item.bytes == 0) continue;
      if (fault.is(FaultKind::kShorten)) {
        item.bytes = std::max<std::size_t>(1, fault.random.below(item.bytes));
        continue;
      }
      std::vector<std::byte> payload(item.data, item.data + item.bytes);
      flip_bit(payload, fault.random);
      item.data = payload.data();
      altered->payloads.push_back(std::move(payload));
    }
    if (altered->payloads.empty()) return;
    altered->hold = std::move(context.hold);
    context.hold = altered;
  }
  template <typename Item>
  static void alter_sent(std::vector<Item>& /*items*/, const std::vector<std::size_t>& /*places*/,
                         std::vector<Fault>& /*faults*/, CallContext& /*context*/) {}

  static void alter_received(const GetItem& item, Fault& fault, GetResult& result) {
    if (result.reaction != Reaction::kOk || result.bytes == 0) return;
    if (fault.is(FaultKind::kCorrupt)) flip_bit({item.data, result.bytes}, fault.random);
    if (fault.is(FaultKind::kShorten)) result.bytes = fault.random.below(result.bytes);
  }
  template <typename Item, typename Answer>
  static void alter_received(const Item& /*item*/, Fault& /*fault*/, Answer& /*answer*/) {}

  const std::shared_ptr<Store> inner_;
  const FaultStoreOptions options_;
  mutable Mutex mutex_;
  std::vector<RuleCount> counts_ KVC_GUARDED_BY(mutex_);
  std::unordered_map<std::string, std::uint64_t> occurrences_ KVC_GUARDED_BY(mutex_);
};

}  // namespace

std::shared_ptr<FaultStore> make_fault_store(std::shared_ptr<Store> inner,
                                             FaultStoreOptions options) {
  return std::make_shared<FaultStoreImpl>(std::move(inner), std::move(options));
}

}  // namespace kvc
