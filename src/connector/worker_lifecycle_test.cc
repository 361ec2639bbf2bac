// Start, drain and end of a worker.

#include <future>
#include <memory>
#include <string>

#include "connector/worker_fixture.h"
#include "store/wrap/deadline_store.h"

namespace kvc {
namespace {

using testlib::GatePoint;

TEST(Worker, RefusesWhatCannotWork) {
  WorkerWorld world;
  const auto code_of = [&world](auto&& change) {
    WorkerOptions options = world.options;
    change(options);
    return Worker::create(options, world.parts()).status().code();
  };
  EXPECT_EQ(code_of([](auto&) {}), Code::kOk);
  EXPECT_EQ(code_of([](auto& o) { o.world_size = 0; }), Code::kInvalid);
  EXPECT_EQ(code_of([](auto& o) { o.rank = 1; }), Code::kInvalid);
  EXPECT_EQ(code_of([](auto& o) { o.tokens_per_block = 0; }), Code::kInvalid);
  EXPECT_EQ(code_of([](auto& o) { o.batch_blocks = 0; }), Code::kInvalid);
  EXPECT_EQ(code_of([](auto& o) { o.batch_bytes = 0; }), Code::kInvalid);
  EXPECT_EQ(code_of([](auto& o) { o.load_deadline = Duration(0); }), Code::kInvalid);
  EXPECT_EQ(code_of([](auto& o) { o.save_deadline = Duration(0); }), Code::kInvalid);
  WorkerParts parts = world.parts();
  parts.copier = nullptr;
  EXPECT_EQ(Worker::create(world.options, parts).status().code(), Code::kInvalid);
}

TEST(Worker, PoolIsRegisteredOnce) {
  WorkerWorld world;
  world.start();
  EXPECT_EQ(world.worker->register_layout(kTestKeyspace, world.pool.layout).code(), Code::kInvalid);
  EXPECT_EQ(world.store->registered(), 1u);
}

TEST(Worker, RefusesPoolsThatItCannotServe) {
  WorkerWorld world;
  Result<std::unique_ptr<Worker>> worker = Worker::create(world.options, world.parts());
  ASSERT_TRUE(worker.ok());
  EXPECT_EQ((*worker)->register_layout(kTestKeyspace, {}).code(), Code::kInvalid);
  TestPool second(4, 100);
  PagedLayout two = world.pool.layout;
  two.groups.push_back(second.layout.groups.front());
  EXPECT_EQ((*worker)->register_layout(kTestKeyspace, two).code(), Code::kUnsupported);

  TestPool large(2, std::size_t{1} << 20);
  const Status too_large = (*worker)->register_layout(kTestKeyspace, large.layout);
  EXPECT_EQ(too_large.code(), Code::kInvalid);
  EXPECT_EQ(too_large.message().find("staging_bytes is "), 0u) << "not the queue, a part of it";
  EXPECT_TRUE((*worker)->register_layout(kTestKeyspace, world.pool.layout).ok())
      << "a refusal leaves nothing behind";
}

TEST(Worker, BlockAboveTheStoresLimitIsRefusedAtTheStart) {
  WorkerWorld world(MemoryStoreOptions{.capacity_bytes = WorkerWorld::kPageBytes,
                                       .max_objects = 10,
                                       .atomic_publish = true,
                                       .between_steps = {}});
  Result<std::unique_ptr<Worker>> worker = Worker::create(world.options, world.parts());
  const Status status = (*worker)->register_layout(kTestKeyspace, world.pool.layout);
  EXPECT_EQ(status.code(), Code::kInvalid);
  EXPECT_NE(status.message().find("the store takes at most 1000"), std::string::npos);
}

TEST(FaultKinds, B75_StoreThatRefusesTheStagingMemoryIsTold) {
  WorkerWorld world;
  Result<std::unique_ptr<Worker>> worker = Worker::create(world.options, world.parts());
  world.memory->close(Deadline{});
  EXPECT_EQ((*worker)->register_layout(kTestKeyspace, world.pool.layout).code(),
            Code::kUnavailable);
}

TEST(Worker, DrainWaitsForWhatWasTakenSoFar) {
  WorkerWorld world;
  world.start();
  EXPECT_TRUE(world.worker->drain(Deadline{Instant{}})) << "nothing to wait for";
  world.save(world.tasks({1}));
  EXPECT_FALSE(world.worker->drain(Deadline{Instant{}}));
  world.executor->run_all();
  EXPECT_TRUE(world.worker->drain(Deadline{Instant{}}));
}

TEST(Worker, DrainWaitsAcrossThreads) {
  WorkerWorld world;
  world.executor_in_use = make_thread_pool({.name = "t", .threads = 2});
  world.start();
  for (std::uint64_t number = 0; number < 200; ++number) {
    world.save({world.task(number, static_cast<SlotIndex>(number % 64))});
    if (number % 20 == 0) {
      ASSERT_TRUE(world.worker->drain(Deadline{}));
    }
  }
  ASSERT_TRUE(world.worker->drain(Deadline{}));
  const WorkerStats stats = world.worker->stats();
  EXPECT_EQ(stats.blocks_saved + stats.saves_dropped, 200u);
  EXPECT_EQ(stats.save_queue_bytes, 0u);
  EXPECT_EQ(stats.blocks_committed, stats.blocks_saved);
}

TEST(Worker, CloseDropsTheQueueAndUnregisters) {
  WorkerWorld world;
  world.start();
  world.save(world.tasks({1, 2}));
  world.worker->close(Deadline{Instant{}});
  world.worker->close(Deadline{Instant{}});
  EXPECT_EQ(world.worker->stats().saves_dropped, 2u);
  EXPECT_EQ(world.store->registered(), 0u);
  world.executor->run_all();
  EXPECT_TRUE(world.store->calls().empty());
}

TEST(Worker, ClosedWorkerDoesNothingAndServesNothing) {
  WorkerWorld world;
  world.start();
  world.put_raw(world.shard(1), world.sealed(1));
  world.bind(world.tasks({1}), world.tasks({2}));
  world.worker->close(Deadline{});
  EXPECT_EQ(world.worker->load(0).size(), 1u) << "a promise that is not kept is told";
  world.worker->save(0);
  world.executor->run_all();
  EXPECT_TRUE(world.store->calls().empty());
  EXPECT_TRUE(world.worker->drain(Deadline{}));
  EXPECT_EQ(world.worker->register_layout(kTestKeyspace, world.pool.layout).code(),
            Code::kUnavailable);
}

TEST(Worker, TasksThatComeAfterItsEndDoNothing) {
  WorkerWorld world;
  world.start();
  world.save(world.tasks({1, 2}));
  world.worker.reset();
  EXPECT_EQ(world.executor->run_all(), 1u);
  EXPECT_TRUE(world.store->calls().empty());
  EXPECT_EQ(world.store->registered(), 0u);
}

TEST(Worker, ExecutorThatRefusesCostsTheSaves) {
  WorkerWorld world;
  world.executor->refuse();
  world.start();
  world.save(world.tasks({1, 2}));
  EXPECT_EQ(world.worker->stats().saves_dropped, 2u);
  EXPECT_TRUE(world.worker->drain(Deadline{Instant{}}));
}

TEST(Worker, RunsOnAnExecutorThatRunsTasksAtOnce) {
  WorkerWorld world;
  world.executor_in_use = std::make_shared<testlib::InlineExecutor>();
  world.options.batch_blocks = 2;
  world.start();
  world.save(world.tasks({1, 2, 3, 4, 5}));
  EXPECT_EQ(world.worker->stats().blocks_saved, 5u);
  EXPECT_TRUE(world.load(world.tasks({1, 2, 3, 4, 5})).empty());
}

TEST(Worker, StoreThatHangsDoesNotKeepItFromEnding) {
  WorkerWorld world;
  const std::shared_ptr<Executor> threads = make_thread_pool({.name = "g", .threads = 2});
  const auto counters = std::make_shared<StoreCallCounters>();
  world.executor_in_use = make_thread_pool({.name = "t", .threads = 1});
  world.on = make_deadline_store(world.store, threads, system_clock(), counters);
  Result<std::unique_ptr<Worker>> worker =
      Worker::create(world.options, {.store = world.on,
                                     .executor = world.executor_in_use,
                                     .clock = system_clock(),
                                     .logger = world.logger,
                                     .copier = world.copier});
  ASSERT_TRUE((*worker)->register_layout(kTestKeyspace, world.pool.layout).ok());
  world.store->close_gate(GatePoint::kBeforeCall);
  world.pool.fill(0, make_hash(1), 0);
  (*worker)->bind({.keyspace = kTestKeyspace, .loads = {}, .saves = world.tasks({1})});
  (*worker)->save(0);
  ASSERT_TRUE(world.store->wait_for_waiting(1));
  (*worker)->close(Deadline::after(*system_clock(), std::chrono::milliseconds(5)));
  EXPECT_EQ(world.store->registered(), 1u) << "the call may still read the staging memory";
  EXPECT_EQ(world.logger->count("the staging memory stays allocated"), 1u);
  worker->reset();
  world.store->open_gate();
  std::promise<void> ended;  // The one thread comes to it after the save.
  ASSERT_TRUE(world.executor_in_use->submit([&ended] { ended.set_value(); }));
  ended.get_future().wait();
  // It was sealed and put from the snapshot, long after the worker's end.
  EXPECT_EQ(world.read_raw(world.shard(1)), world.sealed(1));
}

TEST(Worker, TwoWorkersOfOneProcessDoNotMeet) {
  WorkerWorld world;
  world.start();
  TestPool pool(8, WorkerWorld::kPageBytes);
  Result<std::unique_ptr<Worker>> other = Worker::create(world.options, world.parts());
  const Fingerprint keyspace{std::byte{42}};
  ASSERT_TRUE((*other)->register_layout(keyspace, pool.layout).ok());
  world.save_now(world.tasks({1}));
  (*other)->bind({.keyspace = keyspace, .loads = world.tasks({1}), .saves = {}});
  EXPECT_EQ((*other)->load(0).size(), 1u);
}

}  // namespace
}  // namespace kvc
