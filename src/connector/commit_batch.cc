#include "connector/commit_batch.h"

#include <algorithm>
#include <string>
#include <utility>

#include "connector/staging_plan.h"
#include "kvc/block_format.h"

namespace kvc {

using Action = BlockCommit::Action;

namespace {

/// Of one exists() call.
constexpr std::size_t kKeysPerProbe = 4096;

PutResult lost_put() { return {Reaction::kDown, PutEffect::kUnknown}; }

bool needs_pages(Action action) {
  return action == Action::kPutShard || action == Action::kVerifyShard ||
         action == Action::kRemoveShard;
}

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

/// The answers of a call, or as many `instead` if their number is wrong.
template <typename Answer>
std::vector<Answer> checked(std::vector<Answer> answers, std::size_t count, Answer instead) {
  if (answers.size() == count) return answers;
  return std::vector<Answer>(count, instead);
}

}  // namespace

CommitBatch::CommitBatch(const PipelineParts& parts, const Pools& pools,
                         std::vector<SaveItem> items, Deadline deadline)
    : parts_(parts), pools_(pools), deadline_(deadline) {
  blocks_.reserve(items.size());
  for (SaveItem& item : items) {
    const std::size_t count = item.pages.size();
    blocks_.push_back({std::move(item), BlockCommit(parts.shards.role),
                       std::vector<PartState>(count, PartState::kToPut)});
  }
}

void CommitBatch::run() {
  seal();
  remove_broken();
  // Every round ends at least one action of one block, and a block has at most kMaxActions.
  Action action = Action::kDone;
  for (Indices ready = next_blocks(&action); !ready.empty(); ready = next_blocks(&action)) {
    perform(action, ready);
    for (const std::size_t i : ready) {
      if (!needs_pages(blocks_[i].commit.next())) blocks_[i].item.pages.clear();
      if (blocks_[i].commit.next() == Action::kDone) note(blocks_[i]);
    }
  }
}

void CommitBatch::seal() {
  for (const Block& block : blocks_) {
    for (std::uint32_t part = 0; part < block.item.pages.size(); ++part) {
      seal_block(parts_.shards.describe_part(block.item.block, part),
                 block.item.pages[part]->bytes().first(parts_.shards.object_bytes()));
    }
  }
}

CommitBatch::Parts CommitBatch::parts_in(PartState state, const Indices& blocks) const {
  Parts found;
  for (const std::size_t i : blocks) {
    for (std::uint32_t part = 0; part < blocks_[i].parts.size(); ++part) {
      if (blocks_[i].parts[part] == state) found.push_back({i, part});
    }
  }
  return found;
}

std::string CommitBatch::key_of(const PartOf& at) const {
  return parts_.shards.key(blocks_[at.block].item.block, at.part);
}

/// The blocks whose next action comes first in the protocol: those that lag behind catch up, so
/// that all ask for the quorum, and for the manifest, in one call.
CommitBatch::Indices CommitBatch::next_blocks(Action* action) const {
  *action = Action::kDone;
  for (const Block& block : blocks_) *action = std::min(*action, block.commit.next());
  Indices ready;
  if (*action == Action::kDone) return ready;
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    if (blocks_[i].commit.next() == *action) ready.push_back(i);
  }
  return ready;
}

void CommitBatch::perform(Action action, const Indices& blocks) {
  switch (action) {
    case Action::kPutShard:
      return put_shards(blocks);
    case Action::kVerifyShard:
      return verify_shards(blocks);
    case Action::kRemoveShard:
      return remove_shards(blocks);
    case Action::kProbeShard:
      return probe_shards(blocks);
    case Action::kProbeQuorum:
      return probe_quorum(blocks);
    case Action::kPutReady:
    case Action::kPutManifest:
      return put_markers(action, blocks);
    case Action::kDone:
      return;
  }
}

/// One call for each part, so that calls are no larger than those of whole blocks.
void CommitBatch::put_shards(const Indices& blocks) {
  const PutResult nothing{Reaction::kOk, PutEffect::kNone};
  std::vector<PutResult> outcomes(blocks_.size(), nothing);
  for (std::uint32_t part = 0; part < parts_.shards.parts(); ++part) {
    Indices wanted;
    for (const std::size_t i : blocks) {
      const bool goes_on = outcomes[i].reaction == Reaction::kOk;
      if (goes_on && blocks_[i].parts[part] == PartState::kToPut) wanted.push_back(i);
    }
    if (!wanted.empty()) put_part(part, wanted, &outcomes);
  }
  for (const std::size_t i : blocks) blocks_[i].commit.on_put(outcomes[i]);
}

void CommitBatch::put_part(std::uint32_t part, const Indices& blocks,
                           std::vector<PutResult>* outcomes) {
  std::vector<PutItem> items;
  std::vector<StagingLease> pages;
  items.reserve(blocks.size());
  pages.reserve(blocks.size());
  for (const std::size_t i : blocks) {
    const StagingLease& page = blocks_[i].item.pages[part];
    items.push_back({key_of({i, part}), page->bytes().data(), parts_.shards.object_bytes(),
                     blocks_[i].item.replicas});
    pages.push_back(page);
  }
  const Instant begin = parts_.worker.clock->now();
  const std::vector<PutResult> results =
      checked(parts_.worker.store->put(
                  std::move(items), {.deadline = deadline_, .hold = hold_pages(std::move(pages))}),
              blocks.size(), lost_put());
  const Duration took = parts_.worker.clock->now() - begin;
  parts_.counters->update([took](WorkerStats& stats) { stats.put_latency.add(took); });
  for (std::size_t n = 0; n < blocks.size(); ++n) {
    const std::size_t i = blocks[n];
    const bool ours = results[n].effect == PutEffect::kStored;
    state_of({i, part}) = ours ? PartState::kOurs : PartState::kUnsure;
    PutResult& outcome = (*outcomes)[i];
    outcome = outcome.effect == PutEffect::kNone ? results[n] : both(outcome, results[n]);
  }
}

void CommitBatch::verify_shards(const Indices& blocks) {
  const Parts unsure = parts_in(PartState::kUnsure, blocks);
  std::vector<Reaction> reactions(unsure.size(), Reaction::kDown);
  std::span<const PartOf> rest(unsure);
  const std::size_t at_a_time = std::max<std::size_t>(pools_.checks->capacity() / kSaveTasks, 1);
  while (!rest.empty()) {
    std::vector<StagingLease> pages;
    while (pages.size() < std::min(at_a_time, rest.size())) {
      StagingLease page = pools_.checks->borrow(StagingPool::Use::kSave);
      if (page == nullptr) break;
      pages.push_back(std::move(page));
    }
    if (pages.empty()) break;  // All in quarantine, so the store hangs.
    const std::size_t count = pages.size();
    verify_some(rest.first(count), std::move(pages),
                std::span(reactions).subspan(unsure.size() - rest.size(), count));
    rest = rest.subspan(count);
  }
  answer_verified(blocks, unsure, reactions);
}

void CommitBatch::verify_some(std::span<const PartOf> parts, std::vector<StagingLease> pages,
                              std::span<Reaction> reactions) {
  const std::size_t object_bytes = parts_.shards.object_bytes();
  std::vector<GetItem> items;
  items.reserve(parts.size());
  for (std::size_t n = 0; n < parts.size(); ++n) {
    items.push_back({key_of(parts[n]), pages[n]->bytes().data(), object_bytes});
  }
  const std::vector<GetResult> results =
      checked(parts_.worker.store->get(std::move(items),
                                       {.deadline = deadline_, .hold = hold_pages(pages)}),
              parts.size(), GetResult{});
  for (std::size_t n = 0; n < parts.size(); ++n) {
    const BlockHash& block = blocks_[parts[n].block].item.block;
    const bool intact = results[n].reaction == Reaction::kOk && results[n].bytes == object_bytes &&
                        verify_block(parts_.shards.describe_part(block, parts[n].part),
                                     pages[n]->bytes().first(object_bytes)) == Rejection::kNone;
    // An object that is too large for the buffer was found, and is not what it should be.
    const bool too_large = results[n].reaction == Reaction::kCallerBug;
    reactions[n] = too_large ? Reaction::kOk : results[n].reaction;
    if (intact) {
      state_of(parts[n]) = PartState::kIntact;
    } else if (reactions[n] == Reaction::kMiss) {
      state_of(parts[n]) = PartState::kToPut;
    } else if (reactions[n] == Reaction::kOk || reactions[n] == Reaction::kStale) {
      state_of(parts[n]) = PartState::kBad;
    }
  }
}

/// One answer for each block: a part that could not be looked at decides before one that is bad,
/// and that before one that is absent.
void CommitBatch::answer_verified(const Indices& blocks, const Parts& parts,
                                  std::span<const Reaction> reactions) {
  std::vector<Reaction> failures(blocks_.size(), Reaction::kOk);
  for (std::size_t n = 0; n < parts.size(); ++n) {
    if (state_of(parts[n]) == PartState::kUnsure) failures[parts[n].block] = reactions[n];
  }
  for (const std::size_t i : blocks) {
    BlockCommit& commit = blocks_[i].commit;
    const auto any = [&](PartState state) {
      return std::ranges::find(blocks_[i].parts, state) != blocks_[i].parts.end();
    };
    if (failures[i] != Reaction::kOk) {
      commit.on_verified(failures[i], false);
    } else if (any(PartState::kBad)) {
      commit.on_verified(Reaction::kOk, false);
    } else if (any(PartState::kToPut)) {
      commit.on_verified(Reaction::kMiss, false);
    } else {
      commit.on_verified(Reaction::kOk, true);
    }
  }
}

std::vector<Reaction> CommitBatch::remove(const Parts& parts) {
  std::vector<std::string> keys;
  keys.reserve(parts.size());
  for (const PartOf& at : parts) keys.push_back(key_of(at));
  return checked(
      parts_.worker.store->remove(std::move(keys), {.deadline = deadline_, .hold = nullptr}),
      parts.size(), Reaction::kDown);
}

void CommitBatch::remove_shards(const Indices& blocks) {
  const Parts bad = parts_in(PartState::kBad, blocks);
  const std::vector<Reaction> reactions = remove(bad);
  std::vector<Reaction> answers(blocks_.size(), Reaction::kOk);
  for (std::size_t n = 0; n < bad.size(); ++n) {
    if (reactions[n] == Reaction::kOk || reactions[n] == Reaction::kMiss) {
      state_of(bad[n]) = PartState::kToPut;
    } else {
      answers[bad[n].block] = reactions[n];
    }
  }
  for (const std::size_t i : blocks) blocks_[i].commit.on_removed(answers[i]);
}

/// Objects that were found broken must not be taken for stored. One that cannot be removed stays
/// remembered; put-if-absent then changes nothing.
void CommitBatch::remove_broken() {
  if (parts_.broken->empty()) return;
  Parts broken;
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    for (std::uint32_t part = 0; part < parts_.shards.parts(); ++part) {
      if (parts_.broken->contains(key_of({i, part}))) broken.push_back({i, part});
    }
  }
  if (broken.empty()) return;
  const std::vector<Reaction> reactions = remove(broken);
  for (std::size_t n = 0; n < broken.size(); ++n) {
    const bool gone = reactions[n] == Reaction::kOk || reactions[n] == Reaction::kMiss;
    if (gone) parts_.broken->remove(key_of(broken[n]));
  }
}

void CommitBatch::probe_shards(const Indices& blocks) {
  const std::size_t parts = parts_.shards.parts();
  std::vector<Reaction> answers(blocks_.size(), Reaction::kOk);
  const std::size_t at_a_time = std::max<std::size_t>(kKeysPerProbe / parts, 1);
  for (std::size_t first = 0; first < blocks.size(); first += at_a_time) {
    const std::size_t end = std::min(first + at_a_time, blocks.size());
    std::vector<std::string> keys;
    keys.reserve((end - first) * parts);
    for (std::size_t n = first; n < end; ++n) {
      for (std::uint32_t part = 0; part < parts; ++part) keys.push_back(key_of({blocks[n], part}));
    }
    const std::size_t count = keys.size();
    const std::vector<Reaction> reactions = checked(
        parts_.worker.store->exists(std::move(keys), {.deadline = deadline_, .hold = nullptr}),
        count, Reaction::kDown);
    for (std::size_t k = 0; k < count; ++k) {
      if (reactions[k] != Reaction::kOk) answers[blocks[first + k / parts]] = reactions[k];
    }
  }
  for (const std::size_t i : blocks) blocks_[i].commit.on_shard_probed(answers[i]);
}

void CommitBatch::put_markers(Action action, const Indices& blocks) {
  const bool ready = action == Action::kPutReady;
  std::vector<PutItem> items;
  std::vector<StagingLease> pages;
  items.reserve(blocks.size());
  pages.reserve(blocks.size());
  for (const std::size_t i : blocks) {
    StagingLease page = pools_.markers->borrow(StagingPool::Use::kSave);
    if (page == nullptr) break;
    const BlockHash& hash = blocks_[i].item.block;
    seal_block(
        parts_.shards.describe_marker(ready ? ObjectKind::kReady : ObjectKind::kManifest, hash),
        page->bytes());
    items.push_back({ready ? parts_.shards.keys.ready(hash, parts_.shards.role.rank)
                           : parts_.shards.keys.manifest(hash),
                     page->bytes().data(), page->bytes().size(), blocks_[i].item.replicas});
    pages.push_back(std::move(page));
  }
  const std::size_t count = items.size();
  std::vector<PutResult> results;
  if (count > 0) {
    results = checked(
        parts_.worker.store->put(std::move(items),
                                 {.deadline = deadline_, .hold = hold_pages(std::move(pages))}),
        count, lost_put());
  }
  // Without a page the marker was not put: the store still holds them all for earlier calls.
  results.resize(blocks.size(), {Reaction::kDown, PutEffect::kNone});
  for (std::size_t n = 0; n < blocks.size(); ++n) blocks_[blocks[n]].commit.on_put(results[n]);
}

void CommitBatch::probe_quorum(const Indices& blocks) {
  const CommitRole& role = parts_.shards.role;
  std::vector<std::string> keys;
  keys.reserve(blocks.size() * role.world_size);
  for (const std::size_t i : blocks) {
    for (std::string& key : quorum_keys(parts_.shards.keys, blocks_[i].item.block, role)) {
      keys.push_back(std::move(key));
    }
  }
  const std::size_t count = keys.size();
  const std::vector<Reaction> reactions = checked(
      parts_.worker.store->exists(std::move(keys), {.deadline = deadline_, .hold = nullptr}), count,
      Reaction::kDown);
  for (std::size_t n = 0; n < blocks.size(); ++n) {
    blocks_[blocks[n]].commit.on_quorum(
        std::span(reactions).subspan(n * role.world_size, role.world_size));
  }
}

/// Remembers how a block ended.
void CommitBatch::note(const Block& block) {
  const BlockCommit& commit = block.commit;
  if (commit.outcome() != BlockCommit::Outcome::kFailed) {
    parts_.recent->saw(block.item.block);  // The quorum probe has seen the shard.
    return;
  }
  parts_.recent->forget(block.item.block);
  if (commit.failure() == Reaction::kDown) parts_.recent->clear();
}

CommitTotals CommitBatch::totals() const {
  CommitTotals totals;
  for (const Block& block : blocks_) {
    const BlockCommit& commit = block.commit;
    const BlockCommit::Outcome outcome = commit.outcome();
    if (outcome == BlockCommit::Outcome::kCommitted) ++totals.committed;
    if (outcome == BlockCommit::Outcome::kCommitted ||
        outcome == BlockCommit::Outcome::kWaitingForPeers) {
      ++(commit.shard_written() ? totals.written : totals.already_stored);
      continue;
    }
    ++totals.failed;  // Also where the shard was put: it is gone again, or nobody will find it.
    if (outcome != BlockCommit::Outcome::kFailed) continue;
    totals.backed_off = totals.backed_off || commit.failure() == Reaction::kBackOff;
    totals.down = totals.down || commit.failure() == Reaction::kDown;
  }
  return totals;
}

}  // namespace kvc
