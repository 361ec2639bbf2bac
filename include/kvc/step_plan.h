// What the scheduler tells every worker about one step: which pages to load before the forward
// pass and which to save after it. It crosses process boundaries as bytes.
//
// The plan names blocks by hash and carries the keyspace, so that a worker of another keyspace
// refuses it instead of exchanging wrong bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvc/block_hash.h"
#include "kvc/identity.h"
#include "kvc/layout.h"
#include "kvc/result.h"
#include "kvc/stage.h"

namespace kvc {

using RequestId = std::uint64_t;

/// A page of a request and the block that it holds, or shall hold.
struct PageTask {
  RequestId request = 0;
  BlockHash block;
  SlotIndex slot = -1;
  /// Of a save: the store has lost the block, or never had it, whatever was seen there before.
  bool absent = false;

  friend bool operator==(const PageTask&, const PageTask&) = default;
};

/// A block that is asked for so often that it is to have several copies in the store.
struct HotBlock {
  BlockHash block;
  std::uint32_t replicas = 2;  ///< Wanted: 2 to kReplicasMax.

  friend bool operator==(const HotBlock&, const HotBlock&) = default;
};

struct StepPlan {
  Fingerprint keyspace{};
  /// Every load is of a request whose prompt this step's pass works on, so that the pass is none
  /// that an engine replays from a graph of decoding steps.
  bool loads_in_batch = false;
  /// Promised loads could not be planned; which ones is not known. The step must fail.
  bool loads_lost = false;
  std::vector<PageTask> loads;             ///< Promised: must be in place before the forward pass.
  std::vector<PageTask> saves;             ///< Complete and computed once the forward pass is over.
  std::vector<HotBlock> hot = {};          ///< Of these blocks, those that are to get more copies.
  std::vector<HoldRelease> released = {};  ///< Staged blocks that no load will need.
  /// Holds of `loads`: they end once those are in place, and not before.
  std::vector<HoldId> done_holds = {};
  /// In some plans: what a rank keeps, which may have missed any number of plans and messages.
  LiveHolds live_holds = {};
  /// How a rank reaches the leader; empty once all have. Meaningful to the channel alone.
  std::string rendezvous = {};

  bool empty() const {
    return loads.empty() && saves.empty() && !loads_lost && released.empty() &&
           done_holds.empty() && live_holds.newest == 0 && rendezvous.empty();
  }

  friend bool operator==(const StepPlan&, const StepPlan&) = default;
};

/// Encoding of one build for one build: not stored, versioned to refuse a mixed deployment.
std::string encode_step_plan(const StepPlan& plan);
/// kInvalid for bytes that encode_step_plan() of this version did not write; they carry a checksum.
Result<StepPlan> decode_step_plan(std::span<const std::byte> bytes);

}  // namespace kvc
