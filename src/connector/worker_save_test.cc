// Saves: snapshots, batches, the commit of a block, and what happens when the store will not.

#include <memory>
#include <new>
#include <stdexcept>
#include <string>

#include "connector/worker_fixture.h"
#include "store/wrap/fault_store.h"
#include "testing/seed.h"

namespace kvc {
namespace {

using testlib::GatePoint;
using testlib::SteppableExecutor;

class WorkerSaveOnBothKinds : public OnBothKinds {};
INSTANTIATE_TEST_SUITE_P(, WorkerSaveOnBothKinds, ::testing::Bool(), kind_name);

TEST_P(WorkerSaveOnBothKinds, BlockIsStoredWholeSealedAndCommitted) {
  WorkerWorld world(GetParam());
  world.start();
  world.save_now(world.tasks({1, 2}));
  for (const std::uint64_t number : {1u, 2u}) {
    EXPECT_EQ(world.read_raw(world.shard(number)), world.sealed(number));
    EXPECT_TRUE(world.stored(world.keys.manifest(make_hash(number))));
    EXPECT_EQ(world.stored(world.keys.ready(make_hash(number), 0)), !GetParam());
  }
  const WorkerStats stats = world.worker->stats();
  EXPECT_EQ(stats.blocks_saved, 2u);
  EXPECT_EQ(stats.bytes_saved, 2 * WorkerWorld::kPageBytes);
  EXPECT_EQ(stats.blocks_committed, 2u);
  EXPECT_EQ(stats.saves_failed + stats.saves_dropped + stats.blocks_already_stored, 0u);
  EXPECT_EQ(stats.save_queue_bytes, 0u);
  EXPECT_TRUE(world.pool.guards_intact());
}

TEST_P(WorkerSaveOnBothKinds, BlockCostsAtMostWorldSizePlusOneObjects) {
  WorkerWorld world(GetParam());
  world.start();
  world.save_now(world.tasks({1}));
  EXPECT_EQ(world.memory->keys().size(), GetParam() ? 2u : 3u);
}

TEST_P(WorkerSaveOnBothKinds, BlockThatAllRanksHaveIsStoredByOneOfThem) {
  constexpr std::uint32_t kRanks = 3;
  constexpr std::uint64_t kBlocks = 30;
  std::vector<std::unique_ptr<WorkerWorld>> ranks;
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    ranks.push_back(std::make_unique<WorkerWorld>(GetParam()));
    WorkerWorld& world = *ranks.back();
    world.on = ranks.front()->memory;
    world.options.rank = rank;
    world.options.world_size = kRanks;
    world.options.replicated = true;
    world.start();
  }
  std::vector<PageTask> tasks;
  for (std::uint64_t number = 0; number < kBlocks; ++number) {
    tasks.push_back(ranks.front()->task(number, static_cast<SlotIndex>(number)));
  }
  std::uint64_t saved = 0;
  for (const std::unique_ptr<WorkerWorld>& world : ranks) {
    for (const PageTask& task : tasks) world->pool.fill(task.slot, task.block, 0);
    world->bind({}, tasks);
    world->worker->save(0);
    world->executor->run_all();
    const WorkerStats stats = world->worker->stats();
    EXPECT_GT(stats.blocks_saved, 0u);
    EXPECT_EQ(stats.blocks_committed, stats.blocks_saved);
    saved += stats.blocks_saved;
  }
  EXPECT_EQ(saved, kBlocks);
  EXPECT_EQ(ranks.front()->memory->keys().size(), kBlocks * (GetParam() ? 2 : 3));
  for (const std::unique_ptr<WorkerWorld>& world : ranks) {
    world->pool.poison_all();
    EXPECT_TRUE(world->load(tasks).empty());
    for (const PageTask& task : tasks) EXPECT_TRUE(world->pool.holds(task.slot, task.block, 0));
  }
}

TEST_P(WorkerSaveOnBothKinds, MarkersDescribeThemselves) {
  WorkerWorld world(GetParam());
  world.options.rank = 1;
  world.options.world_size = 2;
  world.start();
  world.put_raw(world.keys.shard(make_hash(1), 0), world.sealed(1));
  world.put_raw(world.keys.ready(make_hash(1), 0), {std::byte{1}});
  world.save_now(world.tasks({1}));
  BlockDescription expected{.kind = ObjectKind::kManifest,
                            .layout = kTestKeyspace,
                            .block = make_hash(1),
                            .rank = 0,
                            .world_size = 2,
                            .token_count = 4,
                            .payload_bytes = 0};
  EXPECT_EQ(verify_block(expected, world.read_raw(world.keys.manifest(make_hash(1)))),
            Rejection::kNone);
  if (GetParam()) return;
  expected.kind = ObjectKind::kReady;
  expected.rank = 1;
  EXPECT_EQ(verify_block(expected, world.read_raw(world.keys.ready(make_hash(1), 1))),
            Rejection::kNone);
}

TEST(WorkerSave, BatchIsCommittedInOneCallPerStep) {
  WorkerWorld world;
  world.start();
  world.save_now(world.tasks({1, 2, 3, 4, 5}));
  EXPECT_EQ(world.store->count(StoreOp::kPut), 2u) << "shards, then manifests";
  EXPECT_EQ(world.store->count(StoreOp::kExists), 1u);
  EXPECT_EQ(world.store->count(StoreOp::kGet), 0u);
  for (const auto& call : world.store->calls()) EXPECT_EQ(call.keys.size(), 5u);
}

TEST(WorkerSave, EachPutOfShardsIsTimed) {
  WorkerWorld world;
  world.options.batch_blocks = 2;
  world.start();
  world.save_now(world.tasks({1, 2, 3, 4, 5}));
  EXPECT_EQ(world.worker->stats().put_latency.count(), 3u) << "of shards, not of manifests";
}

TEST(WorkerSave, LaggardsCatchUpBeforeTheQuorumProbe) {
  WorkerWorld world(false);
  world.start();
  world.put_raw(world.shard(2), world.sealed(2));
  world.put_raw(world.shard(3), std::vector<std::byte>(10));
  world.save_now(world.tasks({1, 2, 3, 4}));
  EXPECT_EQ(world.store->count(StoreOp::kExists), 1u);
  std::vector<std::size_t> put_sizes;
  for (const auto& call : world.store->calls()) {
    if (call.op == StoreOp::kPut) put_sizes.push_back(call.keys.size());
  }
  EXPECT_EQ(put_sizes, (std::vector<std::size_t>{4, 1, 4, 4}))
      << "shards, one again, READY, manifest";
  const WorkerStats stats = world.worker->stats();
  EXPECT_EQ(stats.blocks_saved, 3u);
  EXPECT_EQ(stats.blocks_already_stored, 1u);
  EXPECT_EQ(stats.blocks_committed, 4u);
}

TEST(WorkerSave, LargeSavesAreSplitIntoBatches) {
  WorkerWorld world;
  world.options.batch_blocks = 4;
  world.start();
  std::vector<std::uint64_t> numbers(10);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = i;
  world.save(world.tasks(numbers));
  EXPECT_LE(world.executor->pending(), 2u) << "no more than two tasks at a time";
  world.executor->run_all();
  EXPECT_EQ(world.worker->stats().blocks_saved, 10u);
  for (const auto& call : world.store->calls()) EXPECT_LE(call.keys.size(), 4u);
}

TEST(WorkerSave, IdenticalBlocksOfOneStepAreSavedOnce) {
  WorkerWorld world;
  world.start();
  world.save_now({world.task(1, 0), world.task(1, 1, 2), world.task(2, 2)});
  EXPECT_EQ(world.worker->stats().blocks_saved, 2u);
  EXPECT_EQ(world.store->calls().front().keys.size(), 2u);
}

TEST(WorkerSave, QueuedBlockIsNotQueuedAgain) {
  WorkerWorld world;
  world.start();
  world.save({world.task(1, 0)});
  world.save({world.task(1, 1)});
  EXPECT_EQ(world.worker->stats().save_queue_bytes, WorkerWorld::kPageBytes);
  world.executor->run_all();
  EXPECT_EQ(world.worker->stats().blocks_saved, 1u);
}

TEST(WorkerSave, RecentlySeenShardIsNotSavedAgain) {
  WorkerWorld world;
  world.start();
  world.save_now(world.tasks({1}));
  const std::size_t calls = world.store->calls().size();
  world.save_now(world.tasks({1}));
  EXPECT_EQ(world.store->calls().size(), calls);
  EXPECT_EQ(world.worker->stats().blocks_already_stored, 1u);

  world.clock->advance(std::chrono::seconds(30));
  world.save_now(world.tasks({1}));
  EXPECT_GT(world.store->calls().size(), calls) << "it may have been evicted by now";
  EXPECT_EQ(world.worker->stats().blocks_already_stored, 2u);
  EXPECT_EQ(world.worker->stats().blocks_saved, 1u);
}

TEST(WorkerSave, LoadedShardIsNotSavedAgain) {
  WorkerWorld world;
  world.start();
  world.put_raw(world.shard(1), world.sealed(1));
  ASSERT_TRUE(world.load(world.tasks({1})).empty());
  world.save_now(world.tasks({1}));
  EXPECT_EQ(world.store->count(StoreOp::kPut), 0u);
  EXPECT_EQ(world.worker->stats().blocks_already_stored, 1u);
}

TEST(WorkerSave, EvictedShardIsSavedAgainOnceItWasMissed) {
  WorkerWorld world;
  world.start();
  world.save_now(world.tasks({1}));
  world.lose(world.shard(1));
  ASSERT_EQ(world.load(world.tasks({1})).size(), 1u);
  world.save_now(world.tasks({1}));
  EXPECT_TRUE(world.stored(world.shard(1)));
  EXPECT_EQ(world.worker->stats().blocks_saved, 2u);
}

TEST(WorkerSave, NewestSaveIsDroppedWhenTheQueueIsFull) {
  WorkerWorld world;
  world.options.save_queue_bytes = 3 * WorkerWorld::kPageBytes + 1;
  world.start();
  world.save(world.tasks({1, 2, 3, 4, 5}));
  WorkerStats stats = world.worker->stats();
  EXPECT_EQ(stats.saves_dropped, 2u);
  EXPECT_EQ(stats.save_queue_bytes, 3 * WorkerWorld::kPageBytes);
  world.executor->run_all();
  EXPECT_TRUE(world.stored(world.shard(3)));
  EXPECT_FALSE(world.stored(world.shard(4)));
  world.save_now(world.tasks({6}));
  EXPECT_EQ(world.worker->stats().blocks_saved, 4u) << "room again";
}

TEST(WorkerSave, PagesOutOfRangeAreRefused) {
  WorkerWorld world;
  world.start();
  world.pool.fill(5, make_hash(1), 0);
  world.bind({}, {world.task(1, 5), world.task(2, -1), world.task(3, WorkerWorld::kSlots)});
  world.worker->save(0);
  world.executor->run_all();
  EXPECT_EQ(world.worker->stats().pages_out_of_range, 2u);
  EXPECT_EQ(world.worker->stats().blocks_saved, 1u);
}

TEST(WorkerSave, PlanOfAnotherKeyspaceSavesNothing) {
  WorkerWorld world;
  world.start();
  world.worker->bind({.keyspace = {}, .loads = {}, .saves = world.tasks({1, 2})});
  world.worker->save(0);
  world.executor->run_all();
  EXPECT_TRUE(world.store->calls().empty());
  EXPECT_EQ(world.worker->stats().saves_dropped, 2u);
}

TEST(WorkerSave, SavesOfAFailedPassAreDropped) {
  WorkerWorld world;
  world.start();
  world.bind({}, world.tasks({1}));
  world.bind({}, {});  // The pass failed: save() was never reached.
  world.worker->save(0);
  world.executor->run_all();
  EXPECT_TRUE(world.store->calls().empty());
}

TEST(WorkerSave, SavesAreTakenOncePerPlan) {
  WorkerWorld world;
  world.start();
  world.save(world.tasks({1}));
  world.executor->run_all();
  world.clock->advance(std::chrono::minutes(1));
  world.pool.poison_all();
  world.worker->save(0);
  world.executor->run_all();
  EXPECT_EQ(world.store->count(StoreOp::kPut), 2u);
}

TEST(WorkerSave, PeersThatAreMissingAreNotWaitedFor) {
  WorkerWorld world;
  world.options.world_size = 2;
  world.start();
  world.save_now(world.tasks({1}));
  EXPECT_FALSE(world.stored(world.keys.manifest(make_hash(1))));
  const WorkerStats stats = world.worker->stats();
  EXPECT_EQ(stats.blocks_saved, 1u);
  EXPECT_EQ(stats.blocks_committed, 0u);
  EXPECT_EQ(stats.saves_failed, 0u);
}

TEST(WorkerSave, RefusalForLackOfRoomPausesForAGrowingTime) {
  WorkerWorld world;
  world.start();
  world.store->answer_with(Reaction::kBackOff);
  world.save_now(world.tasks({1}));
  EXPECT_EQ(world.worker->stats().saves_failed, 1u);
  std::uint64_t dropped = 0;
  Duration pause = std::chrono::milliseconds(100);
  for (std::uint64_t number = 2; number < 5; ++number, pause *= 2) {
    const std::size_t calls = world.store->calls().size();
    world.clock->advance(pause - Duration(1));
    world.save_now(world.tasks({number * 100}));
    EXPECT_EQ(world.store->calls().size(), calls) << "left alone";
    EXPECT_EQ(world.worker->stats().saves_dropped, ++dropped);
    world.clock->advance(Duration(1));
    world.save_now(world.tasks({number}));
    EXPECT_GT(world.store->calls().size(), calls) << "tried again";
  }
  world.store->answer_with(Reaction::kOk);
  world.clock->advance(pause);
  world.save_now(world.tasks({50}));
  world.save_now(world.tasks({51}));
  EXPECT_EQ(world.worker->stats().blocks_saved, 2u) << "back to normal";
  EXPECT_EQ(world.logger->count("saves fail: the store has no room"), 1u);
  EXPECT_EQ(world.logger->count("saves work again"), 1u);
}

TEST(WorkerSave, QueueIsDroppedWhenAPauseBegins) {
  WorkerWorld world;
  world.options.batch_blocks = 1;
  world.start();
  world.store->answer_with(Reaction::kBackOff);
  world.save_now(world.tasks({1, 2, 3, 4}));
  EXPECT_EQ(world.store->count(StoreOp::kPut), 1u);
  EXPECT_EQ(world.worker->stats().saves_failed, 1u);
  EXPECT_EQ(world.worker->stats().saves_dropped, 3u);
}

TEST(WorkerSave, StoreThatIsDownCostsTheBatchAndSavingResumes) {
  WorkerWorld world;
  world.start();
  world.save_now(world.tasks({1}));
  world.store->answer_with(Reaction::kDown);
  world.save_now(world.tasks({2, 3}));
  EXPECT_EQ(world.worker->stats().saves_failed, 2u);
  world.store->answer_with(Reaction::kOk);
  world.lose(world.shard(1));  // Restarted empty.
  world.save_now(world.tasks({1, 2, 3}));
  EXPECT_EQ(world.worker->stats().blocks_saved, 4u) << "nothing is taken for stored any more";
  EXPECT_EQ(world.logger->count("saves fail: the store does not answer"), 1u);
}

/// Throws in every call of the kinds that are switched on.
class ThrowingStore final : public testlib::PassingStore {
 public:
  using testlib::PassingStore::PassingStore;
  std::vector<PutResult> put(std::vector<PutItem> items, CallContext context) override {
    if (throws) throw std::runtime_error("broken client");
    return inner_->put(std::move(items), std::move(context));
  }
  std::vector<GetResult> get(std::vector<GetItem> items, CallContext context) override {
    if (throws) throw std::bad_alloc();
    return inner_->get(std::move(items), std::move(context));
  }
  bool throws = true;
};

/// Answers every call with one result too few.
class ForgetfulStore final : public testlib::PassingStore {
 public:
  using testlib::PassingStore::PassingStore;
  std::vector<Reaction> exists(std::vector<std::string> keys, CallContext context) override {
    return cut(StoreOp::kExists, inner_->exists(std::move(keys), std::move(context)));
  }
  std::vector<PutResult> put(std::vector<PutItem> items, CallContext context) override {
    return cut(StoreOp::kPut, inner_->put(std::move(items), std::move(context)));
  }
  std::vector<GetResult> get(std::vector<GetItem> items, CallContext context) override {
    return cut(StoreOp::kGet, inner_->get(std::move(items), std::move(context)));
  }
  std::vector<Reaction> remove(std::vector<std::string> keys, CallContext context) override {
    return cut(StoreOp::kRemove, inner_->remove(std::move(keys), std::move(context)));
  }
  StoreOp forgets = StoreOp::kPut;

 private:
  template <typename Answer>
  std::vector<Answer> cut(StoreOp op, std::vector<Answer> answers) {
    if (op == forgets) answers.pop_back();
    return answers;
  }
};

TEST(WorkerSave, AnswersThatCannotBeAssignedCountAsNone) {
  for (const StoreOp op : {StoreOp::kPut, StoreOp::kExists, StoreOp::kGet, StoreOp::kRemove}) {
    WorkerWorld world(false);
    const auto forgetful = std::make_shared<ForgetfulStore>(world.store);
    forgetful->forgets = op;
    world.on = forgetful;
    world.start();
    // Block 2 is verified, block 3 verified and removed.
    world.put_raw(world.shard(2), world.sealed(2));
    world.put_raw(world.shard(3), std::vector<std::byte>(10));
    world.save_now(world.tasks({1, 2, 3}));
    EXPECT_GE(world.worker->stats().saves_failed, 1u);
    EXPECT_FALSE(world.stored(world.keys.manifest(make_hash(3))));
  }
}

/// Spoils one call, whatever it is for.
class StumblingStore final : public testlib::PassingStore {
 public:
  StumblingStore(std::shared_ptr<Store> inner, std::size_t at, Reaction with)
      : testlib::PassingStore(std::move(inner)), at_(at), with_(with) {}
  std::vector<Reaction> exists(std::vector<std::string> keys, CallContext context) override {
    return spoil(inner_->exists(std::move(keys), std::move(context)), with_);
  }
  std::vector<PutResult> put(std::vector<PutItem> items, CallContext context) override {
    return spoil(inner_->put(std::move(items), std::move(context)), {with_, PutEffect::kUnknown});
  }
  std::vector<GetResult> get(std::vector<GetItem> items, CallContext context) override {
    GetResult spoilt;
    spoilt.reaction = with_;
    return spoil(inner_->get(std::move(items), std::move(context)), spoilt);
  }
  std::vector<Reaction> remove(std::vector<std::string> keys, CallContext context) override {
    return spoil(inner_->remove(std::move(keys), std::move(context)), with_);
  }
  bool has_stumbled() const { return calls_ > at_; }

 private:
  template <typename Answer>
  std::vector<Answer> spoil(std::vector<Answer> answers, Answer instead) {
    if (calls_++ == at_) std::ranges::fill(answers, instead);
    return answers;
  }

  const std::size_t at_;
  const Reaction with_;
  std::size_t calls_ = 0;
};

/// Saves three blocks, of which another writer has left one and a part of one. False once the
/// call that was to be spoilt is not made.
bool save_with_a_stumble(bool atomic, std::size_t at, Reaction with) {
  WorkerWorld world(atomic);
  const auto store = std::make_shared<StumblingStore>(world.store, at, with);
  world.on = store;
  world.start();
  world.put_raw(world.shard(2), world.sealed(2));
  if (!atomic) world.put_raw(world.shard(3), std::vector<std::byte>(10));
  world.save_now(world.tasks({1, 2, 3}));
  const WorkerStats stats = world.worker->stats();
  EXPECT_EQ(stats.blocks_saved + stats.blocks_already_stored + stats.saves_failed, 3u)
      << "call " << at << " answered with " << static_cast<int>(with);
  EXPECT_EQ(stats.bytes_saved, stats.blocks_saved * WorkerWorld::kPageBytes);
  EXPECT_LE(stats.blocks_committed, stats.blocks_saved + stats.blocks_already_stored);
  return store->has_stumbled();
}

TEST(WorkerSave, EverySaveEndsInOneCountWhicheverCallFails) {
  for (const bool atomic : {true, false}) {
    for (const Reaction with :
         {Reaction::kMiss, Reaction::kBackOff, Reaction::kStale, Reaction::kDown}) {
      std::size_t calls = 0;
      while (save_with_a_stumble(atomic, calls, with)) ASSERT_LT(++calls, 20u);
      EXPECT_GE(calls, 3u) << "shards, quorum, manifests";
    }
  }
}

TEST(FaultKinds, B21_NoObjectIsSmallerThanABlock) {
  WorkerWorld world;
  world.start();
  world.save_now(world.tasks({1, 2, 3}));
  for (const std::uint64_t number : {1u, 2u, 3u}) {
    EXPECT_EQ(world.read_raw(world.shard(number)).size(),
              kBlockHeaderBytes + WorkerWorld::kPageBytes);
  }
}

TEST(FaultKinds, B38_PageThatIsReusedAfterTheStepIsNotWhatIsStored) {
  WorkerWorld world;
  world.start();
  world.save({world.task(1, 3)});
  world.pool.fill(3, make_hash(99), 0);  // Another request has the page now.
  world.executor->run_all();
  EXPECT_EQ(world.read_raw(world.shard(1)), world.sealed(1));
}

TEST(FaultKinds, B46_TaskThatBreaksOffIsAFailedSave) {
  WorkerWorld world;
  const auto throwing = std::make_shared<ThrowingStore>(world.store);
  world.on = throwing;
  world.start();
  world.save_now(world.tasks({1, 2, 3, 4, 5}));
  world.save_now(world.tasks({6}));
  WorkerStats stats = world.worker->stats();
  EXPECT_EQ(stats.saves_failed, 6u);
  EXPECT_EQ(stats.save_queue_bytes, 0u);
  EXPECT_EQ(world.logger->count("broke off"), 1u) << "told once";
  throwing->throws = false;
  world.save_now(world.tasks({1, 2}));
  EXPECT_EQ(world.worker->stats().blocks_saved, 2u);
}

TEST(FaultKinds, B46_TaskThatCannotBeHandedOnIsADroppedSave) {
  WorkerWorld world;
  const auto throwing = std::make_shared<testlib::ThrowingExecutor>(world.executor);
  world.executor_in_use = throwing;
  world.start();
  for (std::uint64_t number = 1; number <= 8; ++number) world.save_now(world.tasks({number}));
  EXPECT_EQ(world.worker->stats().saves_dropped, 8u);
  EXPECT_EQ(world.worker->stats().save_queue_bytes, 0u);
  throwing->throws = false;
  world.save_now(world.tasks({1, 2}));
  EXPECT_EQ(world.worker->stats().blocks_saved, 2u);
  EXPECT_TRUE(world.stored(world.keys.manifest(make_hash(2))));
}

TEST(FaultKinds, B66_HalfWrittenShardOfACrashedWriterIsReplaced) {
  bool crash = true;
  WorkerWorld world(MemoryStoreOptions{
      .capacity_bytes = std::size_t{1} << 30,
      .max_objects = 1000,
      .atomic_publish = false,
      .between_steps = [&crash](std::string_view) { return !std::exchange(crash, false); }});
  world.start();
  world.save_now(world.tasks({1}));
  EXPECT_EQ(world.worker->stats().saves_failed, 1u);
  EXPECT_FALSE(world.stored(world.keys.ready(make_hash(1), 0)));
  EXPECT_FALSE(world.stored(world.keys.manifest(make_hash(1))));
  world.save_now(world.tasks({1}));
  EXPECT_EQ(world.read_raw(world.shard(1)), world.sealed(1));
  EXPECT_TRUE(world.stored(world.keys.manifest(make_hash(1))));
}

TEST(FaultKinds, B66_HalfWrittenShardIsAMissForReaders) {
  WorkerWorld world(false);
  world.start();
  std::vector<std::byte> half = world.sealed(1);
  half.resize(half.size() / 2);
  world.put_raw(world.shard(1), half);
  const std::vector<LoadFailure> failures = world.load(world.tasks({1}));
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_EQ(failures[0].status.code(), Code::kRejected);
  EXPECT_TRUE(world.pool.is_poison(0));
}

TEST(FaultKinds, B68_PutIsNeverRetriedFromThePageOfAnAbandonedOne) {
  WorkerWorld world;
  const auto lossy = make_fault_store(
      world.store, {.seed = 1,
                    .rules = {{.kind = FaultKind::kLoseReply, .op = StoreOp::kPut, .limit = 1}},
                    .before_item = {}});
  world.on = lossy;
  world.start();
  world.save_now(world.tasks({1}));
  EXPECT_EQ(world.worker->stats().saves_failed, 1u);
  EXPECT_EQ(world.store->count(StoreOp::kPut), 1u) << "an unknown outcome is not tried again";
  EXPECT_FALSE(world.stored(world.keys.manifest(make_hash(1))));
  world.save_now(world.tasks({1}));
  EXPECT_EQ(world.worker->stats().blocks_already_stored, 1u);
  EXPECT_TRUE(world.stored(world.keys.manifest(make_hash(1))));
}

TEST(FaultKinds, B41_LateTasksOfOneRequestAllCount) {
  WorkerWorld world;
  world.options.batch_blocks = 1;
  world.start();
  Random random(testlib::test_seed(41));
  for (std::uint64_t number = 0; number < 10; ++number) {
    world.save({world.task(number, static_cast<SlotIndex>(number))});
  }
  EXPECT_FALSE(world.worker->drain(Deadline{Instant{}}));
  while (world.executor->pending() > 0) {
    (void)world.executor->step_at(random.below(world.executor->pending()));
  }
  EXPECT_TRUE(world.worker->drain(Deadline{Instant{}}));
  EXPECT_EQ(world.worker->stats().blocks_saved, 10u);
  EXPECT_EQ(world.worker->stats().blocks_committed, 10u);
}

TEST(FaultKinds, B85_FullStoreRefusesAndServingGoesOn) {
  WorkerWorld world(MemoryStoreOptions{.capacity_bytes = 1200,  // One shard and a manifest.
                                       .max_objects = 1000,
                                       .atomic_publish = true,
                                       .between_steps = {}});
  world.start();
  for (std::uint64_t number = 0; number < 100; ++number) {
    world.save_now(world.tasks({number}));
    EXPECT_TRUE(world.load({}).empty());
    world.clock->advance(std::chrono::seconds(11));
  }
  const WorkerStats stats = world.worker->stats();
  EXPECT_EQ(stats.blocks_committed + stats.saves_failed + stats.saves_dropped, 100u)
      << "every save ended in one way";
  EXPECT_EQ(stats.blocks_saved, stats.blocks_committed) << "a shard without a manifest is no save";
  EXPECT_EQ(stats.save_queue_bytes, 0u);
}

TEST(FaultKinds, B86_SaveTouchesNoStore) {
  WorkerWorld world;
  world.start();
  world.store->close_gate(GatePoint::kBeforeCall);  // A store that hangs.
  world.save(world.tasks({1, 2, 3}));
  EXPECT_TRUE(world.store->calls().empty());
  world.store->open_gate();
  world.executor->run_all();
  EXPECT_TRUE(world.worker->drain(Deadline{}));
  world.pool.poison_all();
  EXPECT_TRUE(world.load(world.tasks({1, 2, 3})).empty()) << "a repeat sees all of it";
}

TEST(FaultKinds, B30_RequestsThatShareAPageWhichWasNotFilledAreNotSaved) {
  WorkerWorld world;
  world.start();
  // Request 1 is promised block 1 and computes block 2; request 2 shares its page and computes 3.
  world.bind({world.task(1, 0, 1)},
             {world.task(2, 1, 1), world.task(1, 0, 2), world.task(3, 2, 2), world.task(4, 3, 3)});
  ASSERT_EQ(world.worker->load(0).size(), 1u);
  world.pool.fill(3, make_hash(4), 0);
  world.worker->save(0);
  world.executor->run_all();
  for (const std::uint64_t number : {1u, 2u, 3u}) EXPECT_FALSE(world.stored(world.shard(number)));
  EXPECT_TRUE(world.stored(world.shard(4))) << "request 3 has nothing to do with it";
  EXPECT_EQ(world.worker->stats().saves_dropped, 3u);
}

}  // namespace
}  // namespace kvc
