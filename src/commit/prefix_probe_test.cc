#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "kvc/commit.h"

namespace kvc {
namespace {

using End = PrefixProbe::End;

constexpr std::uint32_t kRanks = 3;

std::vector<BlockHash> make_blocks(std::size_t count) {
  std::vector<BlockHash> blocks(count);
  for (std::size_t i = 0; i < count; ++i) {
    blocks[i].bytes[0] = static_cast<std::byte>(i);
    blocks[i].bytes[1] = static_cast<std::byte>(i >> 8);
  }
  return blocks;
}

/// A set of present keys, and a record of what was asked for.
class Presence {
 public:
  Presence(const ProbeOptions& options, std::span<const BlockHash> blocks)
      : keys(Fingerprint{}, options.layers == 0 ? Granularity::kBlock : Granularity::kLayer),
        options_(options) {
    for (const BlockHash& block : blocks) {
      present_.insert(keys.manifest(block));
      for (std::uint32_t rank = 0; rank < options.world_size; ++rank) {
        if (options.layers == 0) present_.insert(keys.shard(block, rank));
        for (std::uint32_t layer = 0; layer < options.layers; ++layer) {
          present_.insert(keys.layer(block, rank, layer));
        }
        if (!options.atomic_publish) present_.insert(keys.ready(block, rank));
      }
    }
  }

  void lose(const std::string& key) { present_.erase(key); }
  void break_at(std::string key, Reaction reaction) {
    broken_ = std::move(key);
    broken_with_ = reaction;
  }

  void run(PrefixProbe& probe) {
    for (std::vector<std::string> batch = probe.next_keys(); !batch.empty();
         batch = probe.next_keys()) {
      ASSERT_LT(chunks.size(), 10'000u) << "the probe does not end";
      std::vector<Reaction> reactions;
      for (const std::string& key : batch) {
        asked.insert(key);
        reactions.push_back(key == broken_           ? broken_with_
                            : present_.contains(key) ? Reaction::kOk
                                                     : Reaction::kMiss);
      }
      chunks.push_back(batch.size());
      probe.on_exists(reactions);
    }
  }

  const ObjectKeys keys;
  std::set<std::string> asked;
  std::vector<std::size_t> chunks;

 private:
  ProbeOptions options_;
  std::set<std::string> present_;
  std::string broken_;
  Reaction broken_with_ = Reaction::kDown;
};

class PrefixProbeOnBothKinds : public ::testing::TestWithParam<bool> {
 protected:
  ProbeOptions options() const {
    return {.world_size = kRanks,
            .atomic_publish = GetParam(),
            .first_chunk_blocks = 2,
            .max_chunk_blocks = 4};
  }
};

INSTANTIATE_TEST_SUITE_P(, PrefixProbeOnBothKinds, ::testing::Bool(),
                         [](const ::testing::TestParamInfo<bool>& kind) {
                           return kind.param ? "Atomic" : "Piecemeal";
                         });

TEST_P(PrefixProbeOnBothKinds, FindsAPrefixThatIsThereInFull) {
  const std::vector<BlockHash> blocks = make_blocks(11);
  Presence store(options(), blocks);
  PrefixProbe probe(options(), store.keys, blocks);
  store.run(probe);
  EXPECT_EQ(probe.end(), End::kAll);
  EXPECT_EQ(probe.available_blocks(), 11u);
}

TEST_P(PrefixProbeOnBothKinds, EndsAtTheFirstBlockWithoutAManifest) {
  const std::vector<BlockHash> blocks = make_blocks(11);
  for (std::size_t hole = 0; hole < blocks.size(); ++hole) {
    Presence store(options(), blocks);
    store.lose(store.keys.manifest(blocks[hole]));
    PrefixProbe probe(options(), store.keys, blocks);
    store.run(probe);
    EXPECT_EQ(probe.end(), End::kNoManifest) << hole;
    EXPECT_EQ(probe.available_blocks(), hole);
  }
}

TEST_P(PrefixProbeOnBothKinds, AsksOnlyForShardsOfCommittedBlocks) {
  const std::vector<BlockHash> blocks = make_blocks(11);
  for (std::size_t hole = 0; hole < blocks.size(); ++hole) {
    Presence store(options(), blocks);
    store.lose(store.keys.manifest(blocks[hole]));
    PrefixProbe probe(options(), store.keys, blocks);
    store.run(probe);
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
        EXPECT_EQ(store.asked.contains(store.keys.shard(blocks[b], rank)), b < hole)
            << "hole " << hole << " block " << b << " rank " << rank;
      }
    }
  }
}

TEST_P(PrefixProbeOnBothKinds, B34_EndsAtTheFirstShardThatAnyRankLacks) {
  const std::vector<BlockHash> blocks = make_blocks(9);
  for (std::size_t hole = 0; hole < blocks.size(); ++hole) {
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      Presence store(options(), blocks);
      store.lose(store.keys.shard(blocks[hole], rank));
      PrefixProbe probe(options(), store.keys, blocks);
      store.run(probe);
      EXPECT_EQ(probe.end(), End::kShardLost);
      EXPECT_EQ(probe.available_blocks(), hole);
      EXPECT_EQ(probe.lost_rank(), rank);
    }
  }
}

TEST_P(PrefixProbeOnBothKinds, B35_AsksForEveryKeyThatALoadWillAskFor) {
  const std::vector<BlockHash> blocks = make_blocks(9);
  Presence store(options(), blocks);
  PrefixProbe probe(options(), store.keys, blocks);
  store.run(probe);
  for (const BlockHash& block : blocks) {
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      EXPECT_TRUE(store.asked.contains(store.keys.shard(block, rank)));
    }
  }
}

TEST_P(PrefixProbeOnBothKinds, EndsAtTheFirstLayerThatAnyRankLacks) {
  ProbeOptions layered = options();
  layered.layers = 3;
  const std::vector<BlockHash> blocks = make_blocks(5);
  for (std::size_t hole = 0; hole < blocks.size(); ++hole) {
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      for (std::uint32_t layer = 0; layer < layered.layers; ++layer) {
        Presence store(layered, blocks);
        store.lose(store.keys.layer(blocks[hole], rank, layer));
        PrefixProbe probe(layered, store.keys, blocks);
        store.run(probe);
        EXPECT_EQ(probe.end(), End::kShardLost);
        EXPECT_EQ(probe.available_blocks(), hole);
        EXPECT_EQ(probe.lost_rank(), rank);
      }
    }
  }
}

TEST(PrefixProbe, ReadyMarkerMustBeThereWhereObjectsAppearInPieces) {
  const ProbeOptions options{.world_size = kRanks, .atomic_publish = false};
  const std::vector<BlockHash> blocks = make_blocks(4);
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    Presence store(options, blocks);
    store.lose(store.keys.ready(blocks[2], rank));
    PrefixProbe probe(options, store.keys, blocks);
    store.run(probe);
    EXPECT_EQ(probe.end(), End::kShardLost);
    EXPECT_EQ(probe.available_blocks(), 2u);
    EXPECT_EQ(probe.lost_rank(), rank);
  }
}

TEST(PrefixProbe, ManifestChunksGrowToTheirLimit) {
  const ProbeOptions options{
      .world_size = 1, .atomic_publish = true, .first_chunk_blocks = 4, .max_chunk_blocks = 16};
  const std::vector<BlockHash> blocks = make_blocks(60);
  Presence store(options, blocks);
  PrefixProbe probe(options, store.keys, blocks);
  store.run(probe);
  EXPECT_EQ(store.chunks, (std::vector<std::size_t>{4, 8, 16, 16, 16, 16, 16, 16, 12}));
  EXPECT_EQ(probe.available_blocks(), 60u);
}

TEST(PrefixProbe, ColdPrefixCostsOneSmallBatch) {
  const ProbeOptions options{.world_size = 2, .atomic_publish = true};
  const std::vector<BlockHash> blocks = make_blocks(400);
  Presence store(options, {});
  PrefixProbe probe(options, store.keys, blocks);
  store.run(probe);
  EXPECT_EQ(store.chunks, std::vector<std::size_t>{32});
  EXPECT_EQ(probe.end(), End::kNoManifest);
}

TEST_P(PrefixProbeOnBothKinds, ErrorEndsThePrefixWhereverItStrikes) {
  const std::vector<BlockHash> blocks = make_blocks(7);
  for (const Reaction reaction : {Reaction::kDown, Reaction::kBackOff, Reaction::kCallerBug}) {
    for (std::size_t at = 0; at < blocks.size(); ++at) {
      Presence manifests(options(), blocks);
      manifests.break_at(manifests.keys.manifest(blocks[at]), reaction);
      PrefixProbe first(options(), manifests.keys, blocks);
      manifests.run(first);
      EXPECT_EQ(first.end(), End::kStoreError);
      EXPECT_EQ(first.available_blocks(), at);

      Presence shards(options(), blocks);
      shards.break_at(shards.keys.shard(blocks[at], 1), reaction);
      PrefixProbe second(options(), shards.keys, blocks);
      shards.run(second);
      EXPECT_EQ(second.end(), End::kStoreError);
      EXPECT_EQ(second.available_blocks(), at);
    }
  }
}

TEST_P(PrefixProbeOnBothKinds, AnswerOfWrongLengthIsAStoreError) {
  const std::vector<BlockHash> blocks = make_blocks(2);
  const ObjectKeys keys{Fingerprint{}};
  for (const int difference : {-1, 1}) {
    PrefixProbe manifests(options(), keys, blocks);
    const auto wrong = [difference](const PrefixProbe& probe) {
      const auto length = static_cast<int>(probe.next_keys().size()) + difference;
      return std::vector<Reaction>(static_cast<std::size_t>(length), Reaction::kOk);
    };
    manifests.on_exists(wrong(manifests));
    EXPECT_EQ(manifests.end(), End::kStoreError);
    EXPECT_EQ(manifests.available_blocks(), 0u);

    PrefixProbe shards(options(), keys, blocks);
    shards.on_exists(std::vector<Reaction>(2, Reaction::kOk));
    shards.on_exists(wrong(shards));
    EXPECT_EQ(shards.end(), End::kStoreError);
    EXPECT_EQ(shards.available_blocks(), 0u);
  }
}

TEST(PrefixProbe, StaleObjectCountsAsMissing) {
  const ProbeOptions options{.world_size = kRanks, .atomic_publish = true};
  const std::vector<BlockHash> blocks = make_blocks(5);
  Presence store(options, blocks);
  store.break_at(store.keys.shard(blocks[3], 2), Reaction::kStale);
  PrefixProbe probe(options, store.keys, blocks);
  store.run(probe);
  EXPECT_EQ(probe.end(), End::kShardLost);
  EXPECT_EQ(probe.available_blocks(), 3u);
}

TEST(PrefixProbe, AbandonedProbeKeepsWhatIsProvenOnEveryRank) {
  const ProbeOptions options{
      .world_size = 2, .atomic_publish = true, .first_chunk_blocks = 4, .max_chunk_blocks = 4};
  const std::vector<BlockHash> blocks = make_blocks(8);
  const ObjectKeys keys{Fingerprint{}};
  PrefixProbe manifests_only(options, keys, blocks);
  manifests_only.on_exists(std::vector<Reaction>(4, Reaction::kOk));
  manifests_only.abandon();
  EXPECT_EQ(manifests_only.end(), End::kStoreError);
  EXPECT_EQ(manifests_only.available_blocks(), 0u);
  EXPECT_TRUE(manifests_only.next_keys().empty());

  PrefixProbe some_shards(options, keys, blocks);
  some_shards.on_exists(std::vector<Reaction>(4, Reaction::kOk));
  some_shards.on_exists(std::vector<Reaction>(4, Reaction::kOk));
  some_shards.on_exists(std::vector<Reaction>(4, Reaction::kOk));  // Shards of two blocks.
  some_shards.abandon();
  EXPECT_EQ(some_shards.available_blocks(), 2u);
}

TEST(PrefixProbe, NoBlocksNeedNoStore) {
  const ObjectKeys keys{Fingerprint{}};
  PrefixProbe probe({}, keys, {});
  EXPECT_EQ(probe.end(), End::kAll);
  EXPECT_TRUE(probe.next_keys().empty());
  EXPECT_EQ(probe.available_blocks(), 0u);
}

}  // namespace
}  // namespace kvc
