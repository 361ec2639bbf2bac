// Hot blocks on their way: counted by the scheduler, told in the plan, put or raised by the
// workers.
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "connector/layer_fixture.h"
#include "connector/replica_raiser.h"
#include "connector/scheduler_fixture.h"
#include "connector/worker_fixture.h"
#include "testing/passing_store.h"

namespace kvc {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// Keeps three copies of an object, and remembers how many each has.
class CopyingStore final : public testlib::PassingStore {
 public:
  using testlib::PassingStore::PassingStore;

  StoreCapabilities capabilities() const override {
    StoreCapabilities all = inner_->capabilities();
    all.max_replicas = 3;
    return all;
  }
  std::vector<PutResult> put(std::vector<PutItem> items, CallContext context) override {
    for (const PutItem& item : items) copies.try_emplace(item.key, item.replicas);
    return inner_->put(std::move(items), std::move(context));
  }
  std::vector<Reaction> replicate(std::vector<ReplicaItem> items,
                                  CallContext /*context*/) override {
    ++calls;
    largest_call = std::max(largest_call, items.size());
    std::vector<Reaction> reactions;
    for (const ReplicaItem& item : items) {
      reactions.push_back(copies.contains(item.key) ? answer : Reaction::kMiss);
      if (reactions.back() == Reaction::kOk) copies[item.key] = item.replicas;
    }
    return reactions;
  }

  std::map<std::string, std::uint32_t> copies;
  Reaction answer = Reaction::kOk;
  std::size_t calls = 0;
  std::size_t largest_call = 0;
};

struct HotWorld : WorkerWorld {
  HotWorld() : copying(std::make_shared<CopyingStore>(memory)) { on = copying; }

  void bind_hot(std::vector<PageTask> loads, std::vector<PageTask> saves,
                std::vector<HotBlock> hot) {
    worker->bind({.keyspace = kTestKeyspace,
                  .loads_in_batch = true,
                  .loads = std::move(loads),
                  .saves = std::move(saves),
                  .hot = std::move(hot)});
  }
  static std::vector<HotBlock> hot(const std::vector<std::uint64_t>& numbers,
                                   std::uint32_t replicas = 2) {
    std::vector<HotBlock> blocks;
    for (const std::uint64_t number : numbers) blocks.push_back({make_hash(number), replicas});
    return blocks;
  }
  /// Loads blocks, and runs what that started.
  void load_hot(std::vector<std::uint64_t> loads, std::vector<HotBlock> hot) {
    bind_hot(tasks(std::move(loads)), {}, std::move(hot));
    (void)worker->load(0);
    executor->run_all();
  }
  std::uint32_t copies_of(const std::string& key) { return copying->copies[key]; }
  std::uint32_t shard_copies(std::uint64_t number) { return copies_of(shard(number)); }
  std::uint32_t manifest_copies(std::uint64_t number) {
    return copies_of(keys.manifest(make_hash(number)));
  }

  std::shared_ptr<CopyingStore> copying;
};

TEST(Replication, HotBlockThatWasLoadedGetsCopiesOfShardAndManifest) {
  HotWorld world;
  world.start();
  world.save_now(world.tasks({1, 2}));
  EXPECT_EQ(world.shard_copies(1), 1u);
  world.load_hot({1, 2}, HotWorld::hot({1}));
  EXPECT_EQ(world.shard_copies(1), 2u);
  EXPECT_EQ(world.manifest_copies(1), 2u);
  EXPECT_EQ(world.shard_copies(2), 1u) << "a cold one";
  EXPECT_EQ(world.manifest_copies(2), 1u);
  const WorkerStats stats = world.worker->stats();
  EXPECT_EQ(stats.blocks_replicated, 1u);
  EXPECT_EQ(stats.replications_failed + stats.replications_dropped, 0u);
}

TEST(Replication, OnlyRankZeroRaisesManifests) {
  HotWorld world;
  world.options.rank = 1;
  world.options.world_size = 2;
  world.start();
  world.save_now(world.tasks({1}));
  world.load_hot({1}, HotWorld::hot({1}));
  EXPECT_EQ(world.shard_copies(1), 2u);
  EXPECT_FALSE(world.copying->copies.contains(world.keys.manifest(make_hash(1))));
}

TEST(Replication, FirstPutHasTheCopiesThatThePlanSays) {
  HotWorld world;
  world.start();
  const std::vector<PageTask> saves = world.tasks({1, 2});
  for (const PageTask& each : saves) world.pool.fill(each.slot, each.block, 0);
  world.bind_hot({}, saves, HotWorld::hot({2}, 3));
  world.worker->save(0);
  world.bind_hot({}, {}, {});  // Puts come after the next plan.
  world.executor->run_all();
  EXPECT_EQ(world.shard_copies(1), 1u);
  EXPECT_EQ(world.shard_copies(2), 3u);
  EXPECT_EQ(world.manifest_copies(1), 1u);
  EXPECT_EQ(world.manifest_copies(2), 3u);
  EXPECT_EQ(world.copying->calls, 0u);
}

TEST(Replication, BlocksThatFailedToLoadAreLeftAlone) {
  HotWorld world;
  world.start();
  world.save_now(world.tasks({1, 2}));
  std::vector<std::byte> altered = world.read_raw(world.shard(1));
  altered.back() ^= std::byte{1};
  world.lose(world.shard(1));
  world.put_raw(world.shard(1), altered);
  world.load_hot({1, 2}, HotWorld::hot({1, 2, 77}));
  EXPECT_EQ(world.shard_copies(1), 1u);
  EXPECT_EQ(world.shard_copies(2), 2u);
  EXPECT_EQ(world.worker->stats().blocks_replicated, 1u);
  EXPECT_EQ(world.copying->largest_call, 2u);
}

TEST(Replication, PaceBoundsTheBytesOfCopies) {
  HotWorld world;
  const std::size_t object = kBlockHeaderBytes + WorkerWorld::kPageBytes;
  world.options.replication_bytes_per_second = 3 * object;
  world.start();
  std::vector<std::uint64_t> blocks;
  for (std::uint64_t b = 1; b <= 8; ++b) blocks.push_back(b);
  world.save_now(world.tasks(blocks));
  world.load_hot(blocks, HotWorld::hot(blocks));
  EXPECT_EQ(world.worker->stats().blocks_replicated, 3u);
  EXPECT_EQ(world.worker->stats().replications_dropped, 5u);
  world.clock->advance(milliseconds(700));  // Two blocks' worth.
  world.load_hot(blocks, HotWorld::hot({4, 5, 6}));
  EXPECT_EQ(world.worker->stats().blocks_replicated, 5u);
  world.clock->advance(seconds(100));  // No more than a second's worth is saved up.
  world.load_hot(blocks, HotWorld::hot(blocks, 2));
  EXPECT_EQ(world.worker->stats().blocks_replicated, 8u);
}

TEST(Replication, PaceOfZeroMeansNone) {
  HotWorld world;
  world.options.replication_bytes_per_second = 0;
  world.start();
  world.save_now(world.tasks({1}));
  world.load_hot({1}, HotWorld::hot({1}));
  EXPECT_EQ(world.copying->calls, 0u);
  EXPECT_EQ(world.worker->stats().replications_dropped, 1u);
}

TEST(Replication, BlockLargerThanASecondsWorthIsPaidOffLater) {
  HotWorld world;
  const std::size_t object = kBlockHeaderBytes + WorkerWorld::kPageBytes;
  world.options.replication_bytes_per_second = object / 4;
  world.start();
  world.save_now(world.tasks({1, 2}));
  world.load_hot({1, 2}, HotWorld::hot({1, 2}));
  EXPECT_EQ(world.worker->stats().blocks_replicated, 1u);
  world.clock->advance(seconds(3));
  world.load_hot({1, 2}, HotWorld::hot({2}));
  EXPECT_EQ(world.worker->stats().blocks_replicated, 1u);
  world.clock->advance(seconds(2));
  world.load_hot({1, 2}, HotWorld::hot({2}));
  EXPECT_EQ(world.worker->stats().blocks_replicated, 2u);
}

TEST(Replication, WaitsForNoSaveAndGivesWayToThem) {
  HotWorld world;
  world.options.save_queue_bytes = 8 * WorkerWorld::kPageBytes;
  world.start();
  world.save_now(world.tasks({1}));
  world.save(world.tasks({11, 12, 13, 14, 15}));
  EXPECT_GT(world.worker->stats().save_queue_bytes, world.options.save_queue_bytes / 2);
  world.bind_hot(world.tasks({1}), {}, HotWorld::hot({1}));
  EXPECT_TRUE(world.worker->load(0).empty());
  world.executor->run_all();
  EXPECT_EQ(world.worker->stats().replications_dropped, 1u);
  EXPECT_EQ(world.worker->stats().blocks_saved, 6u);
  world.load_hot({1}, HotWorld::hot({1}));
  EXPECT_EQ(world.worker->stats().blocks_replicated, 1u);
}

TEST(Replication, StoreWithoutAPlaceIsLeftAloneEverLonger) {
  HotWorld world;
  world.copying->answer = Reaction::kBackOff;
  world.start();
  world.save_now(world.tasks({1}));
  std::vector<Duration> pauses;
  Instant last = world.clock->now();
  for (int i = 0; i < 2000; ++i) {
    const std::size_t before = world.copying->calls;
    world.load_hot({1}, HotWorld::hot({1}));
    if (world.copying->calls > before) {
      pauses.push_back(world.clock->now() - last);
      last = world.clock->now();
    }
    world.clock->advance(milliseconds(100));
  }
  ASSERT_GE(pauses.size(), 8u);
  EXPECT_EQ(pauses[1], seconds(1));
  EXPECT_EQ(pauses[2], seconds(2));
  EXPECT_EQ(pauses[7], seconds(60)) << "bounded";
  EXPECT_EQ(world.worker->stats().replications_failed, pauses.size());
  world.copying->answer = Reaction::kOk;
  world.clock->advance(seconds(60));
  world.load_hot({1}, HotWorld::hot({1}));
  EXPECT_EQ(world.shard_copies(1), 2u);
}

TEST(Replication, BlockThatIsGoneFailsAndPausesNothing) {
  HotWorld world;
  world.start();
  world.save_now(world.tasks({1, 2}));
  world.bind_hot(world.tasks({1}), {}, HotWorld::hot({1}));
  EXPECT_TRUE(world.worker->load(0).empty());
  world.copying->copies.erase(world.shard(1));  // Evicted before its copy is asked for.
  world.executor->run_all();
  EXPECT_EQ(world.worker->stats().replications_failed, 1u);
  world.load_hot({2}, HotWorld::hot({2}));
  EXPECT_EQ(world.worker->stats().blocks_replicated, 1u);
}

TEST(Replication, CloseDropsWhatWaits) {
  HotWorld world;
  world.start();
  world.save_now(world.tasks({1}));
  world.bind_hot(world.tasks({1}), {}, HotWorld::hot({1}));
  EXPECT_TRUE(world.worker->load(0).empty());
  world.worker->close(Deadline{});
  EXPECT_EQ(world.worker->stats().replications_dropped, 1u);
  world.executor->run_all();
  EXPECT_EQ(world.copying->calls, 0u);
}

TEST(Replication, ExecutorThatRefusesDropsAndTheLoadIsWhole) {
  HotWorld world;
  world.start();
  world.save_now(world.tasks({1}));
  world.executor->refuse();
  world.pool.poison_all();
  world.bind_hot(world.tasks({1}), {}, HotWorld::hot({1}));
  EXPECT_TRUE(world.worker->load(0).empty());
  EXPECT_TRUE(world.pool.holds(0, make_hash(1), 0));
  EXPECT_EQ(world.worker->stats().replications_dropped, 1u);
}

/// Throws, when it is told to, instead of taking a task.
struct FlakyExecutor final : Executor {
  explicit FlakyExecutor(std::shared_ptr<Executor> on) : inner(std::move(on)) {}
  bool submit(std::function<void()> task) override {
    if (throws) throw std::runtime_error("no memory");
    return inner->submit(std::move(task));
  }
  const std::shared_ptr<Executor> inner;
  bool throws = false;
};

TEST(Replication, ExecutorThatThrowsDropsAndTheNextBlockIsTriedAnew) {
  HotWorld world;
  world.start();
  world.save_now(world.tasks({1}));
  const auto executor = std::make_shared<FlakyExecutor>(world.executor);
  world.executor_in_use = executor;
  world.start();
  executor->throws = true;
  world.pool.poison_all();
  world.bind_hot(world.tasks({1}), {}, HotWorld::hot({1}));
  EXPECT_TRUE(world.worker->load(0).empty());
  EXPECT_TRUE(world.pool.holds(0, make_hash(1), 0));
  EXPECT_EQ(world.worker->stats().replications_dropped, 1u);
  executor->throws = false;
  world.load_hot({1}, HotWorld::hot({1}));
  EXPECT_EQ(world.worker->stats().blocks_replicated, 1u);
}

TEST(Replication, CallIsBoundedByItsObjects) {
  HotWorld world;
  world.start();
  std::vector<std::uint64_t> blocks;
  for (std::uint64_t b = 1; b <= 60; ++b) blocks.push_back(b);
  world.save_now(world.tasks(blocks));
  world.load_hot(blocks, HotWorld::hot(blocks));
  EXPECT_EQ(world.worker->stats().blocks_replicated, 60u);
  EXPECT_EQ(world.copying->largest_call, 64u);
  EXPECT_EQ(world.copying->calls, 2u);
}

/// Blocks of four layers, a READY marker and a manifest.
struct HotLayers : LayerWorld {
  HotLayers() : copying(std::make_shared<CopyingStore>(memory)) { on = copying; }
  std::shared_ptr<CopyingStore> copying;
};

TEST(Replication, EveryLayerOfAHotBlockGetsCopiesInCallsOfBoundedSize) {
  HotLayers world;
  world.start();
  std::vector<std::uint64_t> blocks;
  for (std::uint64_t b = 1; b <= 30; ++b) blocks.push_back(b);
  world.save_by_layer(world.tasks(blocks));
  world.worker->bind({.keyspace = kTestKeyspace,
                      .loads_in_batch = true,
                      .loads = world.tasks(blocks),
                      .saves = {},
                      .hot = HotWorld::hot(blocks)});
  ASSERT_TRUE(world.worker->load(0).empty());
  ASSERT_TRUE(world.pass({}).empty());
  world.executor->run_all();
  EXPECT_EQ(world.worker->stats().blocks_replicated, 30u);
  for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
    EXPECT_EQ(world.copying->copies[world.layer_key(30, layer)], 2u) << layer;
  }
  EXPECT_EQ(world.copying->copies[world.manifest(30)], 2u);
  EXPECT_EQ(world.copying->largest_call, 60u) << "10 blocks of 6 objects";
  EXPECT_EQ(world.copying->calls, 3u);
}

struct HotScheduler : SchedulerFixture {
  explicit HotScheduler(std::uint32_t max_replicas = 2) : SchedulerFixture(1) {
    options.replication.max_replicas = max_replicas;
    options.replication.hot_at = 3;
    scheduler = make(std::make_shared<CopyingStore>(memory));
  }
  /// A request from query to its first plan.
  StepPlan serve(std::span<const Token> tokens) {
    const RequestId id = ++last_id;
    (void)query(id, tokens);
    const std::vector<SlotIndex> slots = make_slots((tokens.size() + 3) / 4);
    scheduler->allocated(id, slots);
    const StepPlan planned = plan({{.id = id,
                                    .is_new = true,
                                    .new_tokens = tokens,
                                    .new_slots = slots,
                                    .computed_tokens = 0,
                                    .scheduled_tokens = tokens.size()}});
    scheduler->finished(id);
    return planned;
  }
  RequestId last_id = 0;
};

std::set<BlockHash> blocks_of(const StepPlan& plan) {
  std::set<BlockHash> blocks;
  for (const HotBlock& hot : plan.hot) blocks.insert(hot.block);
  return blocks;
}

TEST(Replication, PopularPrefixIsPlannedForCopiesAndItsTailsAreNot) {
  HotScheduler world;
  std::vector<Token> shared = make_tokens(12);
  world.publish_blocks(shared, 0, 3);
  const std::vector<BlockHash> names = names_of(shared);
  for (Token tail = 0; tail < 3; ++tail) {
    std::vector<Token> prompt = shared;
    for (const Token token : make_tokens(5, 1000 * (tail + 1))) prompt.push_back(token);
    const StepPlan plan = world.serve(prompt);
    EXPECT_EQ(plan.loads.size(), 3u);
    const bool hot_now = tail == 2;
    EXPECT_EQ(blocks_of(plan).size(), hot_now ? 3u : 0u) << tail;
    if (hot_now) {
      EXPECT_EQ(blocks_of(plan), std::set<BlockHash>(names.begin(), names.end()));
    }
  }
  EXPECT_EQ(world.scheduler->stats().blocks_hot, 3u);
}

TEST(Replication, PrefixThatWasAskedForBeforeItWasStoredIsPutWithCopies) {
  HotScheduler world;
  const std::vector<Token> prompt = make_tokens(9);
  EXPECT_TRUE(world.serve(prompt).hot.empty());
  EXPECT_TRUE(world.serve(prompt).hot.empty());
  const StepPlan plan = world.serve(prompt);
  EXPECT_EQ(plan.saves.size(), 2u);
  EXPECT_EQ(plan.hot.size(), 2u);
}

TEST(Replication, RequestCountsOnceHoweverOftenItIsAskedAbout) {
  HotScheduler world;
  const std::vector<Token> prompt = make_tokens(9);
  world.publish_blocks(prompt, 0, 2);
  for (int i = 0; i < 10; ++i) {
    (void)world.query(1, prompt);
    EXPECT_TRUE(world.plan().hot.empty());
  }
  world.scheduler->allocated(1, make_slots(3));
  world.scheduler->allocated(1, make_slots(3));
  world.scheduler->allocated(1, make_slots(3));
  EXPECT_TRUE(world.plan().hot.empty());
}

TEST(Replication, StoreOrSettingOfOneCopyPlansNone) {
  HotScheduler off(1);
  HotScheduler plain;
  plain.scheduler = plain.make(plain.store);  // Keeps one copy.
  const std::vector<Token> prompt = make_tokens(9);
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(off.serve(prompt).hot.empty());
    EXPECT_TRUE(plain.serve(prompt).hot.empty());
  }
}

TEST(Replication, OptionsThatMakeNoSenseAreRefused) {
  SchedulerFixture fixture;
  for (const auto& [hot_at, half_life] : std::vector<std::pair<double, Duration>>{
           {0, seconds(1)}, {-1, seconds(1)}, {1, Duration::zero()}}) {
    SchedulerOptions options = fixture.options;
    options.replication.hot_at = hot_at;
    options.replication.half_life = half_life;
    EXPECT_EQ(
        Scheduler::create(options, fixture.keyspace, fixture.store, fixture.clock, fixture.logger)
            .status()
            .code(),
        Code::kInvalid);
  }
  SchedulerOptions many = fixture.options;
  many.replication.max_replicas = kReplicasMax + 1;
  EXPECT_EQ(Scheduler::create(many, fixture.keyspace, fixture.store, fixture.clock, fixture.logger)
                .status()
                .code(),
            Code::kInvalid);
}

}  // namespace
}  // namespace kvc
