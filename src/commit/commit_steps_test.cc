#include "commit/commit_steps.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace kvc {
namespace {

using Action = CommitSteps::Action;
using Indices = CommitSteps::Indices;
using Part = CommitSteps::Part;
using Parts = CommitSteps::Parts;

constexpr CommitRole kPiecemeal{.rank = 0, .world_size = 2, .atomic_publish = false};
constexpr CommitRole kAtomic{.rank = 0, .world_size = 2, .atomic_publish = true};
constexpr CommitRole kLayered{.rank = 0, .world_size = 2, .atomic_publish = true, .by_layer = true};

constexpr PutResult kStored{Reaction::kOk, PutEffect::kStored};
constexpr PutResult kExisted{Reaction::kOk, PutEffect::kExisted};
constexpr PutResult kUntold{Reaction::kOk, PutEffect::kUnknown};
constexpr PutResult kNothing{Reaction::kOk, PutEffect::kNone};
constexpr PutResult kRefused{Reaction::kBackOff, PutEffect::kNone};
constexpr PutResult kLost{Reaction::kDown, PutEffect::kUnknown};

struct Read {
  Reaction reaction = Reaction::kOk;
  bool intact = false;
};
constexpr Read kWhole{Reaction::kOk, true};
constexpr Read kAltered{Reaction::kOk, false};
constexpr Read kStale{Reaction::kStale, false};
constexpr Read kTooLarge{Reaction::kCallerBug, false};
constexpr Read kAbsent{Reaction::kMiss, false};
constexpr Read kNoAnswer{Reaction::kDown, false};
constexpr Read kBusy{Reaction::kBackOff, false};

/// Puts the parts of block 0 that are wanted, as long as they are, one result for each.
void put_all(CommitSteps& steps, const std::vector<PutResult>& results) {
  ASSERT_EQ(steps.action(), Action::kPutShard);
  for (std::uint32_t part = 0; part < results.size(); ++part) {
    if (!steps.puts(part).empty()) steps.on_put(part, {results[part]});
  }
  steps.end_step();
}

void read_all(CommitSteps& steps, const std::vector<Read>& reads) {
  ASSERT_EQ(steps.action(), Action::kVerifyShard);
  const Parts parts = steps.parts();
  ASSERT_EQ(parts.size(), reads.size());
  for (std::size_t n = 0; n < parts.size(); ++n) {
    steps.on_read(parts[n], {reads[n].reaction, 100}, reads[n].intact);
  }
  steps.end_step();
}

void remove_all(CommitSteps& steps, std::vector<Reaction> reactions) {
  ASSERT_EQ(steps.action(), Action::kRemoveShard);
  ASSERT_EQ(steps.parts().size(), reactions.size());
  steps.on_removed(std::move(reactions));
  steps.end_step();
}

/// A commit of one block in two parts, both of which somebody else has put.
CommitSteps found_stored() {
  CommitSteps steps(kPiecemeal, 1, 2);
  put_all(steps, {kExisted, kExisted});
  return steps;
}

struct Next {
  Action action;
  Parts parts = {};
  Reaction failure = Reaction::kOk;
};

void expect_next(const CommitSteps& steps, const Next& next) {
  EXPECT_EQ(steps.action(), next.action);
  EXPECT_EQ(steps.parts(), next.parts);
  EXPECT_EQ(steps.commit(0).failure(), next.failure);
}

TEST(CommitSteps, BeginsWithAllPartsOfAllBlocks) {
  const CommitSteps steps(kPiecemeal, 2, 2);
  EXPECT_EQ(steps.action(), Action::kPutShard);
  EXPECT_EQ(steps.blocks(), (Indices{0, 1}));
  EXPECT_EQ(steps.parts(), (Parts{{0, 0}, {0, 1}, {1, 0}, {1, 1}}));
  EXPECT_EQ(steps.puts(1), (Indices{0, 1}));
}

TEST(CommitSteps, NoBlocksNeedNoStep) {
  const CommitSteps steps(kPiecemeal, 0, 2);
  EXPECT_EQ(steps.action(), Action::kDone);
  EXPECT_TRUE(steps.blocks().empty());
}

TEST(CommitSteps, PutsOfPartsAmountToThePutOfAShard) {
  struct Case {
    std::string name;
    std::vector<PutResult> results;
    Next next;
    bool written;
  };
  const std::vector<Case> cases{
      {"all stored", {kStored, kStored}, {Action::kPutReady}, true},
      {"one existed", {kStored, kExisted}, {Action::kVerifyShard, {{0, 1}}}, true},
      {"the other existed", {kExisted, kStored}, {Action::kVerifyShard, {{0, 0}}}, true},
      {"one untold", {kUntold, kStored}, {Action::kVerifyShard, {{0, 0}}}, true},
      {"all existed", {kExisted, kExisted}, {Action::kVerifyShard, {{0, 0}, {0, 1}}}, false},
      {"nothing, existed", {kNothing, kExisted}, {Action::kVerifyShard, {{0, 0}, {0, 1}}}, false},
      {"existed, nothing", {kExisted, kNothing}, {Action::kVerifyShard, {{0, 0}, {0, 1}}}, false},
      {"first refused", {kRefused, kStored}, {Action::kDone, {}, Reaction::kBackOff}, false},
      {"last refused", {kStored, kRefused}, {Action::kDone, {}, Reaction::kBackOff}, true},
      {"refused after existed",
       {kExisted, kRefused},
       {Action::kDone, {}, Reaction::kBackOff},
       false},
      {"lost", {kExisted, kLost}, {Action::kDone, {}, Reaction::kDown}, true},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    CommitSteps steps(kPiecemeal, 1, 2);
    put_all(steps, c.results);
    expect_next(steps, c.next);
    EXPECT_EQ(steps.commit(0).shard_written(), c.written);
  }
}

TEST(CommitSteps, PartThatFailedEndsThePutsOfItsBlockAlone) {
  CommitSteps steps(kPiecemeal, 2, 2);
  steps.on_put(0, {kRefused, kStored});
  EXPECT_EQ(steps.puts(1), (Indices{1}));
  steps.on_put(1, {kStored});
  steps.end_step();
  EXPECT_EQ(steps.action(), Action::kPutReady);
  EXPECT_EQ(steps.blocks(), (Indices{1}));
  EXPECT_EQ(steps.commit(0).outcome(), BlockCommit::Outcome::kFailed);
}

TEST(CommitSteps, ReadsOfPartsDecideAboutTheShard) {
  const Next put_first{Action::kPutShard, {{0, 0}}};
  const Next remove_first{Action::kRemoveShard, {{0, 0}}};
  const Next remove_last{Action::kRemoveShard, {{0, 1}}};
  struct Case {
    std::string name;
    std::vector<Read> reads;
    Next next;
  };
  const std::vector<Case> cases{
      {"both whole", {kWhole, kWhole}, {Action::kPutReady}},
      {"altered", {kAltered, kWhole}, remove_first},
      {"altered at the end", {kWhole, kAltered}, remove_last},
      {"unreadable", {kStale, kWhole}, remove_first},
      {"too large is bad", {kTooLarge, kWhole}, remove_first},
      {"absent", {kAbsent, kWhole}, put_first},
      {"bad before absent", {kAbsent, kAltered}, remove_last},
      {"no answer before bad", {kAltered, kNoAnswer}, {Action::kDone, {}, Reaction::kDown}},
      {"no answer before absent", {kBusy, kAbsent}, {Action::kDone, {}, Reaction::kBackOff}},
      {"no answer before whole", {kNoAnswer, kWhole}, {Action::kDone, {}, Reaction::kDown}},
      {"the last of two failures", {kBusy, kNoAnswer}, {Action::kDone, {}, Reaction::kDown}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    CommitSteps steps = found_stored();
    read_all(steps, c.reads);
    expect_next(steps, c.next);
  }
}

TEST(CommitSteps, RemovedPartsArePutAgain) {
  struct Case {
    std::string name;
    std::vector<Reaction> reactions;
    Next next;
  };
  const Next put_both{Action::kPutShard, {{0, 0}, {0, 1}}};
  const std::vector<Case> cases{
      {"removed", {Reaction::kOk, Reaction::kOk}, put_both},
      {"gone before", {Reaction::kMiss, Reaction::kOk}, put_both},
      {"one stays", {Reaction::kOk, Reaction::kBackOff}, {Action::kDone, {}, Reaction::kBackOff}},
      {"no answer", {Reaction::kDown, Reaction::kOk}, {Action::kDone, {}, Reaction::kDown}},
      {"stale is not gone",
       {Reaction::kStale, Reaction::kOk},
       {Action::kDone, {}, Reaction::kStale}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    CommitSteps steps = found_stored();
    read_all(steps, {kAltered, kStale});
    remove_all(steps, c.reactions);
    expect_next(steps, c.next);
  }
}

TEST(CommitSteps, AbsentPartIsPutTogetherWithARemovedOne) {
  CommitSteps steps = found_stored();
  read_all(steps, {kAltered, kAbsent});
  EXPECT_EQ(steps.parts(), (Parts{{0, 0}}));
  remove_all(steps, {Reaction::kOk});
  EXPECT_EQ(steps.parts(), (Parts{{0, 0}, {0, 1}}));
}

TEST(CommitSteps, PartThatIsKnownToBeWholeIsNotPutOrReadAgain) {
  CommitSteps steps = found_stored();
  read_all(steps, {kWhole, kAltered});
  remove_all(steps, {Reaction::kOk});
  EXPECT_TRUE(steps.puts(0).empty());
  put_all(steps, {kStored, kExisted});
  EXPECT_EQ(steps.parts(), (Parts{{0, 1}}));
  read_all(steps, {kAltered});
  EXPECT_EQ(steps.commit(0).failure(), Reaction::kStale) << "one replacement is enough";
}

TEST(CommitSteps, PutAfterARemovalCountsAlone) {
  CommitSteps steps = found_stored();
  read_all(steps, {kAltered, kAltered});
  remove_all(steps, {Reaction::kOk, Reaction::kOk});
  put_all(steps, {kStored, kStored});
  EXPECT_EQ(steps.action(), Action::kPutReady);
}

TEST(CommitSteps, EveryLayerIsProbed) {
  struct Case {
    std::vector<Reaction> reactions;
    Action action;
    Reaction failure;
  };
  const std::vector<Case> cases{
      {{Reaction::kOk, Reaction::kOk}, Action::kPutReady, Reaction::kOk},
      {{Reaction::kMiss, Reaction::kOk}, Action::kDone, Reaction::kMiss},
      {{Reaction::kOk, Reaction::kDown}, Action::kDone, Reaction::kDown},
      {{Reaction::kMiss, Reaction::kDown}, Action::kDone, Reaction::kDown},
  };
  for (const Case& c : cases) {
    CommitSteps steps(kLayered, 1, 2);
    put_all(steps, {kStored, kExisted});
    ASSERT_EQ(steps.action(), Action::kProbeShard);
    EXPECT_EQ(steps.parts(), (Parts{{0, 0}, {0, 1}}));
    steps.on_probed(c.reactions);
    steps.end_step();
    expect_next(steps, {c.action, {}, c.failure});
  }
}

TEST(CommitSteps, BlocksThatLagBehindCatchUpFirst) {
  CommitSteps steps(kPiecemeal, 3, 1);
  steps.on_put(0, {kStored, kExisted, kExisted});
  steps.end_step();
  EXPECT_EQ(steps.action(), Action::kVerifyShard);
  EXPECT_EQ(steps.blocks(), (Indices{1, 2}));
  steps.on_read({1, 0}, {Reaction::kMiss, 0}, false);
  steps.on_read({2, 0}, {Reaction::kOk, 100}, true);
  steps.end_step();
  EXPECT_EQ(steps.action(), Action::kPutShard);
  EXPECT_EQ(steps.blocks(), (Indices{1}));
  steps.on_put(0, {kStored});
  steps.end_step();
  EXPECT_EQ(steps.action(), Action::kPutReady);
  EXPECT_EQ(steps.blocks(), (Indices{0, 1, 2}));
  EXPECT_TRUE(steps.parts().empty()) << "a marker is no part";
  steps.on_markers_put({kStored, kRefused, kExisted});
  steps.end_step();
  EXPECT_EQ(steps.action(), Action::kProbeQuorum);
  EXPECT_EQ(steps.blocks(), (Indices{0, 2}));
}

TEST(CommitSteps, QuorumIsAnsweredBlockByBlock) {
  CommitSteps steps(kAtomic, 2, 1);
  steps.on_put(0, {kStored, kStored});
  steps.end_step();
  ASSERT_EQ(steps.action(), Action::kProbeQuorum);
  steps.on_quorum({Reaction::kOk, Reaction::kMiss, Reaction::kOk, Reaction::kOk});
  steps.end_step();
  EXPECT_EQ(steps.commit(0).outcome(), BlockCommit::Outcome::kWaitingForPeers);
  ASSERT_EQ(steps.action(), Action::kPutManifest);
  EXPECT_EQ(steps.blocks(), (Indices{1}));
  steps.on_markers_put({kExisted});
  steps.end_step();
  EXPECT_EQ(steps.action(), Action::kDone);
  EXPECT_EQ(steps.commit(1).outcome(), BlockCommit::Outcome::kCommitted);
}

TEST(CommitSteps, TooFewAnswersAreNone) {
  const auto expect_lost = [](CommitSteps& steps) {
    steps.end_step();
    expect_next(steps, {Action::kDone, {}, Reaction::kDown});
  };
  CommitSteps put(kPiecemeal, 1, 2);
  put.on_put(0, {});
  expect_lost(put);
  EXPECT_TRUE(put.commit(0).shard_written()) << "it may have been";

  CommitSteps removal = found_stored();
  read_all(removal, {kAltered, kAltered});
  removal.on_removed({Reaction::kOk});
  expect_lost(removal);

  CommitSteps probe(kLayered, 1, 2);
  put_all(probe, {kStored, kStored});
  probe.on_probed({Reaction::kOk});
  expect_lost(probe);

  CommitSteps marker(kPiecemeal, 1, 1);
  put_all(marker, {kStored});
  marker.on_markers_put({});
  expect_lost(marker);

  CommitSteps quorum(kAtomic, 1, 1);
  put_all(quorum, {kStored});
  quorum.on_quorum({Reaction::kOk});
  expect_lost(quorum);
}

TEST(CommitSteps, CheckedKeepsAsManyAnswersAsItems) {
  EXPECT_EQ(checked<Reaction>({Reaction::kMiss}, 1), std::vector{Reaction::kMiss});
  EXPECT_EQ(checked<Reaction>({Reaction::kOk, Reaction::kOk}, 1), std::vector{Reaction::kDown});
  const std::vector<GetResult> reads = checked<GetResult>({{Reaction::kOk, 1}}, 2);
  ASSERT_EQ(reads.size(), 2u);
  EXPECT_EQ(reads[0].reaction, Reaction::kDown);
}

}  // namespace
}  // namespace kvc
