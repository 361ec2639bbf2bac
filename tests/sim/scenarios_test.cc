// Stories of one fault each, told event by event. A bug that a swarm finds gets its story here.
#include <gtest/gtest.h>

#include "tests/sim/sim_fixture.h"

namespace kvc::sim {
namespace {

const Prompt kPrompt{.salt = 0, .tokens = {1, 1, 2, 2, 3, 3}};
constexpr std::uint32_t kBlocks = 3;

class SimStory : public ::testing::Test {
 protected:
  SimStory() : choice_(11), world_(choice_, {.shape = {.ranks = 2}}) {
    for (auto& engine : engines_) engine = std::make_unique<SimEngine>(world_.site, options());
  }
  ~SimStory() override { EXPECT_EQ(world_.oracle.first_violation(), ""); }

  static SimEngineOptions options() {
    SimEngineOptions options;
    options.rank.staging_pages = 8;
    return options;
  }

  /// Until nothing is left to happen.
  void run() { world_.run(); }
  /// Up to the moment in which `mark` is hit once more.
  void run_until(Mark mark) {
    const std::uint32_t before = world_.coverage.count(mark);
    while (world_.coverage.count(mark) == before && world_.loop.step()) {
    }
    ASSERT_GT(world_.coverage.count(mark), before);
  }
  void save_on(SimEngine& engine) {
    engine.submit(kPrompt);
    run();
    ASSERT_TRUE(engine.idle());
  }
  /// The request's promise, in blocks.
  std::uint32_t ask(SimEngine& engine) {
    engine.submit(kPrompt);
    run();
    EXPECT_TRUE(engine.idle());
    return engine.last_promise();
  }
  Tag shard(std::uint32_t block, std::uint8_t rank) {
    const std::span<const Token> tokens(kPrompt.tokens);
    return {world_.oracle.content(0, 0, tokens.first((block + 1) * kTokensPerBlock)),
            ObjectIs::kShard, rank};
  }
  SimEngine& warm() { return *engines_[0]; }
  /// Has nothing in its host tier.
  SimEngine& cold() { return *engines_[1]; }

  SeededChoice choice_;
  SimStageWorld world_;
  std::array<std::unique_ptr<SimEngine>, 2> engines_;
};

TEST_F(SimStory, SavedPromptIsPromisedInFull) {
  save_on(warm());
  EXPECT_EQ(ask(warm()), kBlocks);
  EXPECT_EQ(ask(cold()), kBlocks);
}

TEST_F(SimStory, WhatWasJustSavedNeedsNoStore) {
  save_on(warm());
  world_.store.wipe();
  EXPECT_EQ(ask(warm()), kBlocks);
  EXPECT_EQ(ask(cold()), 0u);
}

TEST_F(SimStory, TwoEnginesSaveOnePromptAtOnce) {
  warm().submit(kPrompt);
  cold().submit(kPrompt);
  run();
  for (std::uint32_t block = 0; block < kBlocks; ++block) {
    EXPECT_TRUE(world_.oracle.has_manifest(shard(block, 0).content));
  }
  EXPECT_EQ(ask(warm()), kBlocks);
}

TEST_F(SimStory, ShardThatOneRankLostEndsThePromiseAndIsSavedAgain) {
  save_on(warm());
  ASSERT_TRUE(world_.store.evict(shard(1, 1)));
  EXPECT_EQ(ask(cold()), 1u);
  EXPECT_EQ(ask(cold()), kBlocks);
}

TEST_F(SimStory, DamagedShardIsNotPromisedAndHeals) {
  save_on(warm());
  ASSERT_TRUE(world_.store.damage(shard(2, 1)));
  EXPECT_EQ(ask(cold()), 2u);
  EXPECT_EQ(world_.coverage.count(Mark::kRejectedChecksum), 1u);
  EXPECT_EQ(ask(cold()), kBlocks);
  warm().crash_all();  // Its host tier is gone: what it loads now comes from the store.
  run();
  EXPECT_EQ(ask(warm()), kBlocks);
}

TEST_F(SimStory, StoreThatIsWipedBetweenPromiseAndLoadChangesNothing) {
  save_on(warm());
  cold().submit(kPrompt);
  run_until(Mark::kPromiseFull);
  world_.store.wipe();
  run();
  EXPECT_TRUE(cold().idle());
  EXPECT_EQ(cold().last_promise(), kBlocks);
  EXPECT_EQ(world_.coverage.count(Mark::kLoaded), std::uint64_t{2} * kBlocks);
}

TEST_F(SimStory, StoreThatGoesDownBetweenPromiseAndLoadChangesNothing) {
  save_on(warm());
  cold().submit(kPrompt);
  run_until(Mark::kPromiseFull);
  world_.store.outage(100'000);
  run();
  EXPECT_TRUE(cold().idle());
  EXPECT_EQ(world_.coverage.count(Mark::kLoaded), std::uint64_t{2} * kBlocks);
}

TEST_F(SimStory, RankThatDiesBetweenPromiseAndLoad) {
  save_on(warm());
  cold().submit(kPrompt);
  run_until(Mark::kPromiseFull);
  cold().crash_rank(1);
  run();
  EXPECT_TRUE(cold().idle()) << "the request begins anew once the rank is back";
  EXPECT_EQ(world_.coverage.count(Mark::kRequestAborted), 1u);
  EXPECT_EQ(cold().leader().book().size(), 0u);
}

TEST_F(SimStory, LeaderThatDiesBetweenPromiseAndLoad) {
  save_on(warm());
  cold().submit(kPrompt);
  run_until(Mark::kPromiseFull);
  cold().crash_all();
  run();
  EXPECT_TRUE(cold().idle());
  for (std::uint32_t rank = 0; rank < cold().ranks(); ++rank) {
    EXPECT_EQ(cold().rank(rank).tier().holds(), 0u);
  }
}

TEST_F(SimStory, LeaderThatIsReplacedBetweenPromiseAndLoad) {
  save_on(warm());
  for (int time = 0; time < 6; ++time) {  // Each of the ways in which a leader may end.
    cold().submit(kPrompt);
    run_until(Mark::kPromiseFull);
    cold().replace_leader();
    run();
    EXPECT_TRUE(cold().idle()) << "the request begins anew with the next leader";
    cold().empty_step();
    run();
    for (std::uint32_t rank = 0; rank < cold().ranks(); ++rank) {
      EXPECT_EQ(cold().rank(rank).tier().holds(), 0u) << "rank " << rank;
    }
    EXPECT_EQ(ask(cold()), kBlocks) << "the next leader's holds are not taken for those before";
  }
}

TEST_F(SimStory, ConnectionThatIsLostAfterThePromiseKeepsIt) {
  save_on(warm());
  cold().submit(kPrompt);
  run_until(Mark::kPromiseFull);
  cold().lose_connection(1);
  run();
  EXPECT_TRUE(cold().idle());
  EXPECT_EQ(cold().last_promise(), kBlocks);
  EXPECT_EQ(cold().rank(1).tier().holds(), 0u);
}

TEST_F(SimStory, ConnectionThatIsDownMeansNoPromise) {
  save_on(warm());
  cold().lose_connection(1);
  cold().submit(kPrompt);
  run_until(Mark::kPromiseUnavailable);
  EXPECT_EQ(cold().last_promise(), 0u);
  run();
  EXPECT_EQ(ask(cold()), kBlocks);
}

}  // namespace
}  // namespace kvc::sim
