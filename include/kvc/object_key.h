// Keys of the objects that make up one stored block (docs/format/key.md):
//
//   kvc1/<keyspace, 32 hex>/<block, 64 hex>/r<rank>         shard of one rank
//   kvc1/<keyspace, 32 hex>/<block, 64 hex>/r<rank>/ready   that rank's shard is complete
//   kvc1/<keyspace, 32 hex>/<block, 64 hex>/manifest        all ranks' shards are complete
#pragma once

#include <cstdint>
#include <string>

#include "kvc/block_hash.h"
#include "kvc/identity.h"

namespace kvc {

/// Formats keys of one keyspace. Immutable, safe to share between threads.
class ObjectKeys {
 public:
  explicit ObjectKeys(const Fingerprint& keyspace);

  std::string shard(const BlockHash& block, std::uint32_t rank) const;
  std::string ready(const BlockHash& block, std::uint32_t rank) const;
  std::string manifest(const BlockHash& block) const;

  const Fingerprint& keyspace() const { return keyspace_; }

 private:
  Fingerprint keyspace_;
  std::string prefix_;  // "kvc1/<keyspace>/"
};

}  // namespace kvc
