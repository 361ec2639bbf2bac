// The scheduler with staged promises; ranks are played by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/random.h"
#include "connector/scheduler_staged_fixture.h"
#include "testing/seed.h"

namespace kvc {
namespace {

using Holds = std::vector<HoldId>;

TEST(SchedulerStaged, PromisesWhatEveryRankHasStaged) {
  StagedWorld world;
  const std::vector<Token> tokens = world.stored_prompt(6);
  world.stage.stages(1, 3);
  EXPECT_EQ(world.query(1, tokens).blocks, 3u);
  EXPECT_EQ(world.explained(),
            "request 1: matched 0, offered 3 of 6, ended by: shard lost on rank 1");
  const std::vector<StageOrder> orders = world.stage.links[1]->orders();
  ASSERT_EQ(orders.size(), 1u);
  EXPECT_EQ(orders[0].blocks, names_of(tokens));
  ASSERT_TRUE(world.scheduler->allocated(1, make_slots(7)));
  const StepPlan plan = world.plan();
  EXPECT_EQ(plan.loads.size(), 3u);
  EXPECT_EQ(plan.done_holds, Holds{orders[0].hold});
  EXPECT_EQ(plan.released, (Releases{{orders[0].hold, 3}}));
  EXPECT_EQ(world.scheduler->stats().promises_held, 0u);
}

TEST(SchedulerStaged, OnlyWhatIsStoredIsOrdered) {
  StagedWorld world;
  const std::vector<Token> tokens = make_tokens(6 * kBlockTokens + 1);
  world.publish_blocks(tokens, 0, 2);
  EXPECT_EQ(world.query(1, tokens).blocks, 2u);
  EXPECT_EQ(world.stage.links[0]->orders().back().blocks.size(), 2u);
  EXPECT_EQ(world.explained(), "request 1: matched 0, offered 2 of 6, ended by: no manifest");
  const std::vector<Token> cold = make_tokens(6 * kBlockTokens + 1, 900);
  EXPECT_EQ(world.query(2, cold).blocks, 0u);
  EXPECT_EQ(world.stage.orders(), 1u) << "nothing to fetch";
}

TEST(SchedulerStaged, OrdersWhatFollowsTheEnginesOwnMatch) {
  StagedWorld world;
  const std::vector<Token> tokens = world.stored_prompt(6);
  world.resident = 1;
  EXPECT_EQ(world.query(1, tokens, 2 * kBlockTokens).blocks, 4u);
  const std::vector<BlockHash> names = names_of(tokens);
  EXPECT_EQ(world.stage.links[0]->orders()[0].blocks,
            std::vector<BlockHash>(names.begin() + 2, names.end()));
  EXPECT_EQ(world.explained(),
            "request 1: matched 2, offered 4 of 4 (1 resident), ended by: the end of the prompt");
  ASSERT_TRUE(world.scheduler->allocated(1, make_slots(7)));
  EXPECT_EQ(slots_of(world.plan().loads), (std::vector<SlotIndex>{102, 103, 104, 105}));
}

TEST(SchedulerStaged, ResidentBlocksNeedNoProbe) {
  StagedWorld world;
  const std::vector<Token> tokens = world.stored_prompt(6);
  world.resident = 6;
  EXPECT_EQ(world.query(1, tokens).blocks, 6u);
  EXPECT_EQ(world.store->count(StoreOp::kExists), 0u);
  EXPECT_EQ(world.stage.orders(), 1u) << "other ranks may not have them, and this one must hold";

  world.resident = 2;
  EXPECT_EQ(world.query(2, tokens).blocks, 6u);
  const std::vector<BlockHash> names = names_of(tokens);
  for (const auto& call : world.store->calls()) {
    for (const std::string& key : call.keys) {
      for (std::size_t b = 0; b < 2; ++b) EXPECT_NE(key, world.keys.manifest(names[b]));
    }
  }
  EXPECT_EQ(world.scheduler->stats().blocks_resident, 8u);
}

TEST(SchedulerStaged, WhatOnlyRank0HasIsNotCalledLost) {
  StagedWorld world;
  const std::vector<Token> tokens = world.stored_prompt(6);
  world.stage.stages(1, 3);
  world.resident = 4;
  EXPECT_EQ(world.query(1, tokens).blocks, 3u);
  EXPECT_EQ(world.explained(),
            "request 1: matched 0, offered 3 of 6 (4 resident), ended by: no manifest");
  world.resident = 3;
  EXPECT_EQ(world.query(2, tokens).blocks, 3u);
  EXPECT_EQ(world.explained(),
            "request 2: matched 0, offered 3 of 6 (3 resident), ended by: shard lost on rank 1")
      << "its manifest was seen";
}

TEST(SchedulerStaged, ResidentBlocksAreOfferedWhileTheStoreIsDown) {
  StagedWorld world;
  const std::vector<Token> tokens = world.stored_prompt(6);
  world.resident = 2;
  world.store->answer_with(Reaction::kDown);
  EXPECT_EQ(world.query(1, tokens).blocks, 2u);
  EXPECT_EQ(world.explained(),
            "request 1: matched 0, offered 2 of 6 (2 resident), ended by: no answer of the store "
            "in time");
}

TEST(SchedulerStaged, RankOutOfReachMeansNoPromiseAndNoWait) {
  StagedWorld world(3);
  const std::vector<Token> tokens = world.stored_prompt(4);
  world.stage.links[2]->set_connected(false);
  EXPECT_EQ(world.query(1, tokens).blocks, 0u);
  EXPECT_EQ(world.explained(),
            "request 1: matched 0, offered 0 of 4, ended by: rank 2 or its store does not answer");
  EXPECT_EQ(world.scheduler->stats().blocks_missed_rank_unavailable, 4u);
  EXPECT_EQ(world.store->count(StoreOp::kExists), 0u) << "whatever is stored";
  world.resident = 4;
  EXPECT_EQ(world.query(2, tokens).blocks, 0u);
  world.resident = 0;
  world.stage.links[2]->set_connected(true);
  EXPECT_EQ(world.query(1, tokens).blocks, 4u) << "a miss is asked again";
}

TEST(SchedulerStaged, WhatIsOfferedIsLoadedWheneverARankComesBack) {
  for (int askers = 0; askers < 6; ++askers) {
    StagedWorld world;
    const std::vector<Token> tokens = world.stored_prompt(4);
    world.resident = 4;
    world.stage.links[1]->set_missing_for(askers);
    const Offer offer = world.query(1, tokens);
    ASSERT_TRUE(world.scheduler->allocated(1, make_slots(5)));
    EXPECT_EQ(world.plan().loads.size(), offer.blocks) << askers;
    EXPECT_EQ(world.scheduler->stats().blocks_offered, offer.blocks) << askers;
  }
}

TEST(SchedulerStaged, PromptThatIsLongerThanAnOrderGetsWhatOneHolds) {
  StagedWorld world;
  world.resident = 2 * kMaxOrderBlocks;
  EXPECT_EQ(world.query(1, make_tokens((kMaxOrderBlocks + 3) * kBlockTokens + 1)).blocks,
            kMaxOrderBlocks);
  EXPECT_EQ(
      world.explained(),
      "request 1: matched 0, offered 65536 of 65539 (65536 resident), ended by: more than one "
      "step can look up and load in time");
}

TEST(SchedulerStaged, RepeatedQueryNeitherProbesNorFetchesAndKeepsItsHold) {
  StagedWorld world;
  const std::vector<Token> tokens = world.stored_prompt(5);
  world.stage.stages(1, 3);
  ASSERT_EQ(world.query(1, tokens).blocks, 3u);
  const HoldId hold = world.last_hold();
  const std::size_t probes = world.store->count(StoreOp::kExists);
  for (int i = 0; i < 20; ++i) {
    world.clock->advance(StageFixture::kHoldFor / 2);
    EXPECT_EQ(world.query(1, tokens).blocks, 3u);
    EXPECT_TRUE(world.plan().loads.empty());
  }
  EXPECT_EQ(world.store->count(StoreOp::kExists), probes);
  EXPECT_EQ(world.stage.orders(), 1u);
  EXPECT_EQ(world.releases(), (Releases{{hold, 3}}));
  EXPECT_NE(world.explained().find("asked 21 times"), std::string::npos);
  ASSERT_TRUE(world.scheduler->allocated(1, make_slots(6)));
  EXPECT_EQ(world.plan().done_holds, Holds{hold});
  EXPECT_EQ(world.scheduler->stats().promises_expired, 0u);
}

TEST(SchedulerStaged, QueryWhosePromiseIsOverIsStagedAgain) {
  StagedWorld world;
  world.scheduler =
      world.make(std::make_shared<testlib::LeasingStore>(world.store, std::chrono::hours(10)));
  const std::vector<Token> tokens = world.stored_prompt(5);
  ASSERT_EQ(world.query(1, tokens).blocks, 5u);
  world.clock->advance(StageFixture::kHoldFor);
  world.plan();
  EXPECT_EQ(world.query(1, tokens).blocks, 5u);
  EXPECT_EQ(world.stage.orders(), 2u) << "a lease in the store holds nothing in memory";
  ASSERT_TRUE(world.scheduler->allocated(1, make_slots(6)));
  EXPECT_EQ(world.plan().done_holds, Holds{world.last_hold()});
}

TEST(SchedulerStaged, OtherQueryOfTheRequestReleasesItsHold) {
  StagedWorld world;
  const std::vector<Token> tokens = world.stored_prompt(5);
  world.query(1, tokens);
  const HoldId first = world.last_hold();
  world.query(1, tokens, kBlockTokens);
  EXPECT_NE(world.last_hold(), first);
  EXPECT_EQ(world.releases(), (Releases{{first, 0}}));
  EXPECT_EQ(world.releases(1), (Releases{{first, 0}}));
  EXPECT_EQ(world.plan().released, (Releases{{first, 0}}));
}

TEST(SchedulerStaged, EndOfARequestReleasesItsHold) {
  for (const bool with_pages : {true, false}) {
    StagedWorld world;
    const std::vector<Token> tokens = world.stored_prompt(5);
    world.query(1, tokens);
    if (with_pages) {
      ASSERT_TRUE(world.scheduler->allocated(1, make_slots(6)));
    }
    world.scheduler->finished(1);
    EXPECT_EQ(world.releases(), (Releases{{world.last_hold(), 0}}));
    const StepPlan plan = world.plan();
    EXPECT_TRUE(plan.loads.empty());
    EXPECT_TRUE(plan.done_holds.empty());
    EXPECT_EQ(plan.released, (Releases{{world.last_hold(), 0}}));
    EXPECT_EQ(world.scheduler->stats().promises_held, 0u);
  }
}

TEST(SchedulerStaged, CancelledPartIsReleased) {
  StagedWorld world;
  const std::vector<Token> tokens = world.stored_prompt(5);
  world.query(1, tokens);
  const HoldId hold = world.last_hold();
  world.scheduler->cancel_load(1, 4 * kBlockTokens);
  ASSERT_TRUE(world.scheduler->allocated(1, make_slots(6)));
  world.scheduler->cancel_load(1, 2 * kBlockTokens);
  EXPECT_EQ(world.releases(), (Releases{{hold, 4}, {hold, 2}}));
  StepPlan plan = world.plan();
  EXPECT_EQ(plan.loads.size(), 2u);
  EXPECT_EQ(plan.released, (Releases{{hold, 2}}));
  EXPECT_EQ(plan.done_holds, Holds{hold});

  world.query(2, tokens);
  world.scheduler->cancel_load(2, 0);
  EXPECT_EQ(world.releases().back(), (HoldRelease{world.last_hold(), 0}));
  ASSERT_TRUE(world.scheduler->allocated(2, make_slots(6)));
  plan = world.plan();
  EXPECT_TRUE(plan.loads.empty());
  EXPECT_TRUE(plan.done_holds.empty());
}

TEST(SchedulerStaged, BlocksWithoutAPageAreReleased) {
  StagedWorld world;
  const std::vector<Token> tokens = world.stored_prompt(5);
  world.query(1, tokens);
  std::vector<SlotIndex> slots = make_slots(6);
  slots[3] = -1;
  world.scheduler->allocated(1, slots);
  EXPECT_EQ(world.releases(), (Releases{{world.last_hold(), 3}}));
  EXPECT_EQ(world.plan().loads.size(), 3u);
  world.query(2, tokens);
  world.scheduler->allocated(2, {});
  EXPECT_EQ(world.releases().back(), (HoldRelease{world.last_hold(), 0}));
  EXPECT_TRUE(world.plan().done_holds.empty());
}

TEST(SchedulerStaged, FirmPromiseIsLoadedByTheNextPlanHoweverLate) {
  StagedWorld world;
  const std::vector<Token> tokens = world.stored_prompt(5);
  world.query(1, tokens);
  const HoldId hold = world.last_hold();
  ASSERT_TRUE(world.scheduler->allocated(1, make_slots(6)));
  world.clock->advance(std::chrono::hours(1));
  world.query(2, world.stored_prompt(3, 700));  // Sweeps.
  const std::vector<Token> other = make_tokens(3, 5000);
  const StepPlan plan =
      world.plan({{.id = 9, .is_new = true, .new_tokens = other, .new_slots = {}}});
  EXPECT_EQ(plan.loads.size(), 5u) << "whatever the batch";
  EXPECT_EQ(plan.done_holds, Holds{hold});
  EXPECT_TRUE(world.releases().empty());
  world.scheduler->finished(1);
  EXPECT_TRUE(world.releases().empty()) << "it would overtake the copy";
  EXPECT_TRUE(world.plan().released.empty());
}

TEST(SchedulerStaged, NeverScheduledPromiseIsTakenBack) {
  StagedWorld world;
  const std::vector<Token> tokens = world.stored_prompt(5);
  world.query(1, tokens);
  const HoldId hold = world.last_hold();
  world.clock->advance(StageFixture::kHoldFor);
  EXPECT_EQ(world.plan().released, (Releases{{hold, 0}}));
  EXPECT_EQ(world.scheduler->stats().promises_held, 0u);
  // An engine that takes it all the same gets its load, which fetches.
  ASSERT_TRUE(world.scheduler->allocated(1, make_slots(6)));
  const StepPlan plan = world.plan();
  EXPECT_EQ(plan.loads.size(), 5u);
  EXPECT_TRUE(plan.done_holds.empty());
  EXPECT_EQ(world.scheduler->stats().promises_expired, 1u);
}

TEST(SchedulerStaged, RequestThatFindsNoPlaceHoldsNothing) {
  StagedWorld world(2, 1);
  const std::vector<Token> tokens = world.stored_prompt(5);
  ASSERT_EQ(world.query(1, tokens).blocks, 5u);
  EXPECT_EQ(world.query(2, tokens).blocks, 0u);
  EXPECT_EQ(world.releases(), (Releases{{world.last_hold(), 0}}));
  EXPECT_EQ(world.scheduler->stats().blocks_missed_untracked, 5u);
  EXPECT_EQ(world.scheduler->stats().promises_held, 1u);
}

TEST(SchedulerStaged, RequestThatIsForgottenForAnotherHoldsNothing) {
  StagedWorld world(2, 1);
  const std::vector<Token> tokens = world.stored_prompt(5);
  ASSERT_EQ(world.query(1, tokens).blocks, 5u);
  const HoldId hold = world.last_hold();
  world.plan();
  world.plan();
  EXPECT_EQ(world.query(2, tokens).blocks, 5u);
  EXPECT_EQ(world.releases(), (Releases{{hold, 0}}));
  EXPECT_EQ(world.scheduler->stats().promises_held, 1u);
  EXPECT_EQ(world.scheduler->stats().requests_forgotten, 1u);
  EXPECT_FALSE(world.scheduler->allocated(1, make_slots(6)));
}

TEST(SchedulerStaged, ExplainsWhatTheCallerKeptBack) {
  StagedWorld world;
  world.options.explained_requests = 2;
  world.remake();
  world.query(1, world.stored_prompt(2));
  const std::vector<Token> tokens = make_tokens(2 * kBlockTokens + 1);
  world.query(2, tokens, 3);
  world.scheduler->note_opted_out(3, "no digest");
  EXPECT_EQ(world.scheduler->explain(),
            (std::vector<std::string>{
                "request 2: matched 0, offered 0 of 1, ended by: unaligned local match",
                "request 3: matched 0, offered 0 of 0, ended by: opted out: no digest"}));
}

TEST(SchedulerStaged, LeaderMustFit) {
  StagedWorld world;
  for (const bool layers : {true, false}) {
    SchedulerOptions options = world.options;
    (layers ? options.layers : options.world_size) = 5;
    EXPECT_EQ(Scheduler::create(options, world.keyspace, world.store, world.clock, world.logger)
                  .status()
                  .code(),
              Code::kInvalid);
  }
}

void expect_balanced(const SchedulerStats& stats) {
  std::uint64_t missed = 0;
  for (const StatField<SchedulerStats>& row : kSchedulerStats) {
    if (row.family == "blocks_missed") missed += stats.*row.field;
  }
  EXPECT_EQ(stats.blocks_looked_up, stats.blocks_offered + missed);
}

TEST(SchedulerStaged, ARepeatedPromiseIsExplainedAsItCameAbout) {
  StagedWorld world;
  world.options.explained_requests = 2;
  world.remake();
  const std::vector<Token> tokens = world.stored_prompt(5);
  world.stage.stages(1, 3, StageEnd::kRejected);
  world.resident = 1;
  ASSERT_EQ(world.query(1, tokens, kBlockTokens).blocks, 3u);
  const std::vector<Token> other = make_tokens(2 * kBlockTokens + 1, 900);
  for (RequestId id = 2; id < 5; ++id) world.query(id, other);  // Nothing is remembered of it.
  ASSERT_EQ(world.query(1, tokens, kBlockTokens).blocks, 3u);
  EXPECT_EQ(world.explained(),
            "request 1: matched 1, offered 3 of 4 (1 resident), asked 2 times, ended by: rejected "
            "on rank 1");
  world.query(4, other);
  EXPECT_EQ(world.query(1, tokens, kBlockTokens).blocks, 3u);
  EXPECT_NE(world.explained().find("request 1: "), std::string::npos) << "asked about last";
  world.scheduler->cancel_load(1, 3 * kBlockTokens);
  EXPECT_EQ(world.query(1, tokens, kBlockTokens).blocks, 2u);
  EXPECT_EQ(world.explained(),
            "request 1: matched 1, offered 2 of 4 (1 resident), asked 4 times, ended by: a part "
            "that was cancelled");
  const SchedulerStats stats = world.scheduler->stats();
  EXPECT_EQ(stats.blocks_missed_rejected, 1u) << "once";
  EXPECT_EQ(stats.blocks_resident, 1u + 3u) << "of each request, once";
  expect_balanced(stats);
}

TEST(SchedulerStaged, NothingIsPromisedPastTheBoundOnHolds) {
  StagedWorld world;
  const std::vector<Token> tokens = world.stored_prompt(2);
  RequestId id = 0;
  while (world.query(id, tokens).blocks > 0) ++id;
  EXPECT_EQ(id, 64u);
  EXPECT_EQ(world.scheduler->stats().blocks_missed_too_many_promises, 2u);
  EXPECT_EQ(world.scheduler->stats().blocks_missed_no_room, 0u) << "no rank is to blame";
  EXPECT_NE(world.scheduler->explain().back().find("too many promises"), std::string::npos);
  for (RequestId each = 0; each < id; ++each) world.scheduler->finished(each);
  world.plan();
  EXPECT_EQ(world.query(1, tokens).blocks, 2u);
}

/// Ranks as they are: they hold what they have staged until they are told.
class HoldingRanks {
 public:
  HoldingRanks(StagedWorld& world, Random& random) : world_(world), random_(random) {
    for (std::uint32_t r = 0; r < 2; ++r) {
      world.stage.links[r]->answer_with([this, r](const StageOrder& order) { answer(r, order); });
    }
  }

  /// A rank hears of a release over its link, or it is lost on the way.
  void hear_links() {
    for (std::uint32_t r = 0; r < 2; ++r) {
      for (const HoldRelease& one : world_.stage.links[r]->take_releases()) {
        if (!random_.chance(200'000)) release(r, one);
      }
    }
  }

  /// Every load of a firm promise finds its block held on every rank, unless that misses the plan.
  void carry_out(const StepPlan& plan, const std::set<RequestId>& expired,
                 std::uint32_t lost_millionths = 0) {
    for (std::uint32_t r = 0; r < 2; ++r) {
      if (!random_.chance(lost_millionths)) carry_out_on(r, plan, expired);
    }
  }

  std::size_t held() const { return held_[0].size() + held_[1].size(); }

 private:
  void carry_out_on(std::uint32_t rank, const StepPlan& plan, const std::set<RequestId>& expired) {
    for (const HoldRelease& one : plan.released) release(rank, one);
    for (const PageTask& load : plan.loads) {
      if (expired.contains(load.request)) continue;
      EXPECT_TRUE(holds(rank, plan.done_holds, load.block)) << "rank " << rank;
    }
    for (const HoldId hold : plan.done_holds) held_[rank].erase(hold);
    const auto& [live, newest] = plan.live_holds;
    std::erase_if(held_[rank], [&](const auto& held) {
      return held.first <= newest && std::ranges::count(live, held.first) == 0;
    });
  }
  void answer(std::uint32_t rank, const StageOrder& order) {
    const auto all = static_cast<std::uint32_t>(order.blocks.size());
    const auto staged =
        static_cast<std::uint32_t>(random_.chance(600'000) ? all : random_.below(all + 1));
    held_[rank][order.hold] = {order.blocks.begin(), order.blocks.begin() + staged};
    const auto end = static_cast<StageEnd>(random_.below(5));
    if (random_.chance(900'000)) world_.stage.report(rank, {order.hold, staged, true, end});
    if (random_.chance(100'000)) world_.stage.report(rank, {order.hold, 0, false, end});
    if (random_.chance(50'000)) world_.stage.leader->on_rank_lost(rank);
  }
  void release(std::uint32_t rank, const HoldRelease& one) {
    const auto found = held_[rank].find(one.hold);
    if (found == held_[rank].end()) return;
    if (one.from_block == 0) {
      held_[rank].erase(found);
    } else if (one.from_block < found->second.size()) {
      found->second.resize(one.from_block);
    }
  }
  bool holds(std::uint32_t rank, const Holds& among, const BlockHash& block) const {
    return std::ranges::any_of(among, [&](HoldId hold) {
      const auto found = held_[rank].find(hold);
      return found != held_[rank].end() && std::ranges::count(found->second, block) > 0;
    });
  }

  StagedWorld& world_;
  Random& random_;
  std::map<HoldId, std::vector<BlockHash>> held_[2];
};

TEST(SchedulerStaged, RandomLivesKeepEveryFirmPromiseAndLeaveNothingHeld) {
  Random random(testlib::test_seed(1));
  StagedWorld world;
  world.options.prefill_tokens_per_s = 1'000'000;
  world.options.min_hit_blocks = 2;
  world.remake();
  world.clock->set_tick(std::chrono::milliseconds(5));
  HoldingRanks ranks(world, random);
  std::vector<std::vector<Token>> prompts;
  for (Token first = 0; first < 6; ++first) {
    prompts.push_back(
        make_tokens((2 + 2 * static_cast<std::size_t>(first)) * kBlockTokens + 1, first * 1000));
    world.publish_blocks(prompts.back(), 0,
                         1 + random.below(2 + 2 * static_cast<std::size_t>(first)));
  }
  std::set<RequestId> expired;
  SlotIndex next_slot = 0;
  for (int step = 0; step < 4000 && !::testing::Test::HasFailure(); ++step) {
    const RequestId id = random.below(12);
    const std::vector<Token>& tokens = prompts[id % prompts.size()];
    const std::size_t blocks = tokens.size() / kBlockTokens + 1;
    world.resident = random.below(3);
    switch (random.below(8)) {
      case 0:
      case 1:
        (void)world.query(id, tokens, kBlockTokens * random.below(2));
        expired.erase(id);
        break;
      case 2:
      case 3: {
        const std::uint64_t before = world.scheduler->stats().promises_expired;
        world.scheduler->allocated(
            id, make_slots(random.chance(800'000) ? blocks : random.below(blocks), next_slot));
        next_slot += static_cast<SlotIndex>(blocks);
        if (world.scheduler->stats().promises_expired > before) expired.insert(id);
        break;
      }
      case 4:
        ranks.carry_out(world.plan(), expired, 300'000);
        break;
      case 5:
        world.scheduler->finished(id);
        break;
      case 6:
        world.scheduler->cancel_load(id, kBlockTokens * random.below(blocks));
        break;
      default:
        if (random.chance(300'000)) world.clock->advance(StageFixture::kHoldFor / 2);
        break;
    }
    ranks.hear_links();
  }
  const SchedulerStats stats = world.scheduler->stats();
  expect_balanced(stats);
  EXPECT_GT(stats.blocks_offered, 100u);
  EXPECT_GT(stats.promises_expired, 0u);
  for (RequestId id = 0; id < 12; ++id) world.scheduler->finished(id);
  for (int plan = 0; plan < 32; ++plan) ranks.carry_out(world.plan(), expired);
  ranks.hear_links();
  EXPECT_EQ(ranks.held(), 0u);
  EXPECT_EQ(world.stage.leader->holds(), 0u);
}

}  // namespace
}  // namespace kvc
