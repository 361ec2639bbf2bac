// What the queries of a step wait for, and when what is stored is better computed again.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "connector/load_decision.h"
#include "connector/scheduler_staged_fixture.h"
#include "kvc/executor.h"

namespace kvc {
namespace {

TEST(SchedulerStaged, QueriesOfAStepShareOneBudget) {
  StagedWorld world;
  world.clock->set_tick(std::chrono::milliseconds(1));
  const Duration budget = world.options.lookup_deadline;
  std::vector<std::vector<Token>> prompts;
  for (Token first = 0; first < 8; ++first) prompts.push_back(world.stored_prompt(5, first * 1000));
  world.stage.works_on(1, 2, Duration::zero());  // And hangs then.
  const Instant begin = world.clock->now();
  for (RequestId id = 0; id < 8; ++id) {
    EXPECT_EQ(world.query(id, prompts[id]).blocks, id == 0 ? 2u : 0u)
        << "what is not resident is not even looked up once the budget is spent";
  }
  EXPECT_GE(world.clock->now() - begin, budget * 9 / 10) << "but for what is kept for residents";
  EXPECT_LE(world.clock->now() - begin, budget + std::chrono::milliseconds(200));
  world.plan();
  const Instant next = world.clock->now();
  EXPECT_EQ(world.query(100, prompts[0]).blocks, 2u);
  world.resident = 5;
  EXPECT_EQ(world.query(101, prompts[1]).blocks, 2u) << "what comes with the order is promised";
  EXPECT_LE(world.clock->now() - next, budget + std::chrono::milliseconds(200));
  const SchedulerStats stats = world.scheduler->stats();
  EXPECT_EQ(stats.blocks_missed_late, 3u * 3u);
  EXPECT_EQ(stats.blocks_missed_over_budget, 7u * 5u);
  EXPECT_EQ(stats.lookups_failed, 0u) << "the store has done nothing wrong";
}

/// 32 prompts of 40 blocks, all stored, and what they wait for in one step that has them all.
/// `resident`: leading blocks that rank 0 has; rank 1 has none and its store hangs.
Duration longest_step(StagedWorld& world, std::size_t resident) {
  constexpr int kPrompts = 32;
  constexpr Duration kNaming = std::chrono::milliseconds(8);  // Of each, before it waits at all.
  world.resident = resident;
  Duration longest{0};
  for (int step = 0; step < 2; ++step) {
    const Instant begin = world.clock->now();
    for (Token id = 0; id < kPrompts; ++id) {
      world.clock->advance(kNaming);
      const std::vector<Token> tokens = make_tokens(40 * kBlockTokens + 1, id * 1000);
      EXPECT_EQ(world.query(static_cast<RequestId>(id), tokens).blocks, 0u);
    }
    longest = std::max(longest, world.clock->now() - begin - kPrompts * kNaming);
    world.plan();
  }
  return longest;
}

TEST(SchedulerStaged, ManyLongPromptsWaitForOneBudgetWhateverTheStoreDoes) {
  for (const std::size_t resident : {0u, 20u, 40u}) {
    StagedWorld world;
    for (Token id = 0; id < 32; ++id) (void)world.stored_prompt(40, id * 1000);
    world.stage.works_on(1, 0, Duration::zero());
    world.clock->set_tick(std::chrono::microseconds(200));  // While anything is waited for.
    EXPECT_LE(longest_step(world, resident),
              world.options.lookup_deadline + std::chrono::milliseconds(150))
        << resident;
    EXPECT_GT(world.stage.orders(), 0u);
  }
}

TEST(SchedulerStaged, StoreThatIsKnownToBeTooSlowIsOrderedFromAndNotWaitedFor) {
  StagedWorld world;
  const Duration budget = world.options.lookup_deadline;
  const std::vector<Token> tokens = world.stored_prompt(5);
  world.clock->set_tick(std::chrono::milliseconds(1));
  world.stage.works_on(1, 0, Duration::zero());  // Its fetches take longer than a step waits.
  const auto step = [&](RequestId id) {
    const Instant begin = world.clock->now();
    EXPECT_EQ(world.query(id, tokens).blocks, 0u);
    world.plan();
    return world.clock->now() - begin;
  };
  EXPECT_GE(step(1), budget / 2) << "nobody knows yet";
  for (RequestId id = 2; id < 10; ++id) EXPECT_LE(step(id), std::chrono::milliseconds(100)) << id;
  EXPECT_EQ(world.stage.orders(), 9u) << "late fetches serve later requests";
  EXPECT_EQ(world.scheduler->stats().blocks_missed_late, 9u * 5u);
  world.resident = 2;
  world.stage.works_on(1, 2, Duration::zero());
  EXPECT_EQ(world.query(10, tokens).blocks, 2u) << "what both have is promised all the same";
  world.plan();
  world.resident = 0;
  world.clock->advance(FetchSpeed::kFreshFor);
  world.stage.stages(1, 5);
  EXPECT_EQ(world.query(11, tokens).blocks, 5u) << "it is tried again from time to time";
}

TEST(SchedulerStaged, WhatAnotherRankHasToFetchOfResidentBlocksIsNotWaitedForLong) {
  StagedWorld world;
  world.options.prefill_tokens_per_s = 1000;
  world.remake();
  world.clock->set_tick(std::chrono::microseconds(50));
  const std::vector<Token> tokens = world.stored_prompt(5);
  world.resident = 5;
  world.stage.works_on(1, 2, Duration::zero());  // It has evicted three, and its store hangs.
  const Instant begin = world.clock->now();
  EXPECT_EQ(world.query(1, tokens).blocks, 2u);
  EXPECT_LE(world.clock->now() - begin, std::chrono::milliseconds(260));
  EXPECT_EQ(world.stage.links[1]->orders().back().blocks.size(), 5u)
      << "what comes later serves later requests";
  // Nor once the probe for what follows them has cost its time.
  world.plan();
  world.resident = 3;
  world.store->answer_with(Reaction::kDown);
  const Instant next = world.clock->now();
  EXPECT_EQ(world.query(2, tokens).blocks, 2u);
  EXPECT_LE(world.clock->now() - next, std::chrono::milliseconds(260));
  // What says nothing of how fast a store is, is not taken for that.
  world.plan();
  world.stage.works_on(1, 0, Duration::zero());
  world.clock->advance(FetchSpeed::kFreshFor);
  EXPECT_EQ(world.query(3, tokens).blocks, 0u);
  EXPECT_EQ(world.scheduler->stats().fetch_blocks_per_s, 0u);
}

TEST(SchedulerStaged, WhatIsResidentIsPromisedAlsoOnceTheBudgetForFetchesIsSpent) {
  StagedWorld world;
  const Duration budget = world.options.lookup_deadline;
  const std::vector<Token> tokens = world.stored_prompt(5);
  world.clock->set_tick(std::chrono::nanoseconds(100));
  const Instant begin = world.clock->now();
  world.stage.works_on(1, 0, budget - std::chrono::milliseconds(25));  // Its store hangs.
  EXPECT_EQ(world.query(1, tokens).blocks, 0u);
  // Both ranks have three blocks. The other one's answer comes while it is waited for.
  const std::unique_ptr<Executor> rank = make_thread_pool({.name = "rank", .threads = 1});
  world.stage.links[1]->answer_with([&](const StageOrder& order) {
    const auto all = static_cast<std::uint32_t>(order.blocks.size());
    ASSERT_TRUE(rank->submit([&world, hold = order.hold, all] {
      world.stage.report(1, {hold, std::min(all, 3u), all <= 3, StageEnd::kAll});
    }));
  });
  world.resident = 3;
  EXPECT_EQ(world.query(2, tokens).blocks, 3u);
  EXPECT_EQ(world.stage.links[1]->orders().back().blocks.size(), 3u) << "nothing to fetch";
  EXPECT_EQ(world.explained(),
            "request 2: matched 0, offered 3 of 5 (3 resident), ended by: more than one step can "
            "look up and load in time");
  // A rank that does not answer even that costs what was kept for it, and no more.
  world.stage.works_on(1, 0, Duration::zero());
  world.clock->set_tick(std::chrono::microseconds(100));
  for (RequestId id = 3; id < 9; ++id) EXPECT_EQ(world.query(id, tokens).blocks, 0u);
  EXPECT_LE(world.clock->now() - begin, budget + std::chrono::milliseconds(10));
  world.plan();
  world.stage.stages(1, 5);
  EXPECT_EQ(world.query(9, tokens).blocks, 5u);
}

TEST(SchedulerStaged, HitsBelowTheMinimumAreLeft) {
  StagedWorld world;
  world.options.min_hit_blocks = 3;
  world.remake();
  const std::vector<Token> small = world.stored_prompt(2);
  EXPECT_EQ(world.query(1, small).blocks, 0u);
  EXPECT_EQ(world.stage.orders(), 0u);
  EXPECT_EQ(world.explained(),
            "request 1: matched 0, offered 0 of 2, ended by: below the minimum hit");
  const std::vector<Token> large = world.stored_prompt(5, 500);
  world.stage.stages(0, 2, StageEnd::kRejected);
  EXPECT_EQ(world.query(2, large).blocks, 0u) << "what could be staged is too little";
  EXPECT_EQ(world.releases().back(), (HoldRelease{world.last_hold(), 0}));
  world.stage.stages(0, 3, StageEnd::kRejected);
  EXPECT_EQ(world.query(3, large).blocks, 3u);
  const SchedulerStats stats = world.scheduler->stats();
  EXPECT_EQ(stats.blocks_missed_below_minimum, 4u);
  EXPECT_EQ(stats.blocks_missed_rejected, 5u);
  EXPECT_EQ(stats.promises_held, 1u);
}

TEST(SchedulerStaged, BlocksThatAreComputedFasterAreNotFetched) {
  StagedWorld world;
  world.options.prefill_tokens_per_s = 1000;  // 250 blocks.
  world.remake();
  world.stage.links[1]->answer_with([&](const StageOrder& order) {
    world.clock->advance(std::chrono::milliseconds(10) * order.blocks.size());  // 100 blocks.
    world.stage.report(
        1, {order.hold, static_cast<std::uint32_t>(order.blocks.size()), true, StageEnd::kAll});
  });
  EXPECT_EQ(world.query(1, world.stored_prompt(5)).blocks, 5u) << "nothing is known yet";
  EXPECT_EQ(world.scheduler->stats().fetch_blocks_per_s, 100u);
  const std::vector<Token> tokens = world.stored_prompt(6, 800);
  EXPECT_EQ(world.query(2, tokens).blocks, 0u);
  EXPECT_EQ(world.explained(),
            "request 2: matched 0, offered 0 of 6, ended by: recompute cheaper (fetch 100 blocks/s,"
            " prefill 1000 tokens/s, 0 decodes running)");
  world.resident = 2;
  EXPECT_EQ(world.query(3, tokens).blocks, 2u) << "these cost nothing";
  EXPECT_EQ(world.scheduler->stats().blocks_missed_recompute_cheaper, 10u);
  world.resident = 0;
  world.clock->advance(std::chrono::seconds(10));
  EXPECT_EQ(world.query(4, tokens).blocks, 6u) << "long ago; tried again";
}

TEST(SchedulerStaged, WhatOtherRanksFetchOfResidentBlocksIsMeasured) {
  StagedWorld world;
  world.options.prefill_tokens_per_s = 1000;  // 250 blocks.
  world.remake();
  Duration each = std::chrono::milliseconds(1);
  world.stage.links[1]->answer_with([&](const StageOrder& order) {
    world.clock->advance(each * order.blocks.size());
    world.stage.report(
        1, {order.hold, static_cast<std::uint32_t>(order.blocks.size()), true, StageEnd::kAll});
  });
  const std::vector<Token> tokens = world.stored_prompt(5);
  world.resident = 5;
  EXPECT_EQ(world.query(1, tokens).blocks, 5u);
  EXPECT_EQ(world.scheduler->stats().fetch_blocks_per_s, 0u) << "so quick is a message, too";
  each = std::chrono::milliseconds(10);
  EXPECT_EQ(world.query(2, tokens).blocks, 5u);
  EXPECT_EQ(world.scheduler->stats().fetch_blocks_per_s, 100u);
  world.resident = 0;
  EXPECT_EQ(world.query(3, tokens).blocks, 0u) << "computed faster";
}

TEST(SchedulerStaged, RunningDecodesCount) {
  StagedWorld world;
  const std::vector<Token> prompt = make_tokens(5);
  world.query(1, prompt);
  const std::vector<Token> token = {7};
  world.plan(
      {{.id = 1, .is_new = true, .new_tokens = prompt, .new_slots = {}, .scheduled_tokens = 5}});
  EXPECT_EQ(world.scheduler->stats().decodes_running, 0u);
  world.plan(
      {{.id = 1, .new_tokens = token, .new_slots = {}, .computed_tokens = 5, .scheduled_tokens = 3},
       {.id = 50,
        .new_tokens = token,
        .new_slots = {},
        .computed_tokens = 9,
        .scheduled_tokens = 1},
       {.id = 51,
        .new_tokens = token,
        .new_slots = {},
        .computed_tokens = 9,
        .scheduled_tokens = 64}});
  EXPECT_EQ(world.scheduler->stats().decodes_running, 2u);
  world.plan();
  EXPECT_EQ(world.scheduler->stats().decodes_running, 0u);
}

}  // namespace
}  // namespace kvc
