// Which blocks the scheduler hands out for saving, and under which names.

#include <algorithm>
#include <limits>

#include "connector/scheduler_fixture.h"
#include "testing/seed.h"

namespace kvc {
namespace {

constexpr std::size_t B = kBlockTokens;

/// One request, driven report by report.
class Life {
 public:
  Life(SchedulerFixture& world, RequestId id, std::vector<Token> tokens, std::size_t slot_count)
      : world_(world), id_(id), tokens_(std::move(tokens)), slots_(make_slots(slot_count)) {}

  Offer query(std::size_t computed = 0) { return world_.query(id_, tokens_, computed); }
  void allocate() { world_.scheduler->allocated(id_, slots_); }
  /// Its first `blocks` blocks, no more, are stored, and promised; then it gets its pages.
  void take_promise(std::size_t blocks) {
    world_.publish_blocks(tokens_, 0, blocks);
    ASSERT_EQ(query().blocks, blocks);
    allocate();
  }

  /// The first report: everything that is known.
  std::vector<SlotIndex> begin(std::size_t computed, std::size_t scheduled) {
    plan = world_.plan({{.id = id_,
                         .is_new = true,
                         .new_tokens = tokens_,
                         .new_slots = slots_,
                         .computed_tokens = computed,
                         .scheduled_tokens = scheduled}});
    return slots_of(plan.saves);
  }
  std::vector<SlotIndex> go_on(std::size_t computed, std::size_t scheduled,
                               std::vector<Token> tokens = {}, std::vector<SlotIndex> slots = {}) {
    plan = world_.plan({{.id = id_,
                         .new_tokens = tokens,
                         .new_slots = slots,
                         .computed_tokens = computed,
                         .scheduled_tokens = scheduled}});
    return slots_of(plan.saves);
  }

  std::vector<Token>& tokens() { return tokens_; }
  std::vector<SlotIndex>& slots() { return slots_; }

  StepPlan plan;

 private:
  SchedulerFixture& world_;
  RequestId id_;
  std::vector<Token> tokens_;
  std::vector<SlotIndex> slots_;
};

using Slots = std::vector<SlotIndex>;

TEST(SchedulerSaves, BlocksOfAPassAreNamedByTheirPrefix) {
  SchedulerFixture world;
  Life life(world, 1, make_tokens(3 * B + 1), 4);
  life.query();
  life.allocate();
  EXPECT_EQ(life.begin(0, 3 * B + 1), (Slots{100, 101, 102}));
  const std::vector<BlockHash> names = names_of(life.tokens());
  for (std::size_t b = 0; b < 3; ++b) {
    EXPECT_EQ(life.plan.saves[b].block, names[b]);
    EXPECT_EQ(life.plan.saves[b].request, 1u);
  }
}

std::vector<bool> absent_of(const std::vector<PageTask>& saves) {
  std::vector<bool> absent;
  for (const PageTask& task : saves) absent.push_back(task.absent);
  return absent;
}

TEST(SchedulerSaves, WhatTheStoreWasFoundToLackIsSaidToBeAbsent) {
  SchedulerFixture world;
  Life life(world, 1, make_tokens(4 * B + 1), 5);
  world.publish_blocks(life.tokens(), 0, 3);
  world.lose(world.keys.shard(names_of(life.tokens())[2], 1));
  ASSERT_EQ(life.query(B).blocks, 1u);
  life.allocate();
  EXPECT_EQ(life.begin(B, 2 * B + 1), (Slots{100, 102, 103}));
  EXPECT_EQ(absent_of(life.plan.saves), (std::vector<bool>{false, true, true}))
      << "of the engine's own match nothing is known";
}

TEST(SchedulerSaves, StoreThatDoesNotAnswerTellsNothingAboutItsBlocks) {
  SchedulerFixture world;
  Life life(world, 1, make_tokens(2 * B + 1), 3);
  world.store->answer_with(Reaction::kDown);
  life.query();
  life.allocate();
  life.begin(0, 2 * B + 1);
  EXPECT_EQ(absent_of(life.plan.saves), (std::vector<bool>{false, false}));
}

TEST(SchedulerSaves, OfManyWritersWhoAskedBeforeTheFirstOneWroteOnlyThatOneSaysAbsent) {
  SchedulerFixture world;
  std::vector<Life> lives;
  for (RequestId id = 1; id <= 3; ++id) lives.emplace_back(world, id, make_tokens(2 * B + 1), 3);
  for (Life& life : lives) {
    life.query();
    life.allocate();
  }
  for (Life& life : lives) {
    world.clock->advance(Duration(1));
    life.begin(0, 2 * B + 1);
    ASSERT_EQ(life.plan.saves.size(), 2u);
    const bool first = &life == lives.data();
    EXPECT_EQ(absent_of(life.plan.saves), (std::vector<bool>{first, first}));
  }
  world.clock->advance(Duration(1));
  Life later(world, 4, make_tokens(2 * B + 1), 3);
  later.query();
  later.allocate();
  later.begin(0, 2 * B + 1);
  EXPECT_EQ(absent_of(later.plan.saves), (std::vector<bool>{true, true}))
      << "what they wrote is gone, or was never stored";
}

TEST(SchedulerSaves, ChunksAddUpAndNothingIsHandedOutTwice) {
  SchedulerFixture world;
  Life life(world, 1, make_tokens(3 * B), 3);
  life.query();
  life.allocate();
  EXPECT_EQ(life.begin(0, B + 1), (Slots{100}));
  EXPECT_EQ(life.go_on(B + 1, B - 1), (Slots{101}));
  EXPECT_EQ(life.go_on(2 * B, B), (Slots{102}));
  EXPECT_EQ(life.go_on(2 * B, B), Slots{});
}

TEST(SchedulerSaves, DecodedBlocksAreSavedOnceTheirTokensAreKnown) {
  SchedulerFixture world;
  Life life(world, 1, make_tokens(B - 1), 1);
  life.query();
  life.allocate();
  EXPECT_EQ(life.begin(0, B - 1), Slots{});
  // The token at B - 1 was sampled; this step computes its KV.
  EXPECT_EQ(life.go_on(B - 1, 1, {50}), (Slots{100}));
  EXPECT_EQ(life.go_on(B, 1, {51}, {101}), Slots{});
}

TEST(SchedulerSaves, OverlapStepWithoutANewTokenSavesNothingEarly) {
  SchedulerFixture world;
  Life life(world, 1, make_tokens(B - 1), 2);
  life.query();
  life.allocate();
  life.begin(0, B - 1);
  EXPECT_EQ(life.go_on(B - 2, 1), Slots{}) << "the token of this step is not known on the host yet";
  EXPECT_EQ(life.go_on(B - 1, 1, {50}), (Slots{100}));
}

TEST(SchedulerSaves, BlocksThatAreLoadedAreNotSaved) {
  SchedulerFixture world;
  Life life(world, 1, make_tokens(5 * B + 1), 6);
  life.take_promise(3);
  EXPECT_EQ(life.begin(0, 2 * B + 1), (Slots{103, 104})) << "load and pass end with the prompt";
  EXPECT_EQ(life.plan.loads.size(), 3u);
}

TEST(SchedulerSaves, BlocksOfTheEnginesOwnMatchAreSavedToo) {
  SchedulerFixture world;
  Life life(world, 1, make_tokens(4 * B + 1), 5);
  life.query(2 * B);
  life.allocate();
  EXPECT_EQ(life.begin(2 * B, 2 * B + 1), (Slots{100, 101, 102, 103}));
}

TEST(SchedulerSaves, PromiseCountsOnlyWhenThePassEndsWithThePrompt) {
  SchedulerFixture world;
  Life life(world, 1, make_tokens(8 * B), 8);
  life.take_promise(3);
  // A chunk. Where it begins depends on how much of the promise was taken, which is not told.
  EXPECT_EQ(life.begin(0, 2 * B), Slots{});
  EXPECT_EQ(life.go_on(5 * B, 2 * B), (Slots{103, 104, 105, 106})) << "absolute again: catches up";
  EXPECT_EQ(life.go_on(7 * B, B), (Slots{107}));
}

TEST(FaultKinds, B20_OfferHonouredLessSavesNoPageThatWasNotComputed) {
  SchedulerFixture world;
  Life life(world, 1, make_tokens(6 * B), 6);
  life.take_promise(4);
  // One block less than offered was taken, so the pass has one block more to compute.
  EXPECT_EQ(life.begin(0, 3 * B), Slots{});
  EXPECT_EQ(life.go_on(6 * B, 1, {77}, {106}), (Slots{104, 105}));
}

TEST(SchedulerSaves, PromiseDoesNotCountWhereThePassBeganElsewhere) {
  SchedulerFixture world;
  Life life(world, 1, make_tokens(6 * B), 6);
  life.take_promise(4);
  EXPECT_EQ(life.begin(B, B), Slots{}) << "begins one block later than at the query";
}

TEST(SchedulerSaves, CancelledPromiseDoesNotCount) {
  SchedulerFixture world;
  Life life(world, 1, make_tokens(6 * B), 6);
  world.publish_blocks(life.tokens(), 0, 4);
  ASSERT_EQ(life.query().blocks, 4u);
  world.scheduler->cancel_load(1, 2 * B);
  life.allocate();
  EXPECT_EQ(life.begin(0, 2 * B), Slots{}) << "fits the whole promise, of which half was cancelled";
  EXPECT_EQ(life.go_on(4 * B, 2 * B), (Slots{102, 103, 104, 105}));
}

TEST(SchedulerSaves, HolesKeepTheirPlace) {
  SchedulerFixture world;
  Life life(world, 1, make_tokens(4 * B), 0);
  life.slots() = {7, -1, 9, 10};
  life.query();
  life.allocate();
  EXPECT_EQ(life.begin(0, 4 * B), (Slots{7, 9, 10}));
  const std::vector<BlockHash> names = names_of(life.tokens());
  EXPECT_EQ(life.plan.saves[1].block, names[2]);
}

TEST(SchedulerSaves, RequestWithAPageForTwoBlocksIsNeverSaved) {
  SchedulerFixture world;
  for (const Slots& slots : {Slots{5, 5, 5, 5}, Slots{7, 8, 9, 7}}) {
    Life life(world, 1, make_tokens(4 * B), 0);
    life.slots() = slots;
    life.query();
    life.allocate();
    EXPECT_EQ(life.begin(0, 4 * B), Slots{}) << "told with the allocation";
  }
  Life reported(world, 2, make_tokens(2 * B), 2);
  reported.query();
  reported.allocate();
  reported.slots() = {100, 100};
  EXPECT_EQ(reported.begin(0, 2 * B), Slots{}) << "told with the first report";
  Life grown(world, 3, make_tokens(2 * B), 2);
  grown.query();
  grown.allocate();
  EXPECT_EQ(grown.begin(0, 2 * B), (Slots{100, 101}));
  EXPECT_EQ(grown.go_on(2 * B, B, make_tokens(B), {100}), Slots{}) << "told while it decodes";
}

TEST(SchedulerSaves, PositionBeyondTheKnownTokensSavesNothing) {
  SchedulerFixture world;
  for (const std::size_t position : {2 * B + 1, std::numeric_limits<std::size_t>::max()}) {
    Life life(world, 1, make_tokens(2 * B), 2);
    life.query();
    life.allocate();
    EXPECT_EQ(life.begin(position, B), Slots{});
  }
}

TEST(SchedulerSaves, BlockComputedWithoutAPageIsNeverSaved) {
  SchedulerFixture world;
  Life life(world, 1, make_tokens(2 * B), 2);
  life.query();
  life.allocate();
  EXPECT_EQ(life.begin(0, 2 * B), (Slots{100, 101}));
  for (Token i = 0; i < static_cast<Token>(B) - 1; ++i) {  // No page for block 2 so far.
    EXPECT_EQ(life.go_on(2 * B + static_cast<std::size_t>(i), 1, {60 + i}), Slots{});
  }
  EXPECT_EQ(life.go_on(3 * B - 1, 1, {90}, {102, 103}), Slots{}) << "its first tokens went nowhere";
  std::vector<Token> more = make_tokens(B, 200);
  EXPECT_EQ(life.go_on(3 * B, B, more), (Slots{103}));
}

TEST(SchedulerSaves, UnknownRequestsAreNotSaved) {
  SchedulerFixture world;
  Life life(world, 1, make_tokens(2 * B), 2);
  EXPECT_EQ(life.begin(0, 2 * B), Slots{}) << "never queried, so its scope is not known";
}

TEST(SchedulerSaves, DeltaWithoutAFirstReportIsNotSaved) {
  SchedulerFixture world;
  Life life(world, 1, make_tokens(2 * B), 2);
  life.query();
  life.allocate();
  EXPECT_EQ(life.go_on(0, 2 * B, life.tokens(), life.slots()), Slots{});
  EXPECT_EQ(life.go_on(2 * B, 1, {9}), Slots{});
}

TEST(SchedulerSaves, ReportedTokensDecideTheNames) {
  SchedulerFixture world;
  Life life(world, 1, make_tokens(2 * B), 2);
  life.query();
  life.allocate();
  life.tokens() = make_tokens(2 * B, 700);
  EXPECT_EQ(life.begin(0, 2 * B), (Slots{100, 101}));
  EXPECT_EQ(life.plan.saves[0].block, names_of(life.tokens())[0]);
  EXPECT_EQ(life.plan.saves[1].block, names_of(life.tokens())[1]);
}

TEST(SchedulerSaves, ReportedTokensThatContradictTheLoadSaveNothing) {
  SchedulerFixture world;
  Life life(world, 1, make_tokens(4 * B), 4);
  life.take_promise(2);
  life.tokens()[B] = 999;
  EXPECT_EQ(life.begin(0, 2 * B), Slots{});
  EXPECT_EQ(life.go_on(4 * B, 1, {5}, {104}), Slots{});
}

TEST(SchedulerSaves, ReportShorterThanThePromptSavesNothing) {
  SchedulerFixture world;
  Life life(world, 1, make_tokens(4 * B), 4);
  life.query();
  life.allocate();
  life.tokens().resize(2 * B);
  EXPECT_EQ(life.begin(0, 2 * B), Slots{});
  EXPECT_EQ(life.go_on(2 * B, 2 * B, make_tokens(2 * B, 800)), Slots{});
}

TEST(SchedulerSaves, TokenThatCannotBeNamedEndsTheSaves) {
  SchedulerFixture world;
  Life life(world, 1, make_tokens(B), 3);
  life.query();
  life.allocate();
  EXPECT_EQ(life.begin(0, B), (Slots{100}));
  EXPECT_EQ(life.go_on(B, B, {1, 2, -3, 4}), Slots{});
  EXPECT_EQ(life.go_on(2 * B, B, {5, 6, 7, 8}), Slots{}) << "names would miss what came before";
}

TEST(SchedulerSaves, HugeNumbersAreHarmless) {
  constexpr std::size_t kHuge = std::numeric_limits<std::size_t>::max();
  SchedulerFixture world;
  Life life(world, 1, make_tokens(2 * B), 2);
  life.query();
  life.allocate();
  EXPECT_EQ(life.begin(1, kHuge), (Slots{100, 101}));
  EXPECT_EQ(life.go_on(kHuge, kHuge), Slots{});
  EXPECT_EQ(world.query(2, life.tokens(), kHuge).blocks, 0u);
  world.scheduler->cancel_load(2, kHuge);
}

TEST(FaultKinds, B21_UnfinishedTailIsNeverSaved) {
  for (std::size_t length = 1; length <= 3 * B; ++length) {
    SchedulerFixture world;
    Life life(world, 1, make_tokens(length), (length + B - 1) / B);
    life.query();
    life.allocate();
    EXPECT_EQ(life.begin(0, length).size(), length / B);
  }
}

TEST(FaultKinds, B23_BlocksCoverExactlyTheTokensThatAreValid) {
  Random random(testlib::test_seed(23));
  for (int i = 0; i < 300; ++i) {
    SchedulerFixture world;
    const std::size_t length = 1 + random.below(12 * B);
    Life life(world, 1, make_tokens(length), (length + B - 1) / B);
    life.query();
    life.allocate();
    std::vector<bool> saved(length / B + 1);
    std::size_t position = 0;
    for (bool first = true; position < length; first = false) {
      const std::size_t chunk = 1 + random.below(length - position);
      first ? life.begin(0, chunk) : life.go_on(position, chunk);
      position += chunk;
      for (const PageTask& save : life.plan.saves) {
        const auto block = static_cast<std::size_t>(save.slot - 100);
        ASSERT_LT(block, length / B);
        EXPECT_LE((block + 1) * B, position);
        EXPECT_FALSE(saved[block]);
        saved[block] = true;
      }
      EXPECT_EQ(static_cast<std::size_t>(std::ranges::count(saved, true)), position / B);
    }
  }
}

TEST(FaultKinds, B40_RequestAnnouncedAsNewAgainStartsOver) {
  SchedulerFixture world;
  Life life(world, 1, make_tokens(3 * B), 3);
  life.query();
  life.allocate();
  EXPECT_EQ(life.begin(0, 2 * B), (Slots{100, 101}));
  life.slots() = {7, 8, 9, 10};
  life.tokens() = make_tokens(3 * B + 2);
  EXPECT_EQ(life.begin(0, B), (Slots{7}));
  EXPECT_EQ(life.go_on(B, 2 * B + 2), (Slots{8, 9}));
  EXPECT_EQ(life.go_on(3 * B + 2, 2, {40, 41}), (Slots{10})) << "deltas are appended";
}

TEST(FaultKinds, B40_PromiseOfAnEarlierAllocationIsNotAdded) {
  SchedulerFixture world;
  Life life(world, 1, make_tokens(4 * B), 4);
  life.take_promise(2);
  EXPECT_EQ(life.begin(0, 2 * B), (Slots{102, 103}));
  // Announced anew without a query: nothing was loaded into these pages.
  life.slots() = {20, 21, 22, 23};
  EXPECT_EQ(life.begin(0, 2 * B), (Slots{20, 21}));
  EXPECT_TRUE(life.plan.loads.empty());
}

TEST(FaultKinds, B40_ReplayIsSavedAgainUnderTheSameNames) {
  SchedulerFixture world;
  Life life(world, 1, make_tokens(2 * B), 2);
  life.query();
  life.allocate();
  life.begin(0, 2 * B);
  const std::vector<PageTask> first = life.plan.saves;
  world.scheduler->finished(1);
  EXPECT_EQ(life.go_on(2 * B, 1, {3}), Slots{}) << "forgotten";
  life.slots() = {50, 51};
  life.query();
  life.allocate();
  EXPECT_EQ(life.begin(0, 2 * B), (Slots{50, 51}));
  EXPECT_EQ(life.plan.saves[1].block, first[1].block);
}

TEST(FaultKinds, B41_EveryChunkingSavesEveryBlockOnce) {
  for (const std::vector<std::size_t>& chunks :
       {std::vector<std::size_t>{B / 2}, {B}, {B + B / 2}, {3 * B}, {B / 2, 3 * B, 1, B}}) {
    SchedulerFixture world;
    Life life(world, 1, make_tokens(10 * B), 10);
    life.query();
    life.allocate();
    Slots all;
    std::size_t position = 0;
    for (std::size_t i = 0; position < 10 * B; ++i) {
      const std::size_t chunk = std::min(chunks[i % chunks.size()], 10 * B - position);
      const Slots saved = i == 0 ? life.begin(0, chunk) : life.go_on(position, chunk);
      all.insert(all.end(), saved.begin(), saved.end());
      position += chunk;
    }
    EXPECT_EQ(all, make_slots(10));
  }
}

}  // namespace
}  // namespace kvc
