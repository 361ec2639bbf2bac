// A rank whose memory runs out: orders of a leader that come while the staging memory is too small
// for them, blocks that are missing or damaged, loads and saves, its start and its end.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "tests/out_of_memory/world.h"

namespace kvc::testlib {
namespace {

constexpr std::size_t kStored = 12;
constexpr HoldId kHolds = 6;

std::vector<BlockHash> stored_blocks() { return names_of(make_tokens(kStored * kBlockTokens)); }

std::vector<PageTask> tasks_of(std::span<const BlockHash> blocks) {
  std::vector<PageTask> tasks;
  for (const BlockHash& block : blocks) {
    tasks.push_back({.request = 1, .block = block, .slot = static_cast<SlotIndex>(tasks.size())});
  }
  return tasks;
}

/// What a leader that counts no more than it has heard may rely on.
class Orders {
 public:
  Orders(World& world, std::shared_ptr<StageRank> rank) : world_(world), rank_(std::move(rank)) {}

  void stage(HoldId hold, std::vector<BlockHash> blocks) {
    blocks_[hold] = blocks;
    heard_[hold] = 0;
    StageOrder order{.hold = hold, .blocks = std::move(blocks), .fetch_budget = kBudget};
    StageRank::Report report = [this](const StageProgress& progress) {
      const Spared spared;
      std::uint32_t& heard = heard_[progress.hold];
      heard = std::max(heard, progress.staged);
    };
    must_not_throw("stage", [&] { rank_->stage(std::move(order), std::move(report)); });
  }
  void release(HoldId hold, std::uint32_t from) {
    heard_[hold] = std::min(heard_[hold], from);
    must_not_throw("release", [&] { rank_->release({.hold = hold, .from_block = from}); });
  }
  void keep_only(const std::vector<HoldId>& live, HoldId newest) {
    for (auto& [hold, heard] : heard_) {
      if (hold <= newest && !std::ranges::count(live, hold)) heard = 0;
    }
    must_not_throw("keep_only", [&] { rank_->keep_only(live, newest); });
  }
  void step() {
    must_not_throw("a task", [&] { (void)world_.executor().step(); });
  }
  std::size_t heard(HoldId hold) const { return heard_.at(hold); }

  /// What was said to be staged, and is not released, is there.
  void check() const {
    for (const auto& [hold, staged] : heard_) {
      const std::span<const BlockHash> blocks(blocks_.at(hold));
      EXPECT_GE(world_.worker(0).resident_prefix(blocks), staged) << "hold " << hold;
    }
  }

 private:
  static constexpr Duration kBudget = std::chrono::minutes(10);
  World& world_;
  const std::shared_ptr<StageRank> rank_;
  std::map<HoldId, std::vector<BlockHash>> blocks_;
  std::map<HoldId, std::uint32_t> heard_;
};

WorldOptions small_staging(Shortage shortage) {
  WorldOptions options;
  options.staged = true;
  options.staging_bytes = std::size_t{7} * 4096;  // Five pages, and what saves need beside them.
  options.save_queue_bytes = 2 * kBytesOfPage;
  options.shortage = shortage;
  return options;
}

/// Stored, with the last block but one damaged.
void fill(const WorldOptions& options) {
  WorldOptions roomy = options;
  roomy.staging_bytes = std::size_t{256} << 10;
  roomy.save_queue_bytes = std::size_t{64} << 10;
  World writer(roomy);
  (void)writer.serve(make_tokens(kStored * kBlockTokens + 1));
  writer.end();
  const std::string damaged = ObjectKeys(kTestKeyspace).shard(stored_blocks()[kStored - 2], 0);
  (void)options.memory->remove({damaged}, {});
  const std::vector<std::byte> nonsense(kBlockHeaderBytes + kBytesOfPage);
  (void)options.memory->put({{damaged, nonsense.data(), nonsense.size()}}, {});
}

/// The engine's part of a step, with or without memory. False: it was told that it failed.
bool load_and_save(World& world, const std::vector<PageTask>& loads, std::vector<HoldId> done,
                   const std::vector<PageTask>& saves) {
  Worker& worker = world.worker(0);
  StepPlan plan{.keyspace = kTestKeyspace, .loads = loads, .saves = saves};
  plan.done_holds = std::move(done);
  world.pool(0).poison_all();
  must_not_throw("bind", [&] { worker.bind(std::move(plan)); });
  try {
    const Armed armed;
    if (!worker.load(0).empty()) return false;
  } catch (const std::bad_alloc&) {
    return false;
  }
  for (const PageTask& task : loads) {
    EXPECT_TRUE(world.pool(0).holds(task.slot, task.block, 0)) << task.slot;
  }
  for (const PageTask& task : saves) world.pool(0).fill(task.slot, task.block, 0);
  must_not_throw("save", [&] { EXPECT_TRUE(worker.save(0).empty()); });
  world.pool(0).poison_all();
  return true;
}

void order_short_of_memory(Shortage shortage) {
  WorldOptions options;
  std::vector<BlockHash> blocks;
  std::unique_ptr<World> world;
  {
    const Spared spared;
    options = small_staging(shortage);
    blocks = stored_blocks();
    fill(options);
    world = std::make_unique<World>(options);
  }
  Orders orders(*world, world->worker(0).stage_rank());
  const std::span<const BlockHash> all(blocks);
  const auto some = [&](std::size_t first, std::size_t count) {
    const auto part = all.subspan(first, count);
    return std::vector<BlockHash>(part.begin(), part.end());
  };
  orders.stage(1, some(0, 4));
  orders.step();
  orders.stage(2, some(2, 4));
  orders.release(1, 2);
  orders.check();
  orders.step();
  orders.release(1, 0);
  orders.stage(3, names_of(make_tokens(2 * kBlockTokens, 9000)));  // Nobody has stored them.
  orders.release(5, 0);                                            // Before it is ordered.
  orders.stage(5, some(0, 1));
  world->run_tasks();
  orders.check();
  (void)load_and_save(*world, tasks_of(some(2, orders.heard(2))), {2},
                      tasks_of(names_of(make_tokens(3 * kBlockTokens, 7000))));
  orders.release(2, 0);
  orders.stage(4, some(kStored - 3, 3));  // The second one is refused.
  world->run_tasks();
  orders.check();
  (void)load_and_save(*world, tasks_of(some(6, 2)), {}, {});  // Nobody has staged them.
  orders.keep_only({4}, kHolds);
  orders.stage(7, some(6, 2));
  world->run_tasks();
  must_not_throw("drain", [&] { EXPECT_TRUE(world->worker(0).drain(Deadline{})); });
  must_not_throw("stats", [&] { EXPECT_EQ(world->worker(0).stats().fetches_in_flight, 0u); });

  // Whatever was lost, a later order gets all, and its load as well.
  const Spared spared;
  orders.keep_only({}, 7);
  orders.keep_only({}, 8);
  EXPECT_EQ(world->worker(0).stats().tier_blocks_held, 0u);
  orders.stage(9, some(0, 4));
  world->run_tasks();
  EXPECT_EQ(orders.heard(9), 4u);
  EXPECT_TRUE(load_and_save(*world, tasks_of(some(0, 4)), {9}, {}));
  world->end();
}

/// A start that fails can be tried again, and leaves nothing with the store; so does an end.
void start_short_of_memory(bool staged, Shortage shortage) {
  std::unique_ptr<World> world;
  std::unique_ptr<Worker> worker;
  {
    const Spared spared;
    WorldOptions options;
    options.staged = staged;
    options.shortage = shortage;
    world = std::make_unique<World>(options);
    worker = world->make_worker(0);
  }
  const PagedLayout& layout = world->pool(0).layout;
  bool started = false;
  must_not_throw("register_layout",
                 [&] { started = worker->register_layout(kTestKeyspace, layout).ok(); });
  {
    const Spared spared;
    EXPECT_EQ(world->registered(), started ? 2 : 1);
    if (!started) {
      EXPECT_TRUE(worker->register_layout(kTestKeyspace, layout).ok());
    }
  }
  must_not_throw("close", [&] { worker->close(Deadline{}); });
  const Spared spared;
  worker.reset();
  world->end();
}

class OutOfMemoryOnARank : public ::testing::TestWithParam<Shortage> {};

TEST_P(OutOfMemoryOnARank, WhatIsSaidToBeStagedIsThereAndLaterOrdersAreServed) {
  const std::size_t points =
      at_every_allocation(GetParam(), [] { order_short_of_memory(GetParam()); });
  RecordProperty("allocations", static_cast<int>(points));
  EXPECT_GT(points, 100u);
}

TEST_P(OutOfMemoryOnARank, StartAndEndLeaveNothingWithTheStore) {
  for (const bool staged : {false, true}) {
    const std::size_t points =
        at_every_allocation(GetParam(), [staged] { start_short_of_memory(staged, GetParam()); });
    EXPECT_GT(points, 10u);
  }
}

INSTANTIATE_TEST_SUITE_P(All, OutOfMemoryOnARank,
                         ::testing::Values(Shortage::kOnce, Shortage::kFromThenOn),
                         [](const ::testing::TestParamInfo<Shortage>& of) {
                           return of.param == Shortage::kOnce ? "Once" : "FromThenOn";
                         });

}  // namespace
}  // namespace kvc::testlib
