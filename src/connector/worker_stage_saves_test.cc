// Staged mode, on a rank: what is saved passes through the host tier, and is a hit from then on.

#include <cstddef>
#include <vector>

#include "connector/worker_stage_fixture.h"

namespace kvc {
namespace {

TEST(WorkerStage, WhatWasJustSavedIsAHitAtOnce) {
  StageWorld world;
  world.start();
  world.save(world.tasks({1, 2, 3}));
  EXPECT_EQ(world.store->calls().size(), 0u) << "nothing is stored yet";
  EXPECT_EQ(world.worker->resident_prefix(StageWorld::blocks({1, 2, 3})), 3u);
  world.order(1, {1, 2, 3});
  EXPECT_EQ(world.take_heard(), "1:3 all");
  world.pool.poison_all();
  const std::vector<PageTask> loads = world.tasks({1, 2, 3});
  EXPECT_TRUE(world.load_held(loads, {1}).empty());
  EXPECT_TRUE(world.all_hold(loads));
  world.executor->run_all();
  for (const std::uint64_t number : {1u, 2u, 3u}) {
    EXPECT_EQ(world.read_raw(world.shard(number)), world.sealed(number));
  }
  EXPECT_EQ(world.worker->stats().blocks_committed, 3u);
  world.pool.poison_all();
  world.memory->close(Deadline{});
  EXPECT_TRUE(world.load_held(loads, {}).empty()) << "and stays one when it is stored";
  EXPECT_TRUE(world.all_hold(loads));
}

TEST(WorkerStage, SavesMakeRoomInTheTierAndKeepTheirLimit) {
  StageWorld world;
  world.limit_pages(8, 3);
  world.start();
  world.put_all(8);
  world.stage(1, numbers_to(8));
  world.rank->release({.hold = 1, .from_block = 0});
  EXPECT_EQ(world.worker->stats().tier_blocks, 8u);
  world.save(world.tasks({11, 12, 13, 14, 15}));
  WorkerStats stats = world.worker->stats();
  EXPECT_EQ(stats.saves_dropped, 2u) << "three at a time";
  EXPECT_EQ(stats.tier_evictions, 3u);
  world.executor->run_all();
  EXPECT_EQ(world.worker->stats().blocks_committed, 3u);
  world.save(world.tasks({14, 15}));
  EXPECT_EQ(world.worker->stats().saves_dropped, 2u) << "those that are stored do not count";
  for (const std::uint64_t number : {11u, 12u, 13u, 14u, 15u}) {
    EXPECT_EQ(world.worker->resident_prefix(StageWorld::blocks({number})), 1u);
  }
}

TEST(WorkerStage, HeldPagesAreNotForSaves) {
  StageWorld world;
  world.limit_pages(4, 2);
  world.start();
  world.put_all(4);
  world.stage(1, numbers_to(4));
  world.save(world.tasks({11, 12}));
  EXPECT_EQ(world.worker->stats().saves_dropped, 2u);
  const std::vector<PageTask> loads = world.tasks(numbers_to(4));
  EXPECT_TRUE(world.load_held(loads, {1}).empty());
  EXPECT_TRUE(world.all_hold(loads));
}

TEST(WorkerStage, LoadsFromTheStoreMakeRoomInTheTier) {
  StageWorld world;
  world.limit_pages(4);
  world.start();
  world.put_all(8);
  world.stage(1, {1, 2, 3, 4});
  EXPECT_TRUE(world.load_held(world.tasks({5, 6}), {}).empty()) << "one page is left for loads";
  EXPECT_TRUE(world.all_hold(world.tasks({5, 6})));
  EXPECT_EQ(world.worker->stats().tier_blocks, 4u) << "and stays so";
  world.rank->release({.hold = 1, .from_block = 0});
  const std::vector<PageTask> loads = world.tasks({5, 6, 7, 8});
  EXPECT_TRUE(world.load_held(loads, {}).empty());
  EXPECT_TRUE(world.all_hold(loads));
}

TEST(WorkerStage, WhatWasLoadedFromTheStoreStaysWarm) {
  StageWorld world;
  world.start();
  world.put_all(3);
  world.lose(world.shard(3));
  EXPECT_EQ(world.load_held(world.tasks({1, 2, 3}), {}).size(), 1u);
  EXPECT_EQ(world.worker->stats().tier_blocks, 2u);
  world.memory->close(Deadline{});
  world.pool.poison_all();
  EXPECT_TRUE(world.load_held(world.tasks({1, 2}), {}).empty());
  EXPECT_TRUE(world.all_hold(world.tasks({1, 2})));
}

TEST(WorkerStage, SavedBlockWhoseStoreFailedIsServedAllTheSame) {
  StageWorld world;
  world.start();
  world.store->answer_with(Reaction::kDown);
  world.save_now(world.tasks({1}));
  EXPECT_EQ(world.worker->stats().saves_failed, 1u);
  world.pool.poison_all();
  EXPECT_TRUE(world.load_held(world.tasks({1}), {}).empty());
  EXPECT_TRUE(world.pool.holds(0, make_hash(1), 0));
}

TEST(WorkerStage, WhatIsNotStoredSinceSavesPauseIsAHitAllTheSame) {
  StageWorld world;
  world.start();
  world.store->answer_with(Reaction::kBackOff);
  world.save_now(world.tasks({1}));
  world.store->answer_with(Reaction::kOk);
  const std::size_t calls = world.store->calls().size();
  const std::vector<PageTask> tasks = world.tasks({2, 3});
  world.save_now(tasks);
  world.save_now(tasks);
  EXPECT_EQ(world.worker->stats().saves_dropped, 4u);
  EXPECT_EQ(world.worker->stats().save_queue_bytes, 0u);
  world.pool.poison_all();
  EXPECT_TRUE(world.load_held(tasks, {}).empty());
  EXPECT_TRUE(world.all_hold(tasks));
  EXPECT_EQ(world.store->calls().size(), calls) << "the store is left alone";
}

TEST(WorkerStage, WhileSavesPauseAStepCopiesNoMoreThanCouldBeQueued) {
  constexpr std::size_t kPage = std::size_t{5} << 20;  // Each is handed over by itself.
  StageWorld world;
  world.pool = TestPool(3, kPage);
  world.options.staging_bytes = std::size_t{64} << 20;
  world.options.save_queue_bytes = 2 * kPage;
  world.start();
  world.store->answer_with(Reaction::kBackOff);
  world.save_now(world.tasks({1}));
  world.save(world.tasks({11, 12, 13}));
  EXPECT_EQ(world.worker->stats().saves_dropped, 3u);
  EXPECT_EQ(world.worker->resident_prefix(StageWorld::blocks({11, 12, 13})), 2u);
  world.save(world.tasks({13}));
  EXPECT_EQ(world.worker->resident_prefix(StageWorld::blocks({13})), 1u) << "the next may";
}

}  // namespace
}  // namespace kvc
