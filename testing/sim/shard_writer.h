// Drives the steps of a batch's commits over the simulated store, one call at a time, as the
// connector's CommitBatch does over a real one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "commit/commit_steps.h"
#include "kvc/block_format.h"
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
  using Action = CommitSteps::Action;
  using Part = CommitSteps::Part;
  struct Block {
    Item item;
    std::uint64_t layers_since = UINT64_MAX;
    std::uint64_t quorum_since = UINT64_MAX;
    int actions = 0;
  };

  void remove_broken();
  void next();
  void end_step();
  void put_part(std::uint32_t part);
  void verify();
  void end_verification();
  void remove_bad();
  void probe_shard();
  void put_markers(ObjectKind kind);
  void probe_quorum();
  void ended();

  std::string key_of(const Part& at) const {
    return shards_.key(blocks_[at.block].item.block.hash, at.part);
  }
  std::vector<std::string> keys_of(const CommitSteps::Parts& parts) const;
  /// Continues in this life of the process, and keeps this object until then.
  template <typename F>
  auto then(F action);

  Site& site_;
  Process& process_;
  const RankShards& shards_;
  BrokenKeys& broken_;
  std::vector<Block> blocks_;
  CommitSteps steps_;  ///< Of blocks_, by index.
  Done done_;
};

}  // namespace kvc::sim
