#include <cstddef>

#include "base/planted.h"
#include "kvc/commit.h"

namespace kvc {

void BlockCommit::fail(Reaction reaction) {
  action_ = Action::kDone;
  outcome_ = Outcome::kFailed;
  failure_ = reaction;
}

BlockCommit::Action BlockCommit::after_marker() const {
  return KVC_PLANTED("manifest_before_quorum") ? Action::kPutManifest : Action::kProbeQuorum;
}

void BlockCommit::on_put(PutResult result) {
  const bool written = result.effect == PutEffect::kStored || result.effect == PutEffect::kUnknown;
  switch (action_) {
    case Action::kPutShard:
      shard_written_ = shard_written_ || written;
      if (result.reaction != Reaction::kOk && KVC_PLANTED("ready_before_put") &&
          role_.needs_ready()) {
        action_ = Action::kPutReady;
        return;
      }
      if (result.reaction != Reaction::kOk) return fail(result.reaction);
      if (role_.atomic_publish) {
        action_ = role_.by_layer ? Action::kProbeShard : after_marker();
      } else if (result.effect == PutEffect::kStored || KVC_PLANTED("trust_existing_shard")) {
        action_ = Action::kPutReady;
      } else {
        // Somebody else's bytes, perhaps a part of them, may stand under the key.
        action_ = Action::kVerifyShard;
      }
      return;
    case Action::kPutReady:
      if (result.reaction != Reaction::kOk) return fail(result.reaction);
      action_ = after_marker();
      return;
    case Action::kPutManifest:
      if (result.reaction != Reaction::kOk) return fail(result.reaction);
      action_ = Action::kDone;
      outcome_ = Outcome::kCommitted;
      return;
    default:
      return fail(Reaction::kCallerBug);
  }
}

void BlockCommit::on_shard_probed(Reaction reaction) {
  if (action_ != Action::kProbeShard) return fail(Reaction::kCallerBug);
  if (reaction != Reaction::kOk && !KVC_PLANTED("ready_without_layers")) return fail(reaction);
  action_ = Action::kPutReady;
}

void BlockCommit::on_verified(Reaction reaction, bool intact) {
  if (action_ != Action::kVerifyShard) return fail(Reaction::kCallerBug);
  const bool absent = reaction == Reaction::kMiss;
  const bool bad = reaction == Reaction::kStale || (reaction == Reaction::kOk && !intact);
  if (reaction == Reaction::kOk && intact) {
    action_ = Action::kPutReady;
  } else if (!absent && !bad) {
    fail(reaction);
  } else if (replaced_) {
    // Once is enough: whoever keeps writing under this key has to finish alone.
    fail(absent ? Reaction::kMiss : Reaction::kStale);
  } else if (absent) {
    replaced_ = true;
    action_ = Action::kPutShard;
  } else {
    action_ = Action::kRemoveShard;
  }
}

void BlockCommit::on_removed(Reaction reaction) {
  if (action_ != Action::kRemoveShard) return fail(Reaction::kCallerBug);
  if (reaction != Reaction::kOk && reaction != Reaction::kMiss) return fail(reaction);
  replaced_ = true;
  action_ = Action::kPutShard;
}

void BlockCommit::on_quorum(std::span<const Reaction> reactions) {
  if (action_ != Action::kProbeQuorum) return fail(Reaction::kCallerBug);
  if (reactions.size() != role_.world_size || role_.rank >= role_.world_size) {
    return fail(Reaction::kDown);
  }
  std::size_t present = 0;
  for (const Reaction reaction : reactions) {
    if (reaction == Reaction::kOk) {
      ++present;
    } else if (reaction != Reaction::kMiss && reaction != Reaction::kStale) {
      return fail(reaction);
    }
  }
  // "Put returned ok" was no proof: the own marker may be another writer's that never finishes.
  if (reactions[role_.rank] != Reaction::kOk) return fail(Reaction::kMiss);
  const std::size_t wanted = reactions.size() - (KVC_PLANTED("quorum_minus_one") ? 1 : 0);
  if (present >= wanted || KVC_PLANTED("ignore_quorum")) {
    action_ = Action::kPutManifest;
  } else {
    action_ = Action::kDone;
    outcome_ = Outcome::kWaitingForPeers;
  }
}

std::vector<std::string> quorum_keys(const ObjectKeys& keys, const BlockHash& block,
                                     const CommitRole& role) {
  std::vector<std::string> wanted;
  wanted.reserve(role.world_size);
  for (std::uint32_t rank = 0; rank < role.world_size; ++rank) {
    wanted.push_back(role.needs_ready() ? keys.ready(block, rank) : keys.shard(block, rank));
  }
  return wanted;
}

}  // namespace kvc
