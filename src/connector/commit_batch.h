// Commits a batch of blocks of one rank: drives their commit machines in step, so that each action
// is one batched call for all blocks that ask for it (a put of shards: one for each part).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "commit/commit_steps.h"
#include "connector/pipeline_parts.h"
#include "connector/staging.h"
#include "kvc/block_format.h"
#include "kvc/worker.h"

namespace kvc {

/// A snapshot of a page, waiting to be put.
struct SaveItem {
  BlockHash block;
  /// One for each part of the shard, its payload behind the room for the header.
  std::vector<StagingLease> pages;
  std::uint32_t replicas = 1;  ///< Copies wanted of what this rank puts of the block.
};

/// Every block of the batch is in exactly one of written, already_stored and failed.
struct CommitTotals {
  std::uint64_t written = 0;         ///< Shards that this rank put, be it one part of them.
  std::uint64_t already_stored = 0;  ///< Shards that were there before.
  std::uint64_t failed = 0;          ///< At whatever step, also after the shard was put.
  std::uint64_t committed = 0;       ///< Manifests published, or found so.
  bool backed_off = false;           ///< Some call was refused for lack of room.
  bool down = false;                 ///< Some call got no answer.
};

/// One use, one thread.
class CommitBatch {
 public:
  struct Pools {
    std::shared_ptr<StagingPool> checks;
    std::shared_ptr<StagingPool> markers;
  };

  /// Each page goes back as soon as it is no longer needed. `parts` and `pools` must outlive this.
  CommitBatch(const PipelineParts& parts, const Pools& pools, std::vector<SaveItem> items,
              Deadline deadline);

  /// Returns when every block is committed, waits for its peers, or failed. May throw; totals()
  /// then counts what had not ended as failed.
  void run();
  CommitTotals totals() const;

 private:
  using Action = CommitSteps::Action;
  using Part = CommitSteps::Part;
  using Parts = CommitSteps::Parts;

  void seal();
  void remove_broken();
  void perform();
  std::string key_of(const Part& at) const;
  std::vector<std::string> keys_of(std::span<const Part> parts) const;

  void put_shards();
  void put_part(std::uint32_t part, const CommitSteps::Indices& blocks);
  void verify_shards();
  void verify_some(std::span<const Part> parts, std::vector<StagingLease> pages);
  void probe_shards();
  void put_markers(ObjectKind kind);
  void probe_quorum();
  std::vector<Reaction> remove(const Parts& parts);
  std::vector<Reaction> exists(std::vector<std::string> keys);
  /// Remembers how a block ended.
  void note(std::size_t block);

  const PipelineParts& parts_;
  const Pools& pools_;
  const Deadline deadline_;
  std::vector<SaveItem> items_;
  CommitSteps steps_;  // Of items_, by index.
};

}  // namespace kvc
