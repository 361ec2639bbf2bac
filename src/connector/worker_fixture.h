// What tests of the worker share: a rank with a small KV pool whose pages are filled from an
// oracle, and the store and executor that it works on.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "kvc/block_format.h"
#include "kvc/object_key.h"
#include "kvc/worker.h"
#include "store/memory/memory_store.h"
#include "testing/collecting_logger.h"
#include "testing/gated_store.h"
#include "testing/passing_store.h"
#include "testing/sim_clock.h"
#include "testing/steppable_executor.h"

namespace kvc {

inline constexpr Fingerprint kTestKeyspace{std::byte{7}, std::byte{1}};
inline constexpr std::byte kPoison{0xee};

inline BlockHash make_hash(std::uint64_t number) {
  BlockHash hash;
  Random(number).fill(hash.bytes);
  return hash;
}

/// From 1.
inline std::vector<std::uint64_t> numbers_to(std::uint64_t count) {
  std::vector<std::uint64_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 1);
  return numbers;
}

/// The bytes that `rank`'s page of a block must have.
inline std::vector<std::byte> oracle_page(const BlockHash& block, std::uint32_t rank,
                                          std::size_t bytes) {
  std::vector<std::byte> page(bytes);
  Random(BlockHashHasher{}(block) + rank).fill(page);
  return page;
}

/// KV memory of one rank, with guard bytes on both sides.
class TestPool {
 public:
  TestPool(std::size_t slots, std::size_t page_bytes)
      : page_bytes_(page_bytes), memory_(kGuard * 2 + slots * page_bytes, kPoison) {
    layout.groups.push_back({.layers = {0},
                             .regions = {{.base = memory_.data() + kGuard,
                                          .bytes = page_bytes,
                                          .stride = page_bytes,
                                          .slots = slots}},
                             .window_tokens = 0});
  }

  std::span<std::byte> page(SlotIndex slot) {
    return std::span(memory_).subspan(kGuard + static_cast<std::size_t>(slot) * page_bytes_,
                                      page_bytes_);
  }
  void fill(SlotIndex slot, const BlockHash& block, std::uint32_t rank) {
    std::ranges::copy(oracle_page(block, rank, page_bytes_), page(slot).begin());
  }
  void poison(SlotIndex slot) { std::ranges::fill(page(slot), kPoison); }
  void poison_all() { std::ranges::fill(memory_, kPoison); }
  bool holds(SlotIndex slot, const BlockHash& block, std::uint32_t rank) {
    return std::ranges::equal(page(slot), oracle_page(block, rank, page_bytes_));
  }
  bool is_poison(SlotIndex slot) {
    return std::ranges::all_of(page(slot), [](std::byte b) { return b == kPoison; });
  }
  bool guards_intact() const {
    const auto poison = [](std::byte b) { return b == kPoison; };
    return std::all_of(memory_.begin(), memory_.begin() + kGuard, poison) &&
           std::all_of(memory_.end() - kGuard, memory_.end(), poison);
  }
  std::size_t page_bytes() const { return page_bytes_; }

  PagedLayout layout;

 private:
  static constexpr std::ptrdiff_t kGuard = 64;
  std::size_t page_bytes_;
  std::vector<std::byte> memory_;
};

/// A page copier that calls the test before it copies, and may put copies off until they must be
/// complete.
class WatchedCopier : public PageCopier {
 public:
  bool is_late = false;
  std::function<Status(SlotIndex)> before_copy_in = [](SlotIndex) { return Status(); };
  std::function<Status()> on_flush = [] { return Status(); };

  Result<std::unique_ptr<StagingMemory>> allocate_staging(std::size_t bytes) override {
    return host_->allocate_staging(bytes);
  }
  Status copy_out(const PageGroup& group, SlotIndex slot, std::span<std::byte> staging,
                  StreamHandle stream) override {
    return host_->copy_out(group, slot, staging, stream);
  }
  Status copy_in(const PageGroup& group, SlotIndex slot, std::span<const std::byte> staging,
                 StreamHandle stream) override {
    Status status = before_copy_in(slot);
    if (!status.ok()) return status;
    if (!is_late) return host_->copy_in(group, slot, staging, stream);
    issued_.push_back([=, this] { return host_->copy_in(group, slot, staging, stream); });
    return status;
  }
  Status flush(StreamHandle) override {
    Status status = on_flush();
    for (const auto& copy : std::exchange(issued_, {})) {
      if (Status copied = copy(); !copied.ok()) status = copied;
    }
    return status;
  }

 private:
  const std::shared_ptr<PageCopier> host_ = make_host_page_copier();
  std::vector<std::function<Status()>> issued_;
};

/// Everything that a worker is made of.
struct WorkerWorld {
  static constexpr std::size_t kSlots = 64;
  static constexpr std::size_t kPageBytes = 1000;  // Not a multiple of anything.

  explicit WorkerWorld(bool atomic = true)
      : WorkerWorld(MemoryStoreOptions{.capacity_bytes = std::size_t{1} << 30,
                                       .max_objects = std::size_t{1} << 20,
                                       .atomic_publish = atomic,
                                       .between_steps = {}}) {}
  explicit WorkerWorld(MemoryStoreOptions memory_options)
      : memory(make_memory_store(std::move(memory_options))),
        store(std::make_shared<testlib::GatedStore>(memory)),
        pool(kSlots, kPageBytes) {
    options.tokens_per_block = 4;
    options.staging_bytes = std::size_t{1} << 20;
    options.save_queue_bytes = std::size_t{1} << 19;
    on = store;
  }

  WorkerParts parts() const {
    return {.store = on,
            .executor = executor_in_use ? executor_in_use : executor,
            .clock = clock,
            .logger = logger,
            .copier = copier};
  }

  void start() {
    worker.reset();
    Result<std::unique_ptr<Worker>> made = Worker::create(options, parts());
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    worker = std::move(made).value();
    const Status status = worker->register_layout(kTestKeyspace, pool.layout);
    ASSERT_TRUE(status.ok()) << status.to_string();
  }

  PageTask task(std::uint64_t number, SlotIndex slot, RequestId request = 1) const {
    return {.request = request, .block = make_hash(number), .slot = slot};
  }

  /// Blocks `numbers`, in slots from 0.
  std::vector<PageTask> tasks(std::vector<std::uint64_t> numbers) const {
    std::vector<PageTask> all;
    for (const std::uint64_t number : numbers) {
      all.push_back(task(number, static_cast<SlotIndex>(all.size())));
    }
    return all;
  }

  void bind(std::vector<PageTask> loads, std::vector<PageTask> saves) {
    worker->bind({.keyspace = kTestKeyspace,
                  .loads_in_batch = true,
                  .loads = std::move(loads),
                  .saves = std::move(saves)});
  }

  /// Fills the pages of the tasks and hands them over.
  void save(const std::vector<PageTask>& saves) {
    for (const PageTask& each : saves) pool.fill(each.slot, each.block, options.rank);
    bind({}, saves);
    worker->save(0);
  }
  /// As above, and waits until it is done.
  void save_now(const std::vector<PageTask>& saves) {
    save(saves);
    executor->run_all();
    ASSERT_TRUE(worker->drain(Deadline{}));
  }

  std::vector<LoadFailure> load(const std::vector<PageTask>& loads) {
    bind(loads, {});
    return worker->load(0);
  }

  std::string shard(std::uint64_t number) const {
    return keys.shard(make_hash(number), options.rank);
  }
  bool stored(const std::string& key) const {
    return memory->exists({key}, {}).front() == Reaction::kOk;
  }
  /// A sealed shard as a healthy writer would put it.
  std::vector<std::byte> sealed(std::uint64_t number) const {
    const BlockHash block = make_hash(number);
    std::vector<std::byte> object(kBlockHeaderBytes + kPageBytes);
    std::ranges::copy(oracle_page(block, options.rank, kPageBytes),
                      object.begin() + static_cast<std::ptrdiff_t>(kBlockHeaderBytes));
    seal_block({.kind = ObjectKind::kShard,
                .layout = kTestKeyspace,
                .block = block,
                .rank = options.rank,
                .world_size = options.world_size,
                .token_count = options.tokens_per_block,
                .payload_bytes = kPageBytes},
               object);
    return object;
  }
  void put_raw(const std::string& key, const std::vector<std::byte>& object) {
    ASSERT_EQ(memory->put({{key, object.data(), object.size()}}, {}).front().effect,
              PutEffect::kStored);
  }
  /// Blocks 1 to `count`, as healthy writers would put them.
  void put_all(std::uint64_t count) {
    for (const std::uint64_t number : numbers_to(count)) put_raw(shard(number), sealed(number));
  }
  void lose(const std::string& key) { (void)memory->remove({key}, {}); }
  std::vector<std::byte> read_raw(const std::string& key) const {
    std::vector<std::byte> object(4096);
    const GetResult result = memory->get({{key, object.data(), object.size()}}, {}).front();
    object.resize(result.reaction == Reaction::kOk ? result.bytes : 0);
    return object;
  }

  const ObjectKeys keys{kTestKeyspace};
  WorkerOptions options;
  std::shared_ptr<testlib::SimClock> clock = std::make_shared<testlib::SimClock>();
  std::shared_ptr<testlib::CollectingLogger> logger = std::make_shared<testlib::CollectingLogger>();
  std::shared_ptr<testlib::SteppableExecutor> executor =
      std::make_shared<testlib::SteppableExecutor>();
  std::shared_ptr<Executor> executor_in_use;  // Instead of the above, if set.
  std::shared_ptr<PageCopier> copier = make_host_page_copier();
  std::shared_ptr<MemoryStore> memory;
  std::shared_ptr<testlib::GatedStore> store;
  std::shared_ptr<Store> on;  // What the worker uses; the gated store unless a test wraps it.
  TestPool pool;
  std::unique_ptr<Worker> worker;
};

class OnBothKinds : public ::testing::TestWithParam<bool> {};

inline std::string kind_name(const ::testing::TestParamInfo<bool>& kind) {
  return kind.param ? "Atomic" : "Piecemeal";
}

/// Answers gets as a store does whose leases lapsed while it transferred: late, with other bytes in
/// the buffers, and a code that says so, or (worse) one that does not.
class LapsingStore final : public testlib::PassingStore {
 public:
  LapsingStore(std::shared_ptr<Store> inner, bool says_so)
      : testlib::PassingStore(std::move(inner)), says_so_(says_so) {}
  std::vector<GetResult> get(std::vector<GetItem> items, CallContext context) override {
    std::vector<GetResult> results = inner_->get(items, std::move(context));
    for (std::size_t i = 0; i < items.size(); ++i) {
      Random(i).fill(std::span(items[i].data, items[i].capacity));
      if (says_so_) results[i] = {Reaction::kStale, 0};
    }
    return results;
  }

 private:
  const bool says_so_;
};

/// Spoils the answer to a get in a way that tests choose.
class SpoilingStore final : public testlib::PassingStore {
 public:
  using Spoil = std::function<void(std::vector<GetResult>*)>;
  SpoilingStore(std::shared_ptr<Store> inner, Spoil spoil)
      : testlib::PassingStore(std::move(inner)), spoil_(std::move(spoil)) {}
  std::vector<GetResult> get(std::vector<GetItem> items, CallContext context) override {
    std::vector<GetResult> results = inner_->get(std::move(items), std::move(context));
    spoil_(&results);
    return results;
  }

 private:
  const Spoil spoil_;
};

}  // namespace kvc
