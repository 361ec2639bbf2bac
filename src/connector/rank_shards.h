// What one rank stores of a block: the keys, and what their headers must say.
//
// A shard is one object, or one for each layer of the page. Its objects are counted as *parts*: a
// shard that is stored whole has one part, which is the page.
//
// Where all ranks have the same pages, a block has one shard, and `role` is that of a single rank.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "kvc/block_format.h"
#include "kvc/commit.h"
#include "kvc/object_key.h"
#include "kvc/store.h"

namespace kvc {

/// Immutable, safe to share between threads.
struct RankShards {
  ObjectKeys keys;
  CommitRole role;
  std::uint32_t tokens_per_block = 0;
  std::size_t page_bytes = 0;
  std::uint32_t layers = 0;   ///< 0: shards are stored whole.
  std::uint32_t writers = 1;  ///< Ranks that share the storing of a shard; each block has one.
  std::uint32_t writer = 0;   ///< This one of them.

  std::uint32_t parts() const { return std::max(layers, 1u); }
  std::size_t part_bytes() const { return page_bytes / parts(); }
  /// Of one part with its header.
  std::size_t object_bytes() const { return kBlockHeaderBytes + part_bytes(); }

  /// Whether it falls to this rank to store its shard of a block, and to get it more copies. All
  /// ranks agree, and names spread the blocks evenly over them.
  bool stores(const BlockHash& block) const {
    return std::to_integer<std::uint32_t>(block.bytes.back()) % writers == writer;
  }

  std::string key(const BlockHash& block, std::uint32_t part) const {
    return layers == 0 ? keys.shard(block, role.rank) : keys.layer(block, role.rank, part);
  }

  BlockDescription describe_part(const BlockHash& block, std::uint32_t part) const {
    BlockDescription description =
        describe(layers == 0 ? ObjectKind::kShard : ObjectKind::kLayer, block);
    description.layer = part;
    description.payload_bytes = part_bytes();
    return description;
  }
  /// Whether a get of a part brought it whole. `object` is all that it may fill.
  bool intact(const BlockHash& block, std::uint32_t part, const GetResult& got,
              std::span<const std::byte> object) const {
    return got.reaction == Reaction::kOk && got.bytes == object.size() &&
           verify_block(describe_part(block, part), object) == Rejection::kNone;
  }

  /// Of a READY marker or a manifest.
  std::string marker_key(ObjectKind kind, const BlockHash& block) const {
    return kind == ObjectKind::kReady ? keys.ready(block, role.rank) : keys.manifest(block);
  }
  /// The same.
  BlockDescription describe_marker(ObjectKind kind, const BlockHash& block) const {
    BlockDescription description = describe(kind, block);
    // A manifest speaks for all ranks, so that its bytes are the same whoever writes it.
    if (kind == ObjectKind::kManifest) description.rank = 0;
    return description;
  }

 private:
  BlockDescription describe(ObjectKind kind, const BlockHash& block) const {
    return {.kind = kind,
            .layout = keys.keyspace(),
            .block = block,
            .rank = role.rank,
            .world_size = role.world_size,
            .token_count = tokens_per_block,
            .layer = 0,
            .payload_bytes = 0};
  }
};

}  // namespace kvc
