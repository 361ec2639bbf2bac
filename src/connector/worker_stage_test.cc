// Staged mode, on a rank: blocks come into host memory ahead of their loads, which then need
// nothing but a copy.

#include <functional>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>

#include "connector/worker_stage_fixture.h"

namespace kvc {
namespace {

using testlib::GatePoint;

class WorkerStageOnBothKinds : public OnBothKinds {};
INSTANTIATE_TEST_SUITE_P(, WorkerStageOnBothKinds, ::testing::Bool(), kind_name);

TEST_P(WorkerStageOnBothKinds, WhatIsStagedIsLoadedWhateverBecomesOfTheStore) {
  StageWorld world(GetParam());
  world.start();
  world.put_all(20);
  world.stage(1, numbers_to(20));
  EXPECT_TRUE(world.take_heard().ends_with("1:20 all"));
  EXPECT_EQ(world.worker->stats().tier_blocks_held, 20u);
  world.memory->close(Deadline{});
  const std::size_t calls = world.store->calls().size();
  const std::vector<PageTask> loads = world.tasks(numbers_to(20));
  EXPECT_TRUE(world.load_held(loads, {1}).empty());
  EXPECT_TRUE(world.all_hold(loads));
  EXPECT_TRUE(world.pool.guards_intact());
  EXPECT_EQ(world.store->calls().size(), calls) << "the store is not asked";
  EXPECT_EQ(world.executor->pending(), 0u);
  const WorkerStats stats = world.worker->stats();
  EXPECT_EQ(stats.blocks_staged, 20u);
  EXPECT_EQ(stats.bytes_staged, 20 * WorkerWorld::kPageBytes);
  EXPECT_EQ(stats.tier_hits, 20u);
  EXPECT_EQ(stats.blocks_loaded, 20u);
  EXPECT_EQ(stats.bytes_loaded, 20 * WorkerWorld::kPageBytes);
  EXPECT_EQ(stats.load_latency.count(), 1u);
  EXPECT_EQ(stats.tier_misses, 0u);
  EXPECT_EQ(stats.holds_open, 0u) << "the load has ended it";
  EXPECT_EQ(stats.tier_blocks_held, 0u);
  EXPECT_EQ(stats.tier_blocks, 20u) << "and the blocks stay warm";
  EXPECT_EQ(world.worker->resident_prefix(StageWorld::blocks({1, 2, 99, 3})), 2u);
}

TEST_P(WorkerStageOnBothKinds, DamagedBlockIsNotStagedRemovedAndHealed) {
  StageWorld world(GetParam());
  world.start();
  world.put_all(3);
  world.lose(world.shard(2));
  std::vector<std::byte> damaged = world.sealed(2);
  damaged.back() ^= std::byte{1};
  world.put_raw(world.shard(2), damaged);
  world.on_report = [&](const StageProgress& progress) {
    EXPECT_NE(progress.done, world.stored(world.shard(2))) << "removed before it is told";
  };
  world.stage(1, {1, 2, 3});
  EXPECT_EQ(world.take_heard(), "1:1, 1:1 rejected");
  world.on_report = nullptr;
  EXPECT_EQ(world.worker->stats().rejected_checksum, 1u);
  EXPECT_EQ(world.worker->stats().stage_short_rejected, 1u);
  world.save_now({world.task(2, 9)});
  EXPECT_EQ(world.read_raw(world.shard(2)), world.sealed(2));
  world.stage(2, {1, 2, 3});
  EXPECT_EQ(world.take_heard(), "2:3 all");
}

TEST(WorkerStage, OrderEndsAtWhatIsNotThere) {
  StageWorld world;
  world.start();
  world.put_all(6);
  world.lose(world.shard(4));
  world.stage(1, numbers_to(6));
  EXPECT_TRUE(world.take_heard().ends_with("1:3 missing"));
  EXPECT_EQ(world.worker->stats().stage_short_missing, 1u);
  EXPECT_EQ(world.worker->stats().loads_missing, 0u) << "nothing was promised";
}

TEST(WorkerStage, PagesOfAnOrderAreFreeOnceItIsToldToBeOver) {
  StageWorld world;
  world.limit_pages(2, 2);
  world.start();
  world.on_report = [&](const StageProgress& progress) {
    if (!progress.done) return;
    world.worker->bind({.keyspace = kTestKeyspace, .loads = {}, .saves = world.tasks({11, 12})});
    world.worker->save(0);
  };
  world.stage(1, {1, 2});
  EXPECT_EQ(world.take_heard(), "1:0 missing");
  EXPECT_EQ(world.worker->stats().saves_dropped, 0u) << "a worker that is closed now needs them";
  EXPECT_EQ(world.worker->stats().blocks_saved, 2u);
}

TEST(WorkerStage, StoreThatDoesNotAnswerStagesNothingAndLaterOrdersGoOn) {
  StageWorld world;
  world.start();
  world.put_all(2);
  world.store->answer_with(Reaction::kDown);
  world.stage(1, {1, 2});
  EXPECT_EQ(world.take_heard(), "1:0 unavailable");
  EXPECT_EQ(world.worker->stats().stage_short_unavailable, 1u);
  world.store->answer_with(Reaction::kOk);
  world.stage(2, {1, 2});
  EXPECT_EQ(world.take_heard(), "2:2 all");
}

TEST(WorkerStage, StaleBlockIsAskedForOnceMore) {
  StageWorld world;
  world.start();
  world.put_all(1);
  world.store->answer_with(Reaction::kStale);
  world.stage(1, {1});
  EXPECT_EQ(world.store->count(StoreOp::kGet), 2u);
  EXPECT_EQ(world.take_heard(), "1:0 missing");
}

TEST(FaultKinds, B28_LeaseThatLapsesWhileBlocksAreStagedIsNoPromise) {
  for (const bool says_so : {true, false}) {
    StageWorld world;
    world.on = std::make_shared<LapsingStore>(world.store, says_so);
    world.start();
    world.put_all(5);
    world.stage(1, numbers_to(5));
    EXPECT_TRUE(world.take_heard().ends_with(says_so ? "1:0 missing" : "1:0 rejected"));
    EXPECT_EQ(world.worker->stats().tier_blocks, 0u);
    EXPECT_EQ(world.worker->resident_prefix(StageWorld::blocks({1})), 0u);
  }
}

TEST(FaultKinds, B29_WhateverIsNotASuccessEndsTheOrderAtTheRightBlock) {
  using Results = std::vector<GetResult>;
  struct Case {
    SpoilingStore::Spoil spoil;
    std::size_t staged;  // Of five, of which the third is the first or only one that is spoiled.
    std::string_view end;
  };
  const auto answer = [](Reaction reaction) {
    return [reaction](Results* r) { (*r)[2].reaction = reaction; };
  };
  const std::vector<Case> cases{
      {answer(Reaction::kMiss), 2, "missing"},
      {answer(Reaction::kDown), 2, "unavailable"},
      {answer(Reaction::kBackOff), 2, "unavailable"},
      {answer(Reaction::kCallerBug), 2, "rejected"},  // An object that is too large.
      {[](Results* r) { (*r)[2].bytes = 0; }, 2, "rejected"},
      {[](Results* r) { (*r)[2].bytes = std::size_t{1} << 40; }, 2, "rejected"},
      {[](Results* r) { r->pop_back(); }, 0, "unavailable"},
      {[](Results* r) {
         r->push_back({Reaction::kOk, 1128});
       },
       0, "unavailable"},
      {[](Results* r) { r->clear(); }, 0, "unavailable"},
      {[](Results*) { throw std::bad_alloc(); }, 0, "unavailable"},
      {[](Results*) { throw std::runtime_error("client"); }, 0, "unavailable"},
  };
  for (std::size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(i);
    StageWorld world;
    world.on = std::make_shared<SpoilingStore>(world.store, cases[i].spoil);
    world.start();
    world.put_all(5);
    world.stage(1, numbers_to(5));
    const std::string end =
        "1:" + std::to_string(cases[i].staged) + " " + std::string(cases[i].end);
    EXPECT_TRUE(world.heard.ends_with(end)) << world.heard;
    EXPECT_EQ(world.worker->resident_prefix(StageWorld::blocks({1, 2, 3, 4, 5})), cases[i].staged);
    // What was staged holds the right bytes.
    const std::vector<PageTask> loads = world.tasks(numbers_to(cases[i].staged));
    EXPECT_TRUE(world.load_held(loads, {1}).empty());
    EXPECT_TRUE(world.all_hold(loads));
  }
}

TEST(WorkerStage, ExecutorThatRefusesStagesNothing) {
  StageWorld world;
  world.start();
  world.put_all(1);
  world.executor->refuse();
  world.order(1, {1});
  EXPECT_EQ(world.take_heard(), "1:0 unavailable");
  EXPECT_EQ(world.worker->stats().fetches_in_flight, 0u);
}

TEST(WorkerStage, TaskThatCannotBeHandedOnEndsItsOrderAndNotTheTier) {
  StageWorld world;
  const auto throwing = std::make_shared<testlib::ThrowingExecutor>(world.executor);
  world.executor_in_use = throwing;
  world.start();
  world.put_all(3);
  world.order(1, {1});
  EXPECT_EQ(world.take_heard(), "1:0 unavailable");
  EXPECT_EQ(world.worker->stats().fetches_in_flight, 0u);
  EXPECT_TRUE(world.load(world.tasks({2})).empty()) << "a load does its work itself";
  throwing->throws = false;
  world.stage(2, {1, 2, 3});
  EXPECT_EQ(world.take_heard(), "2:3 all");
}

TEST(WorkerStage, LeaderHearsOfEachBatchAndFewTasksAreAtWork) {
  StageWorld world;
  world.options.batch_blocks = 4;
  world.start();
  world.put_all(20);
  world.order(1, numbers_to(20));
  EXPECT_EQ(world.executor->pending(), 2u);
  std::size_t tasks = 0;
  while (world.executor->step()) {
    ++tasks;
    EXPECT_LE(world.executor->pending(), 2u);
  }
  EXPECT_GE(tasks, 5u);
  EXPECT_EQ(world.take_heard(), "1:4, 1:8, 1:12, 1:16, 1:20 all");
  for (const testlib::StoreCall& call : world.store->calls()) EXPECT_LE(call.keys.size(), 4u);
  EXPECT_EQ(world.store->calls().size(), 5u) << "each block once";
}

TEST(WorkerStage, GetsOfAnOrderEndWithItsBudget) {
  StageWorld world;
  world.start();
  world.put_all(1);
  world.clock->advance(std::chrono::seconds(100));
  world.order(1, {1}, std::chrono::seconds(3));
  world.executor->run_all();
  EXPECT_EQ(world.store->calls().front().deadline.at, Instant(std::chrono::seconds(103)));
  world.order(2, {2, 3}, std::chrono::seconds(3));
  world.clock->advance(std::chrono::seconds(3));
  world.executor->run_all();
  EXPECT_EQ(world.store->calls().size(), 1u) << "too late to begin";
  EXPECT_EQ(world.take_heard(), "1:1 all, 2:0 unavailable");
  world.order(3, {4}, std::chrono::hours(1));
  world.executor->run_all();
  EXPECT_EQ(world.store->calls().back().deadline.at,
            world.clock->now() + world.options.load_deadline)
      << "a call that hangs does not keep the task for an hour";
}

TEST(WorkerStage, WhatTheLeaderDidNotWaitForIsThereForTheNextWhoAsks) {
  StageWorld world;
  world.options.batch_blocks = 2;
  world.start();
  world.put_all(6);
  world.order(1, numbers_to(6));
  world.executor->step();
  world.rank->release({.hold = 1, .from_block = 1});
  (void)world.take_heard();
  world.executor->run_all();
  EXPECT_EQ(world.take_heard(), "");
  EXPECT_EQ(world.worker->stats().tier_blocks_held, 1u);
  EXPECT_EQ(world.worker->resident_prefix(StageWorld::blocks(numbers_to(6))), 6u);
  const std::size_t gets = world.store->count(StoreOp::kGet);
  world.order(2, numbers_to(6));
  EXPECT_EQ(world.take_heard(), "2:6 all") << "at once";
  EXPECT_EQ(world.store->count(StoreOp::kGet), gets);
}

TEST(WorkerStage, HoldsThatTheLeaderLostEnd) {
  StageWorld world;
  world.start();
  world.put_all(2);
  world.stage(1, {1});
  world.stage(2, {2});
  const std::vector<HoldId> live{2};
  world.rank->keep_only(live, 2);
  EXPECT_EQ(world.worker->stats().holds_open, 1u);
  EXPECT_EQ(world.worker->stats().tier_blocks_held, 1u);
}

TEST(WorkerStage, ReportMayCallBack) {
  StageWorld world;
  world.start();
  world.put_all(3);
  world.on_report = [&](const StageProgress& progress) {
    if (progress.hold == 1) {
      world.rank->release({.hold = 1, .from_block = 0});
      world.order(2, {1, 2});
    }
  };
  world.stage(1, {1, 2, 3});
  EXPECT_EQ(world.take_heard(), "1:3 all, 2:2 all");
  EXPECT_EQ(world.worker->stats().holds_open, 1u);
}

TEST(WorkerStage, ReportThatThrowsStopsNothing) {
  StageWorld world;
  world.start();
  world.put_all(2);
  world.on_report = [](const StageProgress&) { throw std::runtime_error("leader"); };
  world.stage(1, {1});
  world.on_report = nullptr;
  world.stage(2, {1, 2});
  EXPECT_EQ(world.take_heard(), "1:1 all, 2:1, 2:2 all");
}

// Loads ---------------------------------------------------------------------------------------

TEST(WorkerStage, LoadsOfWhatIsNotStagedComeFromTheStoreAndAreCounted) {
  StageWorld world;
  world.start();
  world.put_all(4);
  world.stage(1, {1, 2});
  const std::vector<PageTask> loads = world.tasks(numbers_to(4));
  EXPECT_TRUE(world.load_held(loads, {1}).empty());
  EXPECT_TRUE(world.all_hold(loads));
  WorkerStats stats = world.worker->stats();
  EXPECT_EQ(stats.tier_hits, 2u);
  EXPECT_EQ(stats.tier_misses, 2u);
  EXPECT_EQ(stats.blocks_loaded, 4u);
  EXPECT_EQ(stats.load_latency.count(), 1u) << "a step is timed once";
  const std::vector<LoadFailure> failures = world.load_held(world.tasks({1, 99}), {});
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_EQ(failures.front().status.code(), Code::kMissing) << "it fails closed";
  EXPECT_TRUE(world.pool.holds(0, make_hash(1), 0));
}

TEST(WorkerStage, HoldEndsAndPagesAreReusedOnlyAfterTheCopiesAreComplete) {
  StageWorld world;
  world.limit_pages(4);
  const auto copier = std::make_shared<WatchedCopier>();
  copier->is_late = true;
  world.copier = copier;
  world.start();
  world.put_all(8);
  world.stage(1, {1, 2, 3, 4});
  copier->on_flush = [&] {
    world.stage(2, {5, 6, 7, 8});  // Wants all of the memory.
    return Status();
  };
  const std::vector<PageTask> loads = world.tasks({1, 2, 3, 4});
  EXPECT_TRUE(world.load_held(loads, {1}).empty());
  EXPECT_TRUE(world.all_hold(loads));
  copier->on_flush = [] { return Status(); };
  EXPECT_EQ(world.take_heard(), "1:4 all, 2:0 no room");
  world.stage(3, {5, 6, 7, 8});
  EXPECT_EQ(world.take_heard(), "3:4 all") << "now they may";
}

TEST(WorkerStage, CopyThatFailsIsReported) {
  StageWorld world;
  const auto copier = std::make_shared<WatchedCopier>();
  copier->is_late = true;
  world.copier = copier;
  world.start();
  world.put_all(2);
  world.stage(1, {1, 2});
  copier->on_flush = [] { return Status(Code::kUnavailable, "device"); };
  const std::vector<LoadFailure> failures = world.load_held(world.tasks({1, 2}), {1});
  ASSERT_EQ(failures.size(), 2u);
  EXPECT_EQ(failures.front().status.code(), Code::kUnavailable);
  EXPECT_EQ(failures.front().key, world.shard(1));
  EXPECT_EQ(world.worker->stats().blocks_loaded, 0u);
  EXPECT_EQ(world.worker->stats().holds_open, 0u);
}

TEST(WorkerStage, HoldsOfAPlanWhoseLoadsWereNotAskedForEndWithTheNextPlan) {
  StageWorld world;
  world.start();
  world.put_all(2);
  world.stage(1, {1});
  world.worker->bind(
      {.keyspace = kTestKeyspace, .loads = world.tasks({1}), .saves = {}, .done_holds = {1}});
  EXPECT_EQ(world.worker->stats().holds_open, 1u);
  world.worker->bind({.keyspace = kTestKeyspace, .loads = {}, .saves = {}});
  EXPECT_EQ(world.worker->stats().holds_open, 0u);
}

TEST(WorkerStage, HoldsThatAPlanDoesNotCallAliveEndAfterItsLoads) {
  StageWorld world;
  world.start();
  world.put_all(5);
  world.stage(1, {1});
  world.stage(2, {2});
  world.stage(3, {3});
  world.stage(4, {4});
  // The plan of hold 1's load, and whatever told its end since, have not come here.
  world.worker->bind({.keyspace = kTestKeyspace,
                      .loads = world.tasks({2}),
                      .saves = {},
                      .done_holds = {2},
                      .live_holds = {.live = {2, 3}, .newest = 3}});
  EXPECT_EQ(world.worker->stats().holds_open, 4u);
  EXPECT_TRUE(world.worker->load(0).empty());
  EXPECT_EQ(world.worker->stats().holds_open, 2u) << "3 is alive, of 4 nothing was said";
  EXPECT_EQ(world.worker->stats().tier_misses, 0u);
}

TEST(WorkerStage, ReleasesOfAPlanCountOnceAlsoWithoutLoads) {
  StageWorld world;
  world.start();
  world.put_all(5);
  world.stage(1, {1, 2, 3});
  world.stage(2, {4});
  world.worker->bind({.keyspace = kTestKeyspace,
                      .loads = {},
                      .saves = {},
                      .released = {{.hold = 1, .from_block = 1}, {.hold = 2, .from_block = 0}}});
  EXPECT_TRUE(world.worker->load(0).empty());
  EXPECT_EQ(world.worker->stats().tier_blocks_held, 1u);
  EXPECT_EQ(world.worker->stats().holds_open, 1u);
  EXPECT_TRUE(world.worker->load(0).empty());
  world.worker->bind({.keyspace = kTestKeyspace, .loads = {}, .saves = {}});
  EXPECT_EQ(world.worker->stats().holds_open, 1u);
}

// Transfers that are given up -----------------------------------------------------------------

/// Answers nothing, and writes later what was asked for.
class LateStore final : public testlib::PassingStore {
 public:
  using testlib::PassingStore::PassingStore;
  bool is_late = false;

  std::vector<GetResult> get(std::vector<GetItem> items, CallContext context) override {
    if (!is_late) return inner_->get(std::move(items), std::move(context));
    std::vector<GetResult> none(items.size());
    given_up_.emplace_back(std::move(items), std::move(context.hold));
    return none;
  }
  void write_now() {
    for (const auto& [items, hold] : std::exchange(given_up_, {})) {
      for (const GetItem& item : items) std::memset(item.data, 0x5a, item.capacity);
    }
  }

 private:
  std::vector<std::pair<std::vector<GetItem>, BufferHold>> given_up_;
};

TEST(WorkerStage, PagesOfAGetThatWasGivenUpAreInQuarantineUntilItIsOver) {
  StageWorld world;
  world.limit_pages(4);
  const auto late = std::make_shared<LateStore>(world.store);
  world.on = late;
  world.start();
  world.put_all(4);
  late->is_late = true;
  world.stage(1, {1, 2});
  EXPECT_EQ(world.take_heard(), "1:0 unavailable");
  late->is_late = false;
  world.stage(2, {1, 2, 3, 4});
  EXPECT_EQ(world.take_heard(), "2:2 no room") << "two pages are left";
  late->write_now();
  const std::vector<PageTask> loads = world.tasks({1, 2});
  EXPECT_TRUE(world.load_held(loads, {2}).empty());
  EXPECT_TRUE(world.all_hold(loads));
  world.stage(3, {1, 2, 3, 4});
  EXPECT_EQ(world.take_heard(), "3:2, 3:4 all");
}

// Start and end -------------------------------------------------------------------------------

TEST(WorkerStage, OnlyWhereItIsWantedAndBlocksAreStoredWhole) {
  WorkerWorld leased;
  leased.start();
  EXPECT_EQ(leased.worker->stage_rank(), nullptr);
  leased.save_now(leased.tasks({1}));
  EXPECT_EQ(leased.worker->resident_prefix(StageWorld::blocks({1})), 0u);
  EXPECT_EQ(leased.worker->stats().tier_blocks, 0u);
  WorkerWorld layers;
  layers.options.staged = true;
  layers.options.granularity = Granularity::kLayer;
  layers.pool.layout.groups.front().layers = {0, 1};
  layers.pool.layout.groups.front().layer_bytes = WorkerWorld::kPageBytes / 2;
  layers.start();
  EXPECT_EQ(layers.worker->layers_stored_apart(), 2u);
  EXPECT_EQ(layers.worker->stage_rank(), nullptr);
}

TEST(WorkerStage, CloseEndsHoldsAndGivesTheMemoryBack) {
  StageWorld world;
  world.start();
  world.put_all(4);
  world.stage(1, {1, 2});
  world.order(2, {3, 4});
  (void)world.take_heard();
  world.worker->close(Deadline{});
  EXPECT_EQ(world.store->registered(), 0u) << "no page is lent any more";
  world.executor->run_all();
  EXPECT_EQ(world.store->count(StoreOp::kGet), 1u);
  EXPECT_EQ(world.take_heard(), "") << "a closed rank says nothing of its own";
  world.order(3, {1});
  EXPECT_EQ(world.take_heard(), "3:0 unavailable");
  world.rank->release({.hold = 1, .from_block = 0});
  world.worker.reset();
  world.order(4, {1});
  EXPECT_EQ(world.take_heard(), "4:0 unavailable") << "the rank is gone";
  world.rank->keep_only({}, 9);
  world.rank->release({.hold = 1, .from_block = 0});
}

TEST(WorkerStage, CloseIsBoundedWhileAGetHangs) {
  StageWorld world;
  world.executor_in_use = make_thread_pool({.name = "t", .threads = 2});
  world.start();
  world.put_all(1);
  world.store->close_gate(GatePoint::kBeforeCall);
  world.order(1, {1});
  ASSERT_TRUE(world.store->wait_for_waiting(1));
  world.clock->set_tick(std::chrono::milliseconds(100));
  world.worker->close(Deadline::after(*world.clock, std::chrono::seconds(1)));
  EXPECT_EQ(world.store->registered(), 1u) << "the call may still write";
  world.store->open_gate();
  world.executor_in_use = nullptr;
  world.worker.reset();
}

TEST(WorkerStage, WithThreadsAllBytesAreRight) {
  StageWorld world;
  world.limit_pages(24, 6);
  world.options.batch_blocks = 4;
  world.executor_in_use = make_thread_pool({.name = "t", .threads = 4});
  world.start();
  world.put_all(40);
  Mutex mutex;
  CondVar changed;
  std::size_t staged = 0;
  bool done = false;
  Random random(7);
  for (HoldId hold = 1; hold <= 200; ++hold) {
    const std::uint64_t first = 1 + random.below(32);
    std::vector<std::uint64_t> numbers;
    for (std::uint64_t i = 0; i < 8; ++i) numbers.push_back(first + i);
    {
      const MutexLock lock(mutex);
      staged = 0;
      done = false;
    }
    world.rank->stage({.hold = hold,
                       .blocks = StageWorld::blocks(numbers),
                       .fetch_budget = std::chrono::seconds(60)},
                      [&](const StageProgress& progress) {
                        const MutexLock lock(mutex);
                        staged = progress.staged;
                        done = progress.done;
                        changed.notify_all();
                      });
    std::vector<PageTask> saves;
    for (std::uint64_t i = 0; i < 3; ++i) {
      saves.push_back(world.task(1000 + hold * 3 + i, static_cast<SlotIndex>(50 + i)));
    }
    for (const PageTask& each : saves) world.pool.fill(each.slot, each.block, 0);
    std::vector<PageTask> loads;
    {
      const MutexLock lock(mutex);
      while (!done) changed.wait(mutex);
      for (std::size_t i = 0; i < staged; ++i) {
        loads.push_back(world.task(numbers[i], static_cast<SlotIndex>(i)));
      }
    }
    world.worker->bind(
        {.keyspace = kTestKeyspace, .loads = loads, .saves = saves, .done_holds = {hold}});
    const std::uint64_t misses = world.worker->stats().tier_misses;
    ASSERT_TRUE(world.worker->load(0).empty());
    ASSERT_TRUE(world.all_hold(loads));
    ASSERT_EQ(world.worker->stats().tier_misses, misses) << "what is staged is there";
    world.worker->save(0);
  }
  ASSERT_TRUE(world.worker->drain(Deadline{}));
  EXPECT_EQ(world.worker->stats().holds_open, 0u);
  EXPECT_EQ(world.worker->stats().tier_blocks_held, 0u);
  world.worker->close(Deadline{});
  EXPECT_EQ(world.store->registered(), 0u);
}

}  // namespace
}  // namespace kvc
