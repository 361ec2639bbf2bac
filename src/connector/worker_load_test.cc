// Loads: verified bytes in every promised page, or a failure that says which and why.

#include <algorithm>
#include <functional>
#include <memory>
#include <new>
#include <string>

#include "connector/worker_fixture.h"
#include "store/wrap/deadline_store.h"
#include "store/wrap/fault_store.h"

namespace kvc {
namespace {

using testlib::GatePoint;

class WorkerLoadOnBothKinds : public OnBothKinds {};
INSTANTIATE_TEST_SUITE_P(, WorkerLoadOnBothKinds, ::testing::Bool(), kind_name);

TEST_P(WorkerLoadOnBothKinds, PromisedPagesHoldTheStoredBytes) {
  WorkerWorld world(GetParam());
  world.start();
  world.save_now(world.tasks(numbers_to(20)));
  world.pool.poison_all();
  const std::vector<PageTask> loads = world.tasks(numbers_to(20));
  EXPECT_TRUE(world.load(loads).empty());
  for (const PageTask& load : loads) EXPECT_TRUE(world.pool.holds(load.slot, load.block, 0));
  for (SlotIndex slot = 20; slot < 64; ++slot) EXPECT_TRUE(world.pool.is_poison(slot));
  EXPECT_TRUE(world.pool.guards_intact());
  EXPECT_EQ(world.worker->stats().blocks_loaded, 20u);
  EXPECT_EQ(world.worker->stats().bytes_loaded, 20 * WorkerWorld::kPageBytes);
}

TEST(WorkerLoad, EachLoadIsTimedOnce) {
  class SlowCopier final : public WatchedCopier {
   public:
    explicit SlowCopier(std::shared_ptr<testlib::SimClock> clock) {
      on_flush = [time = std::move(clock)] {
        time->advance(std::chrono::milliseconds(3));
        return Status();
      };
    }
  };
  WorkerWorld world;
  world.copier = std::make_shared<SlowCopier>(world.clock);
  world.start();
  world.put_all(2);
  EXPECT_TRUE(world.load(world.tasks(numbers_to(2))).empty());
  EXPECT_TRUE(world.load({}).empty());
  EXPECT_EQ(world.load(world.tasks({9})).size(), 1u) << "a load that fails is timed too";
  const WorkerStats stats = world.worker->stats();
  EXPECT_EQ(stats.load_latency.count(), 2u);
  EXPECT_GE(stats.load_latency.sum(), std::chrono::milliseconds(3));
}

TEST(WorkerLoad, AnyAmountOfStagingWillDo) {
  for (const std::size_t pages : {2u, 3u, 4u, 7u, 40u}) {
    WorkerWorld world;
    world.options.batch_blocks = 8;
    world.options.staging_bytes = (std::size_t{16} << 10) - 12288 + pages * 4096;
    world.options.save_queue_bytes = WorkerWorld::kPageBytes;
    world.start();
    world.put_all(30);
    const std::vector<PageTask> loads = world.tasks(numbers_to(30));
    EXPECT_TRUE(world.load(loads).empty()) << pages;
    for (const PageTask& load : loads) EXPECT_TRUE(world.pool.holds(load.slot, load.block, 0));
  }
}

TEST(WorkerLoad, NothingIsLoadedTwice) {
  WorkerWorld world;
  world.start();
  world.put_all(1);
  EXPECT_TRUE(world.load(world.tasks({1})).empty());
  world.pool.poison_all();
  EXPECT_TRUE(world.worker->load(0).empty()) << "loads are consumed";
  EXPECT_TRUE(world.pool.is_poison(0));
  EXPECT_EQ(world.store->count(StoreOp::kGet), 1u);
}

TEST(WorkerLoad, StepWithoutLoadsAsksNothing) {
  WorkerWorld world;
  world.start();
  EXPECT_TRUE(world.load({}).empty());
  EXPECT_TRUE(world.worker->load(0).empty());
  EXPECT_TRUE(world.store->calls().empty());
}

TEST(WorkerLoad, BlockThatSeveralRequestsWantIsFetchedOnce) {
  WorkerWorld world;
  world.start();
  world.put_all(2);
  EXPECT_TRUE(world
                  .load({world.task(1, 0, 1), world.task(1, 5, 2), world.task(2, 3, 2),
                         world.task(1, 9, 3)})
                  .empty());
  for (const SlotIndex slot : {0, 5, 9}) EXPECT_TRUE(world.pool.holds(slot, make_hash(1), 0));
  EXPECT_TRUE(world.pool.holds(3, make_hash(2), 0));
  EXPECT_EQ(world.store->calls().front().keys.size(), 2u);
  EXPECT_EQ(world.worker->stats().blocks_loaded, 4u);
}

TEST(WorkerLoad, NextBatchIsFetchedWhileThisOneIsCopied) {
  WorkerWorld world;
  world.options.batch_blocks = 4;
  const auto copier = std::make_shared<WatchedCopier>();
  world.copier = copier;
  world.start();
  world.put_all(12);
  std::vector<std::size_t> gets_seen;
  copier->before_copy_in = [&](SlotIndex slot) {
    if (slot % 4 == 0) {  // The first copy of a batch: the executor gets a turn.
      world.executor->run_all();
      gets_seen.push_back(world.store->count(StoreOp::kGet));
    }
    return Status();
  };
  EXPECT_TRUE(world.load(world.tasks(numbers_to(12))).empty());
  EXPECT_EQ(gets_seen, (std::vector<std::size_t>{2, 3, 3}));
  EXPECT_EQ(world.store->count(StoreOp::kGet), 3u) << "and no block twice";
}

TEST(WorkerLoad, BusyExecutorIsNotWaitedFor) {
  WorkerWorld world;
  world.options.batch_blocks = 4;
  world.start();
  world.put_all(12);
  // Nobody steps the executor: the loading thread does everything itself.
  EXPECT_TRUE(world.load(world.tasks(numbers_to(12))).empty());
  EXPECT_EQ(world.store->count(StoreOp::kGet), 3u);
  world.executor->run_all();
  EXPECT_EQ(world.store->count(StoreOp::kGet), 3u) << "what was taken over is not fetched again";
}

TEST(WorkerLoad, ExecutorThatRefusesIsDoneWithout) {
  WorkerWorld world;
  world.options.batch_blocks = 4;
  world.executor->refuse();
  world.start();
  world.put_all(12);
  EXPECT_TRUE(world.load(world.tasks(numbers_to(12))).empty());
}

TEST(WorkerLoad, WithThreadsAllBytesAreRight) {
  WorkerWorld world;
  world.options.batch_blocks = 2;
  world.executor_in_use = make_thread_pool({.name = "t", .threads = 2});
  world.start();
  world.put_all(60);
  for (int round = 0; round < 20; ++round) {
    world.pool.poison_all();
    const std::vector<PageTask> loads = world.tasks(numbers_to(60));
    ASSERT_TRUE(world.load(loads).empty());
    for (const PageTask& load : loads) ASSERT_TRUE(world.pool.holds(load.slot, load.block, 0));
  }
}

TEST(WorkerLoad, SavesThatWaitLeaveRoomForLoads) {
  WorkerWorld world;
  world.options.staging_bytes = 100'000;
  world.options.save_queue_bytes = 100'000;
  world.start();
  world.put_all(10);
  std::vector<std::uint64_t> many(60);
  for (std::size_t i = 0; i < many.size(); ++i) many[i] = 1000 + i;
  world.save(world.tasks(many));
  EXPECT_GT(world.worker->stats().saves_dropped, 0u) << "the queue is full";
  const std::vector<PageTask> loads = world.tasks(numbers_to(10));
  EXPECT_TRUE(world.load(loads).empty());
  for (const PageTask& load : loads) EXPECT_TRUE(world.pool.holds(load.slot, load.block, 0));
}

struct Damage {
  const char* name;
  std::function<std::vector<std::byte>(WorkerWorld&)> object;
  std::uint64_t WorkerStats::*counter;
};

std::vector<std::byte> resealed(WorkerWorld& world, std::function<void(BlockDescription*)> change) {
  std::vector<std::byte> object = world.sealed(1);
  BlockDescription description;
  std::uint16_t version = 0;
  EXPECT_TRUE(read_block_description(object, &description, &version));
  change(&description);
  seal_block(description, object);
  return object;
}

std::vector<Damage> damages() {
  const auto flip = [](std::size_t at) {
    return [at](WorkerWorld& world) {
      std::vector<std::byte> object = world.sealed(1);
      object[at] ^= std::byte{4};
      return object;
    };
  };
  const auto resize = [](std::size_t size) {
    return [size](WorkerWorld& world) {
      std::vector<std::byte> object = world.sealed(1);
      object.resize(size);
      return object;
    };
  };
  const auto reseal = [](std::function<void(BlockDescription*)> change) {
    return [change](WorkerWorld& world) { return resealed(world, change); };
  };
  constexpr std::size_t kSize = kBlockHeaderBytes + WorkerWorld::kPageBytes;
  return {
      {"payload bit", flip(kSize - 1), &WorkerStats::rejected_checksum},
      {"magic", flip(0), &WorkerStats::rejected_header},
      {"half", resize(kSize / 2), &WorkerStats::rejected_size},
      {"one byte short", resize(kSize - 1), &WorkerStats::rejected_size},
      {"one byte long", resize(kSize + 1), &WorkerStats::rejected_size},
      {"one byte", resize(1), &WorkerStats::rejected_size},
      {"other keyspace", reseal([](auto* d) { d->layout[3] ^= std::byte{1}; }),
       &WorkerStats::rejected_layout},
      {"other block", reseal([](auto* d) { d->block = make_hash(2); }),
       &WorkerStats::rejected_header},
      {"other rank", reseal([](auto* d) { ++d->rank; }), &WorkerStats::rejected_header},
      {"other world", reseal([](auto* d) { ++d->world_size; }), &WorkerStats::rejected_header},
      {"other token count", reseal([](auto* d) { ++d->token_count; }),
       &WorkerStats::rejected_header},
      {"other kind", reseal([](auto* d) { d->kind = ObjectKind::kReady; }),
       &WorkerStats::rejected_header},
  };
}

TEST_P(WorkerLoadOnBothKinds, DamagedBlockIsRefusedRemovedAndHealed) {
  for (const Damage& damage : damages()) {
    SCOPED_TRACE(damage.name);
    WorkerWorld world(GetParam());
    world.start();
    world.put_raw(world.shard(2), world.sealed(2));
    world.put_raw(world.shard(1), damage.object(world));
    const std::vector<LoadFailure> failures =
        world.load({world.task(1, 0, 11), world.task(2, 1, 12), world.task(1, 2, 13)});
    ASSERT_EQ(failures.size(), 2u);
    EXPECT_EQ(failures[0].status.code(), Code::kRejected);
    EXPECT_EQ(failures[0].key, world.shard(1));
    EXPECT_EQ(failures[0].request, 11u);
    EXPECT_EQ(failures[1].request, 13u);
    EXPECT_TRUE(world.pool.is_poison(0)) << "a page is written only with verified bytes";
    EXPECT_TRUE(world.pool.is_poison(2));
    EXPECT_TRUE(world.pool.holds(1, make_hash(2), 0)) << "all others are in place";
    const WorkerStats stats = world.worker->stats();
    EXPECT_EQ(stats.*damage.counter, 1u);
    EXPECT_EQ(stats.rejected_checksum + stats.rejected_header + stats.rejected_layout +
                  stats.rejected_size,
              1u);
    EXPECT_FALSE(world.stored(world.shard(1))) << "nobody is promised it again";
    world.save_now({world.task(1, 4)});
    EXPECT_EQ(world.read_raw(world.shard(1)), world.sealed(1));
    EXPECT_TRUE(world.load({world.task(1, 5)}).empty());
  }
}

TEST(WorkerLoad, BrokenShardThatCannotBeRemovedIsRemovedByTheNextSave) {
  WorkerWorld world;
  const auto faults = make_fault_store(
      world.store, {.seed = 1,
                    .rules = {{.kind = FaultKind::kError, .op = StoreOp::kRemove, .limit = 1}},
                    .before_item = {}});
  world.on = faults;
  world.start();
  std::vector<std::byte> object = world.sealed(1);
  object.back() ^= std::byte{1};
  world.put_raw(world.shard(1), object);
  EXPECT_EQ(world.load(world.tasks({1})).size(), 1u);
  EXPECT_TRUE(world.stored(world.shard(1)));
  world.save_now(world.tasks({1}));
  EXPECT_EQ(world.read_raw(world.shard(1)), world.sealed(1));
}

TEST(WorkerLoad, MissingBlockIsReportedAndAllOthersAreInPlace) {
  WorkerWorld world;
  world.options.batch_blocks = 3;
  world.start();
  world.put_all(10);
  for (const std::uint64_t lost : {1u, 5u, 10u}) world.lose(world.shard(lost));
  const std::vector<PageTask> loads = world.tasks(numbers_to(10));
  const std::vector<LoadFailure> failures = world.load(loads);
  ASSERT_EQ(failures.size(), 3u);
  for (const LoadFailure& failure : failures) {
    EXPECT_EQ(failure.status.code(), Code::kMissing);
    EXPECT_EQ(failure.request, 1u);
  }
  EXPECT_EQ(failures[1].key, world.shard(5));
  for (const PageTask& load : loads) {
    const std::uint64_t number = static_cast<std::uint64_t>(load.slot) + 1;
    const bool lost = number == 1 || number == 5 || number == 10;
    EXPECT_EQ(world.pool.holds(load.slot, load.block, 0), !lost);
    EXPECT_EQ(world.pool.is_poison(load.slot), lost);
  }
  EXPECT_EQ(world.worker->stats().loads_missing, 3u);
  EXPECT_EQ(world.worker->stats().blocks_loaded, 7u);
  EXPECT_EQ(world.logger->count("promised pages were not loaded"), 1u);
}

TEST(WorkerLoad, StaleBlockIsAskedForOnceMore) {
  for (const std::uint64_t times : {1u, 2u}) {
    WorkerWorld world;
    world.on = make_fault_store(world.store, {.seed = 1,
                                              .rules = {{.kind = FaultKind::kError,
                                                         .op = StoreOp::kGet,
                                                         .key_part = world.shard(2),
                                                         .reaction = Reaction::kStale,
                                                         .limit = times}},
                                              .before_item = {}});
    world.start();
    world.put_all(3);
    const std::vector<LoadFailure> failures = world.load(world.tasks(numbers_to(3)));
    EXPECT_EQ(failures.size(), times - 1);
    EXPECT_EQ(world.worker->stats().loads_missing, times - 1);
    ASSERT_EQ(world.store->count(StoreOp::kGet), times == 1 ? 2u : 1u);
    EXPECT_EQ(world.pool.holds(1, make_hash(2), 0), times == 1);
  }
}

TEST(WorkerLoad, PlanOfAnotherKeyspaceIsRefusedWithoutAStoreCall) {
  WorkerWorld world;
  world.start();
  world.put_all(2);
  world.worker->bind({.keyspace = {std::byte{9}}, .loads = world.tasks({1, 2}), .saves = {}});
  const std::vector<LoadFailure> failures = world.worker->load(0);
  ASSERT_EQ(failures.size(), 2u);
  EXPECT_EQ(failures[0].status.code(), Code::kRejected);
  EXPECT_TRUE(world.store->calls().empty());
  EXPECT_TRUE(world.pool.is_poison(0));
}

TEST(WorkerLoad, PagesOutOfRangeAreRefusedAndOthersLoaded) {
  WorkerWorld world;
  world.start();
  world.put_all(3);
  const std::vector<LoadFailure> failures =
      world.load({world.task(1, -1), world.task(2, WorkerWorld::kSlots), world.task(3, 1)});
  ASSERT_EQ(failures.size(), 2u);
  EXPECT_EQ(failures[0].status.code(), Code::kRejected);
  EXPECT_EQ(world.worker->stats().pages_out_of_range, 2u);
  EXPECT_TRUE(world.pool.holds(1, make_hash(3), 0));
  EXPECT_TRUE(world.pool.guards_intact());
}

TEST(WorkerLoad, PageIsNotPromisedToTwoBlocks) {
  WorkerWorld world;
  world.start();
  world.put_all(2);
  const std::vector<LoadFailure> failures =
      world.load({world.task(1, 0, 1), world.task(2, 0, 2), world.task(1, 0, 3)});
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_EQ(failures[0].request, 2u);
  EXPECT_TRUE(world.pool.holds(0, make_hash(1), 0));
}

TEST(WorkerLoad, CopyThatFailsIsReported) {
  WorkerWorld world;
  const auto copier = std::make_shared<WatchedCopier>();
  copier->before_copy_in = [](SlotIndex slot) {
    return slot == 1 ? Status(Code::kUnavailable, "device lost") : Status();
  };
  world.copier = copier;
  world.start();
  world.put_all(3);
  std::vector<LoadFailure> failures = world.load(world.tasks(numbers_to(3)));
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_EQ(failures[0].status.code(), Code::kUnavailable);

  copier->on_flush = [] { return Status(Code::kUnavailable, "device lost"); };
  failures = world.load(world.tasks(numbers_to(3)));
  EXPECT_EQ(failures.size(), 3u);
  EXPECT_EQ(world.worker->stats().blocks_loaded, 2u);
}

TEST(WorkerLoad, WithoutAPoolEveryLoadFails) {
  WorkerWorld world;
  Result<std::unique_ptr<Worker>> worker = Worker::create(world.options, world.parts());
  ASSERT_TRUE(worker.ok());
  (*worker)->bind({.keyspace = kTestKeyspace, .loads = world.tasks({1}), .saves = {}});
  const std::vector<LoadFailure> failures = (*worker)->load(0);
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_EQ(failures[0].status.code(), Code::kUnavailable);
}

TEST(WorkerLoad, DeadlineThatHasPassedFailsTheRest) {
  WorkerWorld world;
  world.options.batch_blocks = 2;
  world.options.load_deadline = std::chrono::seconds(1);
  const auto copier = std::make_shared<WatchedCopier>();
  copier->before_copy_in = [&](SlotIndex) {
    world.clock->advance(std::chrono::milliseconds(300));
    return Status();
  };
  world.copier = copier;
  world.start();
  world.put_all(12);
  const std::vector<LoadFailure> failures = world.load(world.tasks(numbers_to(12)));
  EXPECT_GE(failures.size(), 4u);
  EXPECT_LT(failures.size(), 12u);
  for (const LoadFailure& failure : failures) {
    EXPECT_EQ(failure.status.code(), Code::kTimedOut);
  }
  EXPECT_EQ(world.worker->stats().loads_unavailable, failures.size());
}

TEST(WorkerLoad, LoadThatRanOutOfTimeHalvesWhatMayBePromised) {
  WorkerWorld world;
  world.options.load_deadline = std::chrono::seconds(1);
  const auto copier = std::make_shared<WatchedCopier>();
  world.copier = copier;
  world.start();
  const std::size_t first = world.worker->load_budget_blocks();
  EXPECT_GT(first, 1u);
  world.put_all(4);
  EXPECT_TRUE(world.load(world.tasks(numbers_to(4))).empty());
  EXPECT_EQ(world.worker->load_budget_blocks(), first);  // Too small to tell anything.
  copier->before_copy_in = [&](SlotIndex) {
    world.clock->advance(std::chrono::seconds(2));
    return Status();
  };
  world.options.batch_blocks = 1;
  world.start();
  EXPECT_FALSE(world.load(world.tasks(numbers_to(4))).empty());
  EXPECT_EQ(world.worker->load_budget_blocks(), first / 2);
}

/// A worker on a store that may hang, behind the deadline decorator, in real time.
struct HangingWorld : WorkerWorld {
  HangingWorld() {
    // As long as a load may take on a machine that is busy, since the next one has to succeed.
    options.load_deadline = std::chrono::milliseconds(500);
    options.batch_blocks = 4;
    guarded_threads = make_thread_pool({.name = "g", .threads = 4});
    executor_in_use = make_thread_pool({.name = "t", .threads = 2});
    on = make_deadline_store(store, guarded_threads, system_clock(), counters);
  }

  void start_now() {
    Result<std::unique_ptr<Worker>> made = Worker::create(options, {.store = on,
                                                                    .executor = executor_in_use,
                                                                    .clock = system_clock(),
                                                                    .logger = logger,
                                                                    .copier = copier});
    ASSERT_TRUE(made.ok());
    worker = std::move(made).value();
    ASSERT_TRUE(worker->register_layout(kTestKeyspace, pool.layout).ok());
  }

  std::shared_ptr<StoreCallCounters> counters = std::make_shared<StoreCallCounters>();
  std::shared_ptr<Executor> guarded_threads;
};

TEST(FaultKinds, B26_StoreThatHangsFailsTheLoadInTimeAndRecovers) {
  HangingWorld world;
  world.start_now();
  world.put_all(12);
  world.store->close_gate(GatePoint::kBeforeReply);
  const std::vector<LoadFailure> failures = world.load(world.tasks(numbers_to(12)));
  EXPECT_EQ(failures.size(), 12u);
  for (SlotIndex slot = 0; slot < 12; ++slot) EXPECT_TRUE(world.pool.is_poison(slot));
  // The call that was given up writes into its own staging only, whenever it ends.
  world.store->open_gate();
  while (world.counters->abandoned_now.load() > 0) {
    ASSERT_TRUE(world.worker->drain(Deadline{}));
  }
  for (SlotIndex slot = 0; slot < 12; ++slot) EXPECT_TRUE(world.pool.is_poison(slot));
  EXPECT_TRUE(world.load(world.tasks(numbers_to(12))).empty());
  EXPECT_TRUE(world.pool.holds(11, make_hash(12), 0));
}

TEST(FaultKinds, B26_StoreThatFailsFailsTheLoadAndRecovers) {
  WorkerWorld world;
  world.start();
  world.put_all(8);
  world.store->answer_with(Reaction::kDown);
  const std::vector<LoadFailure> failures = world.load(world.tasks(numbers_to(8)));
  ASSERT_EQ(failures.size(), 8u);
  EXPECT_EQ(failures[0].status.code(), Code::kUnavailable);
  EXPECT_EQ(world.worker->stats().loads_unavailable, 8u);
  for (SlotIndex slot = 0; slot < 8; ++slot) EXPECT_TRUE(world.pool.is_poison(slot));
  world.store->answer_with(Reaction::kOk);
  EXPECT_TRUE(world.load(world.tasks(numbers_to(8))).empty());
}

TEST(FaultKinds, B25_BlockEvictedBeforeOrDuringTheLoadFailsOnlyItsRequest) {
  for (const std::uint64_t lost : {1u, 4u, 8u}) {
    for (const bool during : {false, true}) {
      WorkerWorld world;
      std::shared_ptr<MemoryStore> memory = world.memory;
      const std::string key = world.shard(lost);
      world.on = make_fault_store(
          world.store, {.seed = 1,
                        .rules = {},
                        .before_item = [memory, key, during](StoreOp op, const std::string&) {
                          if (during && op == StoreOp::kGet) {
                            (void)memory->remove({key}, {});
                          }
                        }});
      world.start();
      world.put_all(8);
      if (!during) world.lose(key);
      std::vector<PageTask> loads;
      for (const std::uint64_t number : numbers_to(8)) {
        loads.push_back(world.task(number, static_cast<SlotIndex>(number), 100 + number));
      }
      const std::vector<LoadFailure> failures = world.load(loads);
      ASSERT_EQ(failures.size(), 1u);
      EXPECT_EQ(failures[0].request, 100 + lost);
      EXPECT_EQ(failures[0].status.code(), Code::kMissing);
      EXPECT_TRUE(world.pool.is_poison(static_cast<SlotIndex>(lost)));
    }
  }
}

TEST(FaultKinds, B28_LeaseThatLapsesDuringTheTransferIsAMissNotBytes) {
  for (const bool says_so : {true, false}) {
    WorkerWorld world;
    world.on = std::make_shared<LapsingStore>(world.store, says_so);
    world.start();
    world.put_all(5);
    EXPECT_EQ(world.load(world.tasks(numbers_to(5))).size(), 5u);
    for (SlotIndex slot = 0; slot < 5; ++slot) EXPECT_TRUE(world.pool.is_poison(slot));
    EXPECT_EQ(world.worker->stats().loads_missing, says_so ? 5u : 0u);
    EXPECT_EQ(world.worker->stats().rejected_header, says_so ? 0u : 5u);
  }
}

TEST(FaultKinds, B29_WhateverIsNotASuccessIsAFailureOfTheRightBlock) {
  using Results = std::vector<GetResult>;
  struct Case {
    SpoilingStore::Spoil spoil;
    std::size_t failed;  // Of five, the third if one.
  };
  const std::vector<Case> cases{
      // Also when it is asked for again, alone.
      {[](Results* r) { (*r)[r->size() == 1 ? 0 : 2].reaction = Reaction::kMiss; }, 1},
      {[](Results* r) { (*r)[2].reaction = Reaction::kDown; }, 1},
      {[](Results* r) { (*r)[2].reaction = Reaction::kBackOff; }, 1},
      {[](Results* r) { (*r)[2].reaction = Reaction::kCallerBug; }, 1},
      {[](Results* r) { (*r)[2].bytes = 0; }, 1},
      {[](Results* r) { (*r)[2].bytes = std::size_t{1} << 40; }, 1},
      {[](Results* r) { r->pop_back(); }, 5},
      {[](Results* r) {
         r->push_back({Reaction::kOk, 1128});
       },
       5},
      {[](Results* r) { r->clear(); }, 5},
      {[](Results*) { throw std::bad_alloc(); }, 5},
      {[](Results*) { throw std::runtime_error("client"); }, 5},
  };
  for (std::size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(i);
    WorkerWorld world;
    world.on = std::make_shared<SpoilingStore>(world.store, cases[i].spoil);
    world.start();
    world.put_all(5);
    const std::vector<LoadFailure> failures = world.load(world.tasks(numbers_to(5)));
    ASSERT_EQ(failures.size(), cases[i].failed);
    if (failures.size() == 1) {
      EXPECT_EQ(failures[0].key, world.shard(3));
    }
    for (SlotIndex slot = 0; slot < 5; ++slot) {
      const bool failed = cases[i].failed == 5 || slot == 2;
      EXPECT_EQ(world.pool.is_poison(slot), failed);
    }
  }
}

TEST(FaultKinds, B34_LostShardOfThisRankFailsTheLoadHere) {
  WorkerWorld world;
  world.options.world_size = 4;
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    world.options.rank = rank;
    world.start();
    world.put_all(3);
    EXPECT_TRUE(world.load(world.tasks(numbers_to(3))).empty());
    world.lose(world.shard(2));
    const std::vector<LoadFailure> failures = world.load(world.tasks(numbers_to(3)));
    ASSERT_EQ(failures.size(), 1u);
    EXPECT_EQ(failures[0].key, world.shard(2));
  }
}

TEST(FaultKinds, B83_FailedLoadsLeaveNoStagingBehind) {
  WorkerWorld world;
  world.options.staging_bytes = 32'768 + 4 * 4096;
  world.options.save_queue_bytes = 2000;
  world.start();
  world.put_all(4);
  for (int i = 0; i < 200; ++i) {
    world.store->answer_with(i % 3 == 0 ? Reaction::kDown : Reaction::kOk);
    (void)world.load(world.tasks({1, 2, 3, 4, 99}));
  }
  world.store->answer_with(Reaction::kOk);
  EXPECT_TRUE(world.load(world.tasks({1, 2, 3, 4})).empty());
}

}  // namespace
}  // namespace kvc
