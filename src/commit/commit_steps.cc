#include "commit/commit_steps.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/planted.h"

namespace kvc {
namespace {

bool stored_nothing(const PutResult& result) {
  return result.effect == PutEffect::kExisted || result.effect == PutEffect::kNone;
}

/// What the puts of several parts amount to: see BlockCommit::on_put().
PutResult both(const PutResult& a, const PutResult& b) {
  PutResult all{a.reaction == Reaction::kOk ? b.reaction : a.reaction, a.effect};
  const bool nothing = stored_nothing(a) && stored_nothing(b);
  if (a.effect != b.effect) all.effect = nothing ? PutEffect::kExisted : PutEffect::kUnknown;
  return all;
}

}  // namespace

CommitSteps::CommitSteps(const CommitRole& role, std::size_t blocks, std::uint32_t parts)
    : ranks_(role.world_size),
      blocks_(blocks, Block{.commit = BlockCommit(role),
                            .parts = std::vector<PartState>(parts, PartState::kToPut)}) {
  choose();
}

void CommitSteps::choose() {
  action_ = Action::kDone;
  ready_.clear();
  for (const Block& block : blocks_) action_ = std::min(action_, block.commit.next());
  if (action_ == Action::kDone) return;
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    if (blocks_[i].commit.next() == action_) ready_.push_back(i);
  }
}

CommitSteps::Parts CommitSteps::parts() const {
  const auto wanted = [this](PartState state) {
    switch (action_) {
      case Action::kPutShard:
        return state == PartState::kToPut;
      case Action::kVerifyShard:
        return state == PartState::kUnsure;
      case Action::kRemoveShard:
        return state == PartState::kBad;
      default:
        return action_ == Action::kProbeShard;
    }
  };
  Parts found;
  for (const std::size_t i : ready_) {
    for (std::uint32_t part = 0; part < blocks_[i].parts.size(); ++part) {
      if (wanted(blocks_[i].parts[part])) found.push_back({i, part});
    }
  }
  return found;
}

CommitSteps::Indices CommitSteps::puts(std::uint32_t part) const {
  Indices wanted;
  for (const std::size_t i : ready_) {
    const bool goes_on = blocks_[i].put_outcome.reaction == Reaction::kOk;
    if (goes_on && blocks_[i].parts[part] == PartState::kToPut) wanted.push_back(i);
  }
  return wanted;
}

void CommitSteps::on_put(std::uint32_t part, std::vector<PutResult> results) {
  const Indices wanted = puts(part);
  results = checked(std::move(results), wanted.size());
  for (std::size_t n = 0; n < wanted.size(); ++n) blocks_[wanted[n]].on_part_put(part, results[n]);
}

void CommitSteps::Block::on_part_put(std::uint32_t part, const PutResult& result) {
  parts[part] = result.effect == PutEffect::kStored ? PartState::kOurs : PartState::kUnsure;
  put_outcome = put_outcome.effect == PutEffect::kNone ? result : both(put_outcome, result);
}

void CommitSteps::on_read(const Part& at, const GetResult& result, bool intact) {
  Block& block = blocks_[at.block];
  PartState& state = block.parts[at.part];
  switch (result.reaction) {
    case Reaction::kOk:
      state = intact ? PartState::kIntact : PartState::kBad;
      return;
    case Reaction::kStale:
    case Reaction::kCallerBug:  // Too large for the buffer: found, and not what it should be.
      state = PartState::kBad;
      return;
    case Reaction::kMiss:
      state = PartState::kToPut;
      return;
    case Reaction::kBackOff:
    case Reaction::kDown:
      block.failure = result.reaction;
      return;
  }
}

void CommitSteps::on_removed(std::vector<Reaction> reactions) {
  const Parts bad = parts();
  reactions = checked(std::move(reactions), bad.size());
  for (std::size_t n = 0; n < bad.size(); ++n) {
    Block& block = blocks_[bad[n].block];
    if (is_gone(reactions[n])) {
      block.parts[bad[n].part] = PartState::kToPut;
    } else {
      block.failure = reactions[n];
    }
  }
}

void CommitSteps::on_probed(std::vector<Reaction> reactions) {
  const Parts all = parts();
  reactions = checked(std::move(reactions), all.size());
  for (std::size_t n = 0; n < all.size(); ++n) {
    if (reactions[n] != Reaction::kOk) blocks_[all[n].block].failure = reactions[n];
  }
}

void CommitSteps::on_markers_put(std::vector<PutResult> results) {
  results = checked(std::move(results), ready_.size());
  for (std::size_t n = 0; n < ready_.size(); ++n) blocks_[ready_[n]].commit.on_put(results[n]);
}

void CommitSteps::on_quorum(std::vector<Reaction> reactions) {
  reactions = checked(std::move(reactions), ready_.size() * ranks_);
  for (std::size_t n = 0; n < ready_.size(); ++n) {
    blocks_[ready_[n]].commit.on_quorum(std::span(reactions).subspan(n * ranks_, ranks_));
  }
}

void CommitSteps::end_step() {
  for (const std::size_t i : ready_) {
    Block& block = blocks_[i];
    switch (action_) {
      case Action::kPutShard:
        block.commit.on_put(std::exchange(block.put_outcome, kNothingPut));
        break;
      case Action::kVerifyShard:
        block.end_verification();
        break;
      case Action::kRemoveShard:
        block.commit.on_removed(std::exchange(block.failure, Reaction::kOk));
        break;
      case Action::kProbeShard:
        block.commit.on_shard_probed(std::exchange(block.failure, Reaction::kOk));
        break;
      case Action::kPutReady:
      case Action::kProbeQuorum:
      case Action::kPutManifest:
      case Action::kDone:
        break;  // Told when it was answered.
    }
  }
  choose();
}

bool CommitSteps::Block::any(PartState state) const {
  return std::ranges::find(parts, state) != parts.end();
}

/// A part that could not be looked at decides before one that is bad, and that before one that is
/// absent.
void CommitSteps::Block::end_verification() {
  if (failure != Reaction::kOk) {
    commit.on_verified(std::exchange(failure, Reaction::kOk), false);
  } else if (any(PartState::kBad) && !KVC_PLANTED("overlook_bad_part")) {
    commit.on_verified(Reaction::kOk, false);
  } else if (any(PartState::kToPut)) {
    commit.on_verified(Reaction::kMiss, false);
  } else {
    commit.on_verified(Reaction::kOk, true);
  }
}

}  // namespace kvc
