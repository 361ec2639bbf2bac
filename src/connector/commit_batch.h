// Commits a batch of blocks of one rank: drives their commit machines in step, so that each action
// is one batched call for all blocks that ask for it (a put of shards: one for each part).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "connector/pipeline_parts.h"
#include "connector/staging.h"
#include "kvc/commit.h"
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
  enum class PartState {
    kToPut,
    kOurs,    // Stored by this rank, whole.
    kUnsure,  // There; whether it is whole has not been seen.
    kIntact,  // Read back and verified.
    kBad,
  };
  struct Block {
    SaveItem item;
    BlockCommit commit;
    std::vector<PartState> parts;
  };
  using Indices = std::vector<std::size_t>;
  struct PartOf {
    std::size_t block = 0;  // Its index.
    std::uint32_t part = 0;
  };
  using Parts = std::vector<PartOf>;

  void seal();
  void remove_broken();
  Indices next_blocks(BlockCommit::Action* action) const;
  void perform(BlockCommit::Action action, const Indices& blocks);
  Parts parts_in(PartState state, const Indices& blocks) const;
  std::string key_of(const PartOf& at) const;
  PartState& state_of(const PartOf& at) { return blocks_[at.block].parts[at.part]; }

  void put_shards(const Indices& blocks);
  void put_part(std::uint32_t part, const Indices& blocks, std::vector<PutResult>* outcomes);
  void verify_shards(const Indices& blocks);
  /// Of each part the reaction of the store; the states tell what was found.
  void verify_some(std::span<const PartOf> parts, std::vector<StagingLease> pages,
                   std::span<Reaction> reactions);
  void answer_verified(const Indices& blocks, const Parts& parts,
                       std::span<const Reaction> reactions);
  void remove_shards(const Indices& blocks);
  void probe_shards(const Indices& blocks);
  void put_markers(BlockCommit::Action action, const Indices& blocks);
  void probe_quorum(const Indices& blocks);
  std::vector<Reaction> remove(const Parts& parts);
  void note(const Block& block);

  const PipelineParts& parts_;
  const Pools& pools_;
  const Deadline deadline_;
  std::vector<Block> blocks_;
};

}  // namespace kvc
