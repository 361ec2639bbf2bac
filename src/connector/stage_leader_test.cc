#include "kvc/stage_leader.h"

#include <gtest/gtest.h>

#include "connector/stage_fixture.h"
#include "kvc/executor.h"

namespace kvc {
namespace {

using Releases = std::vector<HoldRelease>;
using Holds = std::vector<HoldId>;

constexpr Duration kBudget = std::chrono::seconds(1);

std::vector<BlockHash> blocks_of(std::size_t count) {
  std::vector<BlockHash> blocks(count);
  for (std::size_t i = 0; i < count; ++i) blocks[i].bytes[0] = static_cast<std::byte>(i + 1);
  return blocks;
}

StagedBlocks stage(StageFixture& world, std::size_t blocks) {
  return world.leader->stage(blocks_of(blocks), Deadline::after(*world.clock, kBudget));
}

StepPlan plan(StageFixture& world, Holds loaded = {}) {
  StepPlan plan;
  world.leader->plan(loaded, &plan);
  return plan;
}

TEST(StageLeader, OrdersTheSameFromEveryRankAndPromisesTheShortest) {
  StageFixture world(3);
  world.stages(1, 2);
  const StagedBlocks staged = stage(world, 4);
  EXPECT_EQ(staged.blocks, 2u);
  EXPECT_EQ(staged.end, StageEnd::kMissing);
  EXPECT_EQ(staged.rank, 1u);
  EXPECT_NE(staged.hold, 0u);
  for (const auto& link : world.links) {
    ASSERT_EQ(link->orders().size(), 1u);
    EXPECT_EQ(link->orders()[0].hold, staged.hold);
    EXPECT_EQ(link->orders()[0].blocks, blocks_of(4));
    EXPECT_GT(link->orders()[0].fetch_budget, kBudget) << "what comes late serves the next request";
    EXPECT_EQ(link->releases(), (Releases{{staged.hold, 2}}));
  }
}

TEST(StageLeader, NothingToStageIsNotOrdered) {
  StageFixture world(1);
  EXPECT_EQ(stage(world, 0).blocks, 0u);
  EXPECT_EQ(world.orders(), 0u);
}

TEST(StageLeader, OrdersNoMoreThanOneMessageHolds) {
  StageFixture world(2);
  const StagedBlocks staged = stage(world, 2 * kMaxOrderBlocks + 1);
  EXPECT_EQ(staged.blocks, kMaxOrderBlocks);
  EXPECT_EQ(staged.end, StageEnd::kAll);
  for (const auto& link : world.links) {
    EXPECT_EQ(link->orders().at(0).blocks.size(), kMaxOrderBlocks);
  }
}

TEST(StageLeader, TakesAtTheDeadlineWhatIsThere) {
  StageFixture world(2);
  world.works_on(1, 3, 2 * kBudget);
  const StagedBlocks staged = stage(world, 5);
  EXPECT_EQ(staged.blocks, 3u);
  EXPECT_EQ(staged.end, StageEnd::kLate);
  EXPECT_EQ(staged.rank, 1u);
  world.report(1, {staged.hold, 5, true, StageEnd::kAll});
  EXPECT_EQ(world.links[1]->releases(), (Releases{{staged.hold, 3}}))
      << "the late ones belong to nobody's promise";
}

TEST(StageLeader, HungRankCostsTheBudgetAndNoMore) {
  StageFixture world(2, std::make_shared<testlib::SimClock>(std::chrono::milliseconds(10)));
  world.links[1]->answer_with(nullptr);
  const Instant asked = world.clock->now();
  const StagedBlocks staged = stage(world, 5);
  EXPECT_EQ(staged.blocks, 0u);
  EXPECT_EQ(staged.hold, 0u);
  EXPECT_EQ(staged.end, StageEnd::kLate);
  EXPECT_LE(world.clock->now() - asked, kBudget + std::chrono::milliseconds(200));
  EXPECT_EQ(world.leader->holds(), 0u);
}

TEST(StageLeader, DeadlineThatIsOverStillTakesWhatIsResident) {
  StageFixture world(2);
  EXPECT_EQ(world.leader->stage(blocks_of(3), {world.clock->now()}).blocks, 3u);
}

TEST(StageLeader, RankThatIsNotConnectedIsNotWaitedFor) {
  StageFixture world(2);
  world.links[1]->set_connected(false);
  EXPECT_FALSE(world.leader->connected());
  const StagedBlocks staged = stage(world, 5);
  EXPECT_EQ(staged.blocks, 0u);
  EXPECT_EQ(staged.end, StageEnd::kUnavailable);
  EXPECT_EQ(staged.rank, 1u);
  EXPECT_EQ(world.orders(), 0u) << "no rank fetches what cannot be promised";
  world.links[1]->set_connected(true);
  EXPECT_EQ(stage(world, 5).blocks, 5u);
}

TEST(StageLeader, NeedsALinkToEachRank) {
  StageFixture world(2);
  for (const bool hole : {true, false}) {
    std::vector<std::shared_ptr<StageLink>> links = {world.links[0]};
    if (hole) links.push_back(nullptr);
    world.leader->set_links(links);
    EXPECT_FALSE(world.leader->connected());
    EXPECT_EQ(stage(world, 5).end, StageEnd::kUnavailable);
  }
}

TEST(StageLeader, RankLostWhileItIsWaitedForEndsTheWait) {
  StageFixture world(2);
  world.links[1]->answer_with([&](const StageOrder&) { world.leader->on_rank_lost(1); });
  StagedBlocks staged = stage(world, 5);
  EXPECT_EQ(staged.blocks, 0u);
  EXPECT_EQ(staged.end, StageEnd::kUnavailable);
  // Its link noticed, but told nobody.
  world.links[1]->answer_with([&](const StageOrder&) { world.links[1]->set_connected(false); });
  staged = stage(world, 5);
  EXPECT_EQ(staged.end, StageEnd::kUnavailable);
  EXPECT_EQ(staged.rank, 1u);
}

TEST(StageLeader, OrderThatNoConnectionTakesIsNotWaitedFor) {
  // Each rank in turn is between two connections: there when it is looked for before and after.
  for (const std::uint32_t rank : {0u, 1u, 2u}) {
    StageFixture world(3, std::make_shared<testlib::SimClock>(std::chrono::milliseconds(1)));
    world.links[rank]->set_takes_orders(false);
    const Instant asked = world.clock->now();
    const StagedBlocks staged = stage(world, 5);
    EXPECT_EQ(staged.blocks, 0u);
    EXPECT_EQ(staged.end, StageEnd::kUnavailable);
    EXPECT_EQ(staged.rank, rank);
    EXPECT_LT(world.clock->now() - asked, kBudget / 2);
    world.links[rank]->set_takes_orders(true);
    EXPECT_EQ(stage(world, 5).blocks, 5u);
  }
}

TEST(StageLeader, WaitsForReportsOfOtherThreads) {
  StageFixture world(2);
  world.links[1]->answer_with(nullptr);
  const std::unique_ptr<Executor> threads = make_thread_pool({.name = "t", .threads = 1});
  ASSERT_TRUE(threads->submit([&] {
    const StageOrder order = world.links[1]->await_order();
    for (std::uint32_t staged = 1; staged <= 5; ++staged) {
      world.report(1, {order.hold, staged, staged == 5, StageEnd::kAll});
    }
  }));
  EXPECT_EQ(world.leader->stage(blocks_of(5), Deadline::never()).blocks, 5u);
}

TEST(StageLeader, QueriesOfSeveralThreadsDoNotMix) {
  StageFixture world(2);
  std::unique_ptr<Executor> threads = make_thread_pool({.name = "t", .threads = 4});
  for (std::uint32_t n = 1; n <= 4; ++n) {
    ASSERT_TRUE(threads->submit([&world, n] {
      for (int i = 0; i < 50; ++i) {
        const StagedBlocks staged = world.leader->stage(blocks_of(n), Deadline::never());
        EXPECT_EQ(staged.blocks, n);
        EXPECT_TRUE(world.leader->allocated(staged.hold));
        StepPlan ends;
        world.leader->plan(Holds{staged.hold}, &ends);
      }
    }));
  }
  threads.reset();
  EXPECT_EQ(world.leader->holds(), 0u);
}

TEST(StageLeader, PromiseExpiresAlsoWhenNobodyAsksForAnything) {
  StageFixture world(1);
  const HoldId unused = stage(world, 2).hold;
  const HoldId firm = stage(world, 2).hold;
  ASSERT_TRUE(world.leader->allocated(firm));
  world.leader->expire();
  EXPECT_TRUE(world.links[0]->releases().empty());
  world.clock->advance(StageFixture::kHoldFor);
  world.leader->expire();
  EXPECT_EQ(world.links[0]->releases(), (Releases{{unused, 0}}));
  EXPECT_EQ(world.leader->live_holds().live, Holds{firm});
}

TEST(StageLeader, UnusedPromiseIsTakenBackInTime) {
  StageFixture world(1);
  const HoldId unused = stage(world, 2).hold;
  const HoldId firm = stage(world, 2).hold;
  const HoldId waiting = stage(world, 2).hold;
  ASSERT_TRUE(world.leader->allocated(firm));
  world.clock->advance(StageFixture::kHoldFor / 2);
  ASSERT_TRUE(world.leader->renew(waiting));
  world.clock->advance(StageFixture::kHoldFor / 2);
  EXPECT_EQ(plan(world).released, (Releases{{unused, 0}}));
  EXPECT_EQ(world.links[0]->releases(), (Releases{{unused, 0}}));
  EXPECT_FALSE(world.leader->allocated(unused));
  EXPECT_FALSE(world.leader->renew(unused));
  EXPECT_TRUE(world.leader->allocated(waiting));
  EXPECT_EQ(world.leader->live_holds().live, (Holds{firm, waiting}));
  EXPECT_EQ(world.leader->live_holds().newest, waiting);
}

TEST(StageLeader, ReleasesGoOverTheLinksAtOnceAndWithThePlan) {
  StageFixture world(2);
  const HoldId hold = stage(world, 5).hold;
  world.leader->release(hold, 3);
  for (const auto& link : world.links) EXPECT_EQ(link->releases(), (Releases{{hold, 3}}));
  EXPECT_EQ(plan(world).released, (Releases{{hold, 3}}));
  EXPECT_TRUE(plan(world).released.empty());
}

TEST(StageLeader, LoadEndsItsHoldByThePlanAlone) {
  StageFixture world(1);
  const HoldId hold = stage(world, 5).hold;
  ASSERT_TRUE(world.leader->allocated(hold));
  const StepPlan loading = plan(world, {hold});
  EXPECT_EQ(loading.done_holds, Holds{hold});
  EXPECT_TRUE(loading.released.empty());
  world.leader->release(hold, 0);
  EXPECT_TRUE(world.links[0]->releases().empty());
  EXPECT_TRUE(plan(world).empty());
}

TEST(StageLeader, RendezvousTravelsUntilAllRanksAreConnected) {
  StageFixture world(2);
  world.leader->set_rendezvous("here");
  EXPECT_EQ(plan(world).rendezvous, "");
  world.links[1]->set_connected(false);
  EXPECT_EQ(plan(world).rendezvous, "here");
  world.links[1]->set_connected(true);
  EXPECT_EQ(plan(world).rendezvous, "");
}

TEST(StageLeader, GoneLeaderLeavesNothingHeld) {
  StageFixture world(1);
  const HoldId open = stage(world, 2).hold;
  const HoldId loading = stage(world, 2).hold;
  ASSERT_TRUE(world.leader->allocated(loading));
  plan(world, {loading});
  world.leader.reset();
  EXPECT_EQ(world.links[0]->releases(), (Releases{{open, 0}}));
}

TEST(StageLeader, TooManyPromisesMeanNoMore) {
  StageFixture world(1);
  StagedBlocks staged;
  int given = 0;
  while ((staged = stage(world, 1)).blocks > 0) ++given;
  EXPECT_EQ(given, 64);
  EXPECT_EQ(staged.end, StageEnd::kTooMany);
}

}  // namespace
}  // namespace kvc
