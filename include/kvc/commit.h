// The commit protocol of a block, and its counterpart, the probe of a prefix: state machines
// without threads, clock or I/O. The driver asks for the next action, performs it on a store, and
// feeds the results back; production, tests and simulations drive the same machines.
//
// Writing, per rank and block:
//   1. put the rank's shard (put-if-absent). Failure publishes nothing.
//   2. where objects do not appear atomically: put the rank's READY marker. If the shard existed
//      before this rank's put, it is read and verified first, since another writer may have left a
//      part of it; a bad one is removed and put once more.
//   3. probe the markers of all ranks, the own included: the shards where a store publishes
//      atomically, else the READY markers. "Put returned ok" proves nothing.
//   4. all there: put the MANIFEST (put-if-absent, idempotent). Some missing: stop; the rank that
//      finishes last sees them all. Nobody polls.
//
// Where a shard is stored layer by layer it is whole once every layer is, so that it needs a READY
// marker on every store: after the last layer, and on a store that publishes atomically after one
// probe that has seen all of the rank's layers. A rank that failed on any layer puts no marker.
//
// Reading: manifests in growing chunks until the first miss, then the shards of that prefix on
// every rank (and their READY markers where objects do not appear atomically). A prefix ends at the
// first block that lacks a manifest or any rank's shard.
//
// Claims and their tests: docs/contract/commit.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvc/object_key.h"
#include "kvc/store.h"

namespace kvc {

struct CommitRole {
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  /// From StoreCapabilities::atomic_publish.
  bool atomic_publish = false;
  /// A shard is as many objects as the page has layers.
  bool by_layer = false;

  /// Whether a shard alone does not tell that it is complete.
  bool needs_ready() const { return by_layer || !atomic_publish; }
};

/// One rank's part in committing one block. Single-threaded. Always ends: at most kMaxActions
/// actions are asked for.
class BlockCommit {
 public:
  enum class Action {
    kPutShard,     ///< Put the sealed shard: of its objects all that are not known to be intact.
    kVerifyShard,  ///< Get back and verify of the own shard what this rank has not stored itself.
    kRemoveShard,  ///< Remove of the own shard what was found bad.
    kProbeShard,   ///< exists() on every object of the own shard.
    kPutReady,     ///< Put the READY marker.
    kProbeQuorum,  ///< exists() on quorum_keys().
    kPutManifest,  ///< Put the manifest.
    kDone,
  };
  enum class Outcome {
    kPending,
    kCommitted,        ///< The manifest is published, by this call or before it.
    kWaitingForPeers,  ///< The own part is done; a later rank publishes.
    kFailed,           ///< Nothing was published by this rank after the failure.
  };
  static constexpr int kMaxActions = 8;

  explicit BlockCommit(CommitRole role) : role_(role) {}

  Action next() const { return action_; }

  /// REQUIRES: next() is kPutShard, kPutReady or kPutManifest. Of a shard of several objects: kOk
  /// if every put was, kStored if every put stored, kUnknown if some may have.
  void on_put(PutResult result);
  /// REQUIRES: next() == kProbeShard. kOk if every object of the own shard is there.
  void on_shard_probed(Reaction reaction);
  /// REQUIRES: next() == kVerifyShard. `reaction` of the get; `intact` iff the bytes verified.
  void on_verified(Reaction reaction, bool intact);
  /// REQUIRES: next() == kRemoveShard.
  void on_removed(Reaction reaction);
  /// REQUIRES: next() == kProbeQuorum. One reaction per key of quorum_keys().
  void on_quorum(std::span<const Reaction> reactions);

  Outcome outcome() const { return outcome_; }
  /// True if this call's put may have written the shard (not merely found it).
  bool shard_written() const { return shard_written_; }
  /// The reaction that ended a failed commit; tells whether to back off.
  Reaction failure() const { return failure_; }

 private:
  void fail(Reaction reaction);
  Action after_marker() const;

  CommitRole role_;
  Action action_ = Action::kPutShard;
  Outcome outcome_ = Outcome::kPending;
  Reaction failure_ = Reaction::kOk;
  bool shard_written_ = false;
  bool replaced_ = false;
};

/// Keys whose presence makes the quorum of `block`, one per rank.
std::vector<std::string> quorum_keys(const ObjectKeys& keys, const BlockHash& block,
                                     const CommitRole& role);

struct ProbeOptions {
  std::uint32_t world_size = 1;
  bool atomic_publish = false;
  /// Objects of one rank's shard, if it is stored layer by layer. 0: it is stored whole.
  std::uint32_t layers = 0;
  std::size_t first_chunk_blocks = 32;
  std::size_t max_chunk_blocks = 512;
};

/// Finds how long a prefix of `blocks` is stored completely. Single-threaded.
class PrefixProbe {
 public:
  enum class End {
    kPending,
    kAll,         ///< Every block of the prefix is there.
    kNoManifest,  ///< Ended by a block that nobody has committed.
    kShardLost,   ///< Ended by a block whose manifest outlived a shard.
    kStoreError,  ///< Ended by an answer that was neither yes nor no.
  };

  /// `keys` and `blocks` must outlive the probe.
  PrefixProbe(const ProbeOptions& options, const ObjectKeys& keys,
              std::span<const BlockHash> blocks);

  /// The next batch to ask exists() for; empty once outcome() is known.
  std::vector<std::string> next_keys() const;
  /// One reaction per key of the last next_keys().
  void on_exists(std::span<const Reaction> reactions);
  /// The driver gave up (deadline): keeps what is already proven on every rank, which is nothing
  /// unless the shards were probed.
  void abandon();

  End end() const { return end_; }
  /// Leading blocks that are complete on every rank. Meaningful once end() != kPending.
  std::size_t available_blocks() const { return available_; }
  /// With kShardLost: the first rank whose shard is not there.
  std::uint32_t lost_rank() const { return lost_rank_; }

 private:
  enum class Phase { kManifests, kShards };
  void on_manifests(std::span<const Reaction> reactions);
  void on_shards(std::span<const Reaction> reactions);
  void begin_shards();
  std::size_t objects_per_rank() const;
  std::size_t shard_chunk() const;
  void finish(std::size_t available, End end);

  ProbeOptions options_;
  const ObjectKeys& keys_;
  std::span<const BlockHash> blocks_;
  Phase phase_ = Phase::kManifests;
  std::size_t manifests_ = 0;   // leading blocks known to have a manifest
  std::size_t candidates_ = 0;  // blocks whose shards are to be probed
  std::size_t shards_ = 0;      // leading blocks whose shards are known on every rank
  std::size_t chunk_ = 0;
  End manifest_end_ = End::kAll;
  End end_ = End::kPending;
  std::size_t available_ = 0;
  std::uint32_t lost_rank_ = 0;
};

}  // namespace kvc
