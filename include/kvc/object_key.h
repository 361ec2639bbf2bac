// Keys of the objects that make up one stored block (docs/format/key.md). Where blocks are stored
// whole:
//
//   kvc1/<keyspace, 32 hex>/<block, 64 hex>/r<rank>         shard of one rank
//   kvc1/<keyspace, 32 hex>/<block, 64 hex>/r<rank>/ready   that rank's shard is complete
//   kvc1/<keyspace, 32 hex>/<block, 64 hex>/manifest        all ranks' shards are complete
//
// Where every layer is an object of its own:
//
//   kvc1/<keyspace, 32 hex>/<block, 64 hex>/layers/r<rank>/<layer>  one layer of one rank
//   kvc1/<keyspace, 32 hex>/<block, 64 hex>/layers/r<rank>/ready    that rank's layers are complete
//   kvc1/<keyspace, 32 hex>/<block, 64 hex>/layers/manifest         all ranks' layers are complete
//
// No key of one form is a key of the other, so that a deployment that changes over never mixes
// them.
#pragma once

#include <cstdint>
#include <string>

#include "kvc/block_hash.h"
#include "kvc/identity.h"

namespace kvc {

/// What is stored as one object.
enum class Granularity {
  kBlock,  ///< A rank's page of a block.
  kLayer,  ///< One layer of it.
};

/// Formats keys of one keyspace and granularity. Immutable, safe to share between threads.
class ObjectKeys {
 public:
  explicit ObjectKeys(const Fingerprint& keyspace, Granularity granularity = Granularity::kBlock);

  /// The shard of a rank, whole. Of Granularity::kBlock.
  std::string shard(const BlockHash& block, std::uint32_t rank) const;
  /// `layer` is the layer's place in the page, from 0. Of Granularity::kLayer.
  std::string layer(const BlockHash& block, std::uint32_t rank, std::uint32_t layer) const;
  std::string ready(const BlockHash& block, std::uint32_t rank) const;
  std::string manifest(const BlockHash& block) const;

  const Fingerprint& keyspace() const { return keyspace_; }
  Granularity granularity() const { return granularity_; }

 private:
  Fingerprint keyspace_;
  Granularity granularity_;
  std::string prefix_;  // "kvc1/<keyspace>/"
};

}  // namespace kvc
