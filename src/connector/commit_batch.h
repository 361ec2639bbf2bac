// Commits a batch of blocks of one rank: drives their commit machines in step, so that each action
// is one batched call for all blocks that ask for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "connector/load_pipeline.h"
#include "connector/staging.h"
#include "kvc/commit.h"
#include "kvc/worker.h"

namespace kvc {

/// A snapshot of a page, waiting to be put. The payload stands behind the room for the header.
struct SaveItem {
  BlockHash block;
  StagingLease page;
};

struct CommitTotals {
  std::uint64_t written = 0;         ///< Shards that this rank put.
  std::uint64_t already_stored = 0;  ///< Shards that were there before.
  std::uint64_t committed = 0;       ///< Manifests published, or found so.
  std::uint64_t failed = 0;
  bool backed_off = false;  ///< Some call was refused for lack of room.
  bool down = false;        ///< Some call got no answer.
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
  struct Block {
    SaveItem item;
    BlockCommit commit;
    bool put = false;  // The shard is there, by this rank's put or before it.
  };
  using Indices = std::vector<std::size_t>;

  void seal();
  void remove_broken();
  Indices next_blocks(BlockCommit::Action* action) const;
  void perform(BlockCommit::Action action, const Indices& blocks);
  void put_shards(const Indices& blocks);
  void verify_shards(const Indices& blocks);
  void verify_some(std::span<const std::size_t> blocks, std::vector<StagingLease> pages);
  void remove_shards(const Indices& blocks);
  void put_markers(BlockCommit::Action action, const Indices& blocks);
  void probe_quorum(const Indices& blocks);
  std::vector<Reaction> remove(const Indices& blocks);
  void note(const Block& block);

  const PipelineParts& parts_;
  const Pools& pools_;
  const Deadline deadline_;
  std::vector<Block> blocks_;
};

}  // namespace kvc
