// Drives BlockCommit over the simulated store for a batch of blocks of one rank, one call a step,
// as the connector's CommitBatch does over a real one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "kvc/commit.h"
#include "testing/sim/site.h"

namespace kvc::sim {

/// A page of a sealed object, and whatever keeps it from being used again.
struct HeldPage {
  std::span<std::byte> bytes;
  BufferHold hold;
};

/// Objects that their rank found broken and could not remove at once.
using BrokenKeys = std::set<std::string>;

class ShardWriter : public std::enable_shared_from_this<ShardWriter> {
 public:
  struct Item {
    NamedBlock block;
    std::vector<HeldPage> parts;  ///< Sealed.
  };
  struct Ending {
    std::uint32_t committed = 0;
    std::uint32_t waiting = 0;
    std::uint32_t failed = 0;
  };
  using Done = std::function<void(const Ending&)>;

  /// `process` and `broken` outlive the writer, unless the process crashes: then nothing of the
  /// writer goes on.
  ShardWriter(Site& site, Process& process, const RankShards& shards, BrokenKeys& broken,
              std::vector<Item> items);

  void start(Done done);

 private:
  enum class PartState : std::uint8_t { kToPut, kOurs, kUnsure, kIntact, kBad };
  struct Block {
    Item item;
    BlockCommit commit;
    std::vector<PartState> parts;
    std::uint64_t layers_since = UINT64_MAX;
    std::uint64_t quorum_since = UINT64_MAX;
    int actions = 0;
  };
  struct PartOf {
    std::size_t block = 0;
    std::uint32_t part = 0;
  };
  using Indices = std::vector<std::size_t>;
  using Parts = std::vector<PartOf>;

  void remove_broken();
  void next();
  void put_part(const Indices& blocks, std::uint32_t part, std::vector<PutResult> outcomes);
  void verify(const Indices& blocks);
  void verified(const Indices& blocks, const Parts& unsure, const std::vector<GetResult>& results,
                const std::vector<std::byte>& bytes);
  void remove_bad(const Indices& blocks);
  void probe_shard(const Indices& blocks);
  void put_markers(BlockCommit::Action action, const Indices& blocks);
  void probe_quorum(const Indices& blocks);
  void ended();

  Parts parts_in(PartState state, const Indices& blocks) const;
  std::vector<std::string> keys_of(const Parts& parts) const;
  std::string key_of(const PartOf& at) const {
    return shards_.key(blocks_[at.block].item.block.hash, at.part);
  }
  PartState& state_of(const PartOf& at) { return blocks_[at.block].parts[at.part]; }
  /// Continues in this life of the process, and keeps this object until then.
  template <typename F>
  auto then(F action);

  Site& site_;
  Process& process_;
  const RankShards& shards_;
  BrokenKeys& broken_;
  std::vector<Block> blocks_;
  Done done_;
};

}  // namespace kvc::sim
