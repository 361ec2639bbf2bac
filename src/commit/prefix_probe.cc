#include <algorithm>
#include <cstddef>

#include "base/planted.h"
#include "kvc/commit.h"

namespace kvc {
namespace {

bool is_absent(Reaction reaction) {
  return reaction == Reaction::kMiss || reaction == Reaction::kStale;
}

/// A block has many more objects where it is stored by layer; so many may be asked for at once.
constexpr std::size_t kLayerKeysPerCall = 4096;

}  // namespace

/// Objects whose presence on one rank makes a block readable there. Without atomic publication the
/// shard may be half written while its READY marker is gone, and the marker may outlive the shard.
std::size_t PrefixProbe::objects_per_rank() const {
  return std::max<std::size_t>(options_.layers, 1) + (options_.atomic_publish ? 0 : 1);
}

PrefixProbe::PrefixProbe(const ProbeOptions& options, const ObjectKeys& keys,
                         std::span<const BlockHash> blocks)
    : options_(options), keys_(keys), blocks_(blocks) {
  options_.world_size = std::max(options_.world_size, 1u);
  options_.max_chunk_blocks = std::max<std::size_t>(options_.max_chunk_blocks, 1);
  chunk_ = std::clamp<std::size_t>(options_.first_chunk_blocks, 1, options_.max_chunk_blocks);
  if (blocks_.empty()) finish(0, End::kAll);
}

void PrefixProbe::finish(std::size_t available, End end) {
  available_ = available;
  end_ = end;
}

std::vector<std::string> PrefixProbe::next_keys() const {
  std::vector<std::string> wanted;
  if (end_ != End::kPending) return wanted;
  if (phase_ == Phase::kManifests) {
    const std::size_t count = std::min(chunk_, blocks_.size() - manifests_);
    wanted.reserve(count);
    for (const BlockHash& block : blocks_.subspan(manifests_, count)) {
      wanted.push_back(keys_.manifest(block));
    }
    return wanted;
  }
  const std::size_t count = std::min(shard_chunk(), candidates_ - shards_);
  wanted.reserve(count * options_.world_size * objects_per_rank());
  for (const BlockHash& block : blocks_.subspan(shards_, count)) {
    for (std::uint32_t rank = 0; rank < options_.world_size; ++rank) {
      if (options_.layers == 0) wanted.push_back(keys_.shard(block, rank));
      for (std::uint32_t layer = 0; layer < options_.layers; ++layer) {
        wanted.push_back(keys_.layer(block, rank, layer));
      }
      if (!options_.atomic_publish) wanted.push_back(keys_.ready(block, rank));
    }
  }
  return wanted;
}

std::size_t PrefixProbe::shard_chunk() const {
  const std::size_t per_block = options_.world_size * objects_per_rank();
  const std::size_t keys = options_.layers == 0
                               ? options_.max_chunk_blocks
                               : std::max(options_.max_chunk_blocks, kLayerKeysPerCall);
  return std::max<std::size_t>(keys / per_block, 1);
}

void PrefixProbe::on_exists(std::span<const Reaction> reactions) {
  if (end_ != End::kPending) return;
  if (phase_ == Phase::kManifests) {
    on_manifests(reactions);
  } else {
    on_shards(reactions);
  }
}

void PrefixProbe::on_manifests(std::span<const Reaction> reactions) {
  const std::size_t asked = std::min(chunk_, blocks_.size() - manifests_);
  // An answer of the wrong length cannot be assigned to keys: none of it counts.
  if (reactions.size() != asked) {
    manifest_end_ = End::kStoreError;
    return begin_shards();
  }
  for (const Reaction reaction : reactions) {
    if (reaction != Reaction::kOk) {
      manifest_end_ = is_absent(reaction) ? End::kNoManifest : End::kStoreError;
      return begin_shards();
    }
    ++manifests_;
  }
  if (manifests_ == blocks_.size()) return begin_shards();
  chunk_ = std::min(chunk_ * 2, options_.max_chunk_blocks);
}

void PrefixProbe::begin_shards() {
  phase_ = Phase::kShards;
  candidates_ = manifests_;
  if (candidates_ == 0 || KVC_PLANTED("stale_manifest")) finish(candidates_, manifest_end_);
}

void PrefixProbe::on_shards(std::span<const Reaction> reactions) {
  const std::size_t per_block = options_.world_size * objects_per_rank();
  const std::size_t asked = std::min(shard_chunk(), candidates_ - shards_);
  if (reactions.size() != asked * per_block) return finish(shards_, End::kStoreError);
  for (std::size_t i = 0; i < reactions.size(); ++i) {
    if (reactions[i] == Reaction::kOk) continue;
    const std::size_t complete = shards_ + i / per_block;
    lost_rank_ = static_cast<std::uint32_t>(i % per_block / objects_per_rank());
    return finish(complete, is_absent(reactions[i]) ? End::kShardLost : End::kStoreError);
  }
  shards_ += asked;
  if (shards_ == candidates_) finish(shards_, manifest_end_);
}

void PrefixProbe::abandon() {
  if (end_ == End::kPending) finish(shards_, End::kStoreError);
}

}  // namespace kvc
