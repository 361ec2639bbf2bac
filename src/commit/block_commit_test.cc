#include <gtest/gtest.h>

#include <vector>

#include "kvc/commit.h"

namespace kvc {
namespace {

using Action = BlockCommit::Action;
using Outcome = BlockCommit::Outcome;

constexpr CommitRole kAtomic{.rank = 1, .world_size = 2, .atomic_publish = true};
constexpr CommitRole kPiecemeal{.rank = 1, .world_size = 2, .atomic_publish = false};
constexpr CommitRole kLayered{.rank = 1, .world_size = 2, .atomic_publish = true, .by_layer = true};
constexpr PutResult kStored{Reaction::kOk, PutEffect::kStored};
constexpr PutResult kExisted{Reaction::kOk, PutEffect::kExisted};
constexpr PutResult kUntold{Reaction::kOk, PutEffect::kUnknown};

void answer_quorum(BlockCommit& commit, std::vector<Reaction> reactions) {
  ASSERT_EQ(commit.next(), Action::kProbeQuorum);
  commit.on_quorum(reactions);
}

void expect_failed(const BlockCommit& commit, Reaction failure) {
  EXPECT_EQ(commit.next(), Action::kDone);
  EXPECT_EQ(commit.outcome(), Outcome::kFailed);
  EXPECT_EQ(commit.failure(), failure);
}

TEST(BlockCommit, LastRankPublishesTheManifest) {
  BlockCommit commit(kAtomic);
  EXPECT_EQ(commit.next(), Action::kPutShard);
  EXPECT_EQ(commit.outcome(), Outcome::kPending);
  commit.on_put(kStored);
  answer_quorum(commit, {Reaction::kOk, Reaction::kOk});
  ASSERT_EQ(commit.next(), Action::kPutManifest);
  commit.on_put(kStored);
  EXPECT_EQ(commit.next(), Action::kDone);
  EXPECT_EQ(commit.outcome(), Outcome::kCommitted);
  EXPECT_TRUE(commit.shard_written());
}

TEST(BlockCommit, EarlierRankLeavesTheManifestToItsPeer) {
  BlockCommit commit(kAtomic);
  commit.on_put(kStored);
  answer_quorum(commit, {Reaction::kMiss, Reaction::kOk});
  EXPECT_EQ(commit.next(), Action::kDone);
  EXPECT_EQ(commit.outcome(), Outcome::kWaitingForPeers);
}

TEST(BlockCommit, ShardOfAnotherWriterCountsOnAnAtomicStore) {
  BlockCommit commit(kAtomic);
  commit.on_put(kExisted);
  answer_quorum(commit, {Reaction::kOk, Reaction::kOk});
  commit.on_put(kExisted);
  EXPECT_EQ(commit.outcome(), Outcome::kCommitted);
  EXPECT_FALSE(commit.shard_written());
}

TEST(BlockCommit, PutThatTellsNothingMayHaveWritten) {
  BlockCommit commit(kAtomic);
  commit.on_put(kUntold);
  EXPECT_EQ(commit.next(), Action::kProbeQuorum);
  EXPECT_TRUE(commit.shard_written());
}

TEST(BlockCommit, OkOfAPutProvesNothing) {
  BlockCommit commit(kAtomic);
  commit.on_put(kUntold);
  answer_quorum(commit, {Reaction::kOk, Reaction::kMiss});
  expect_failed(commit, Reaction::kMiss);
}

TEST(BlockCommit, ReadyMarkerFollowsAShardOfOnesOwn) {
  BlockCommit commit(kPiecemeal);
  commit.on_put(kStored);
  ASSERT_EQ(commit.next(), Action::kPutReady);
  commit.on_put(kStored);
  answer_quorum(commit, {Reaction::kOk, Reaction::kOk});
  ASSERT_EQ(commit.next(), Action::kPutManifest);
}

TEST(BlockCommit, ExistingShardIsVerifiedBeforeItsReadyMarker) {
  for (const PutResult put : {kExisted, kUntold}) {
    BlockCommit commit(kPiecemeal);
    commit.on_put(put);
    ASSERT_EQ(commit.next(), Action::kVerifyShard);
    commit.on_verified(Reaction::kOk, true);
    EXPECT_EQ(commit.next(), Action::kPutReady);
  }
}

TEST(BlockCommit, BadExistingShardIsReplacedOnce) {
  BlockCommit commit(kPiecemeal);
  commit.on_put(kExisted);
  commit.on_verified(Reaction::kOk, false);
  ASSERT_EQ(commit.next(), Action::kRemoveShard);
  commit.on_removed(Reaction::kOk);
  ASSERT_EQ(commit.next(), Action::kPutShard);
  commit.on_put(kExisted);
  ASSERT_EQ(commit.next(), Action::kVerifyShard);
  commit.on_verified(Reaction::kOk, false);
  expect_failed(commit, Reaction::kStale);
}

TEST(BlockCommit, UnreadableExistingShardIsReplaced) {
  BlockCommit commit(kPiecemeal);
  commit.on_put(kExisted);
  commit.on_verified(Reaction::kStale, false);
  ASSERT_EQ(commit.next(), Action::kRemoveShard);
  commit.on_removed(Reaction::kMiss);
  ASSERT_EQ(commit.next(), Action::kPutShard);
  commit.on_put(kStored);
  EXPECT_EQ(commit.next(), Action::kPutReady);
}

TEST(BlockCommit, VanishedShardIsPutOnceMore) {
  BlockCommit commit(kPiecemeal);
  commit.on_put(kExisted);
  commit.on_verified(Reaction::kMiss, false);
  ASSERT_EQ(commit.next(), Action::kPutShard);
  commit.on_put(kExisted);
  commit.on_verified(Reaction::kMiss, false);
  expect_failed(commit, Reaction::kMiss);
}

TEST(BlockCommit, LayersAreSeenBeforeTheirReadyMarker) {
  for (const PutResult put : {kStored, kExisted, kUntold}) {
    BlockCommit commit(kLayered);
    commit.on_put(put);
    ASSERT_EQ(commit.next(), Action::kProbeShard);
    commit.on_shard_probed(Reaction::kOk);
    ASSERT_EQ(commit.next(), Action::kPutReady);
    commit.on_put(kStored);
    answer_quorum(commit, {Reaction::kOk, Reaction::kOk});
    EXPECT_EQ(commit.next(), Action::kPutManifest);
  }
}

TEST(BlockCommit, LayerThatIsNotThereEndsIt) {
  for (const Reaction reaction : {Reaction::kMiss, Reaction::kStale, Reaction::kDown}) {
    BlockCommit commit(kLayered);
    commit.on_put(kUntold);
    commit.on_shard_probed(reaction);
    expect_failed(commit, reaction);
  }
  BlockCommit unasked(kAtomic);
  unasked.on_shard_probed(Reaction::kOk);
  expect_failed(unasked, Reaction::kCallerBug);
}

TEST(BlockCommit, FailedPutPublishesNothing) {
  for (const Reaction reaction :
       {Reaction::kBackOff, Reaction::kDown, Reaction::kStale, Reaction::kCallerBug}) {
    for (const PutEffect effect : {PutEffect::kNone, PutEffect::kUnknown}) {
      BlockCommit shard(kPiecemeal);
      shard.on_put({reaction, effect});
      expect_failed(shard, reaction);

      BlockCommit ready(kPiecemeal);
      ready.on_put(kStored);
      ready.on_put({reaction, effect});
      expect_failed(ready, reaction);

      BlockCommit manifest(kAtomic);
      manifest.on_put(kStored);
      manifest.on_quorum(std::vector<Reaction>(2, Reaction::kOk));
      manifest.on_put({reaction, effect});
      expect_failed(manifest, reaction);
    }
  }
}

TEST(BlockCommit, FailedCheckOrRemovalPublishesNothing) {
  for (const Reaction reaction : {Reaction::kBackOff, Reaction::kDown, Reaction::kCallerBug}) {
    BlockCommit check(kPiecemeal);
    check.on_put(kExisted);
    check.on_verified(reaction, true);
    expect_failed(check, reaction);

    BlockCommit removal(kPiecemeal);
    removal.on_put(kExisted);
    removal.on_verified(Reaction::kOk, false);
    removal.on_removed(reaction);
    expect_failed(removal, reaction);
  }
}

TEST(BlockCommit, FailedProbePublishesNothing) {
  for (const Reaction reaction : {Reaction::kBackOff, Reaction::kDown, Reaction::kCallerBug}) {
    BlockCommit commit(kAtomic);
    commit.on_put(kStored);
    commit.on_quorum(std::vector<Reaction>{reaction, Reaction::kOk});
    expect_failed(commit, reaction);
  }
}

TEST(BlockCommit, ProbeAnswerOfWrongLengthIsAStoreError) {
  for (const std::size_t length : {0u, 1u, 3u}) {
    BlockCommit commit(kAtomic);
    commit.on_put(kStored);
    commit.on_quorum(std::vector<Reaction>(length, Reaction::kOk));
    expect_failed(commit, Reaction::kDown);
  }
}

TEST(BlockCommit, UnreadablePeerCountsAsMissing) {
  BlockCommit commit(kAtomic);
  commit.on_put(kStored);
  commit.on_quorum(std::vector<Reaction>{Reaction::kStale, Reaction::kOk});
  EXPECT_EQ(commit.outcome(), Outcome::kWaitingForPeers);
}

TEST(BlockCommit, AnswerThatWasNotAskedForEndsIt) {
  BlockCommit put(kAtomic);
  put.on_put(kStored);
  put.on_put(kStored);
  expect_failed(put, Reaction::kCallerBug);
  BlockCommit probe(kAtomic);
  probe.on_quorum(std::vector<Reaction>(2, Reaction::kOk));
  expect_failed(probe, Reaction::kCallerBug);
  BlockCommit check(kPiecemeal);
  check.on_verified(Reaction::kOk, true);
  expect_failed(check, Reaction::kCallerBug);
  BlockCommit removal(kPiecemeal);
  removal.on_removed(Reaction::kOk);
  expect_failed(removal, Reaction::kCallerBug);
}

TEST(BlockCommit, QuorumIsTheShardsOrTheReadyMarkersOfAllRanks) {
  const ObjectKeys keys(Fingerprint{});
  const BlockHash block{};
  EXPECT_EQ(quorum_keys(keys, block, kAtomic),
            (std::vector<std::string>{keys.shard(block, 0), keys.shard(block, 1)}));
  EXPECT_EQ(quorum_keys(keys, block, kPiecemeal),
            (std::vector<std::string>{keys.ready(block, 0), keys.ready(block, 1)}));
  const ObjectKeys by_layer(Fingerprint{}, Granularity::kLayer);
  EXPECT_EQ(quorum_keys(by_layer, block, kLayered),
            (std::vector<std::string>{by_layer.ready(block, 0), by_layer.ready(block, 1)}));
}

}  // namespace
}  // namespace kvc
