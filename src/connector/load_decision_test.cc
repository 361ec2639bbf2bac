#include "connector/load_decision.h"

#include <gtest/gtest.h>

namespace kvc {
namespace {

/// Fetches take 1 ms a block; 32 tokens take 1 ms too.
LoadQuestion even_question() {
  return {.resident = 0,
          .to_fetch = 10,
          .blocks_per_second = 1000,
          .prefill_tokens_per_s = 32'000,
          .tokens_per_block = 32,
          .running_decodes = 0,
          .min_blocks = 1};
}

TEST(LoadDecision, WithNothingRunningTheFasterOneWins) {
  LoadQuestion question = even_question();
  EXPECT_EQ(decide_load(question).blocks, 10u) << "a draw is loaded";
  question.blocks_per_second = 999;
  EXPECT_EQ(decide_load(question).blocks, 0u);
  EXPECT_EQ(decide_load(question).reason, LoadReason::kRecomputeCheaper);
  question.blocks_per_second = 1001;
  EXPECT_EQ(decide_load(question).blocks, 10u);
  EXPECT_EQ(decide_load(question).reason, LoadReason::kLoad);
}

TEST(LoadDecision, RunningDecodesArePaidFor) {
  LoadQuestion question = even_question();
  question.running_decodes = 8;
  EXPECT_EQ(decide_load(question).reason, LoadReason::kRecomputeCheaper);
  question.blocks_per_second = 1000 * 9 / 5.0 + 1;
  EXPECT_EQ(decide_load(question).reason, LoadReason::kLoad);
  question.running_decodes = 1'000'000;
  EXPECT_EQ(decide_load(question).reason, LoadReason::kRecomputeCheaper);
  question.blocks_per_second = 2000;
  EXPECT_EQ(decide_load(question).reason, LoadReason::kLoad) << "twice as fast is always enough";
}

TEST(LoadDecision, WhatNeedsNoFetchIsTakenInAnyCase) {
  LoadQuestion question = even_question();
  question.resident = 3;
  question.blocks_per_second = 1;
  const LoadDecision decision = decide_load(question);
  EXPECT_EQ(decision.blocks, 3u);
  EXPECT_EQ(decision.reason, LoadReason::kRecomputeCheaper);
  question.to_fetch = 0;
  EXPECT_EQ(decide_load(question).blocks, 3u);
  EXPECT_EQ(decide_load(question).reason, LoadReason::kLoad);
}

TEST(LoadDecision, WithoutTheEnginesSpeedOrAMeasurementItLoads) {
  LoadQuestion question = even_question();
  question.blocks_per_second = 1;
  question.prefill_tokens_per_s = 0;
  EXPECT_EQ(decide_load(question).blocks, 10u);
  question = even_question();
  question.blocks_per_second = 0;
  EXPECT_EQ(decide_load(question).blocks, 10u);
}

TEST(LoadDecision, ShortHitsAreLeft) {
  LoadQuestion question = even_question();
  question.to_fetch = 4;
  question.min_blocks = 5;
  EXPECT_EQ(decide_load(question).blocks, 0u);
  EXPECT_EQ(decide_load(question).reason, LoadReason::kBelowMinimum);
  question.resident = 1;
  EXPECT_EQ(decide_load(question).blocks, 5u);
  question.blocks_per_second = 1;
  EXPECT_EQ(decide_load(question).blocks, 0u) << "what is resident alone is too short";
  EXPECT_EQ(decide_load(question).reason, LoadReason::kRecomputeCheaper);
}

TEST(FetchSpeed, IsAnAverageThatFollowsTheNewest) {
  const Instant now{std::chrono::hours(1)};
  FetchSpeed speed;
  EXPECT_EQ(speed.blocks_per_second(now), 0);
  speed.fetched(100, std::chrono::milliseconds(100), now);
  EXPECT_DOUBLE_EQ(speed.blocks_per_second(now), 1000);
  speed.fetched(10, std::chrono::milliseconds(100), now);
  EXPECT_DOUBLE_EQ(speed.blocks_per_second(now), 775);
  speed.fetched(7, Duration::zero(), now);
  EXPECT_DOUBLE_EQ(speed.blocks_per_second(now), 775) << "nothing was measured";
  for (int i = 0; i < 50; ++i) speed.fetched(10, std::chrono::milliseconds(100), now);
  EXPECT_NEAR(speed.blocks_per_second(now), 100, 1);
}

TEST(FetchSpeed, FetchOfWhichNothingCameIsSlowButNotForever) {
  Instant now{std::chrono::hours(1)};
  FetchSpeed speed;
  speed.fetched(0, std::chrono::microseconds(5), now);
  EXPECT_EQ(speed.blocks_per_second(now), 0) << "there was no time for one";
  speed.fetched(0, std::chrono::seconds(1), now);
  speed.fetched(0, std::chrono::microseconds(5), now);
  EXPECT_GT(speed.blocks_per_second(now), 0);
  EXPECT_LT(speed.blocks_per_second(now), 1);
  now += FetchSpeed::kFreshFor;
  EXPECT_EQ(speed.blocks_per_second(now), 0) << "so that loads are tried again";
  speed.fetched(100, std::chrono::seconds(1), now);
  EXPECT_DOUBLE_EQ(speed.blocks_per_second(now), 100) << "and what was long ago is no part of it";
}

}  // namespace
}  // namespace kvc
