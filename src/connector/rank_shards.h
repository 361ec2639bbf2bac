// What one rank stores of a block: the key, and what its header must say.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "kvc/block_format.h"
#include "kvc/commit.h"
#include "kvc/object_key.h"

namespace kvc {

/// Immutable, safe to share between threads.
struct RankShards {
  ObjectKeys keys;
  CommitRole role;
  std::uint32_t tokens_per_block = 0;
  std::size_t page_bytes = 0;

  std::string key(const BlockHash& block) const { return keys.shard(block, role.rank); }
  std::size_t object_bytes() const { return kBlockHeaderBytes + page_bytes; }

  BlockDescription describe(ObjectKind kind, const BlockHash& block) const {
    return {.kind = kind,
            .layout = keys.keyspace(),
            .block = block,
            // A manifest speaks for all ranks, so that its bytes are the same whoever writes it.
            .rank = kind == ObjectKind::kManifest ? 0 : role.rank,
            .world_size = role.world_size,
            .token_count = tokens_per_block,
            .payload_bytes = kind == ObjectKind::kShard ? page_bytes : 0};
  }
};

}  // namespace kvc
