#include "connector/commit_batch.h"

#include <algorithm>
#include <string>
#include <utility>

#include "connector/staging_plan.h"
#include "kvc/block_format.h"

namespace kvc {

using Action = BlockCommit::Action;

namespace {

PutResult lost_put() { return {Reaction::kDown, PutEffect::kUnknown}; }

bool needs_page(Action action) {
  return action == Action::kPutShard || action == Action::kVerifyShard ||
         action == Action::kRemoveShard;
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
    blocks_.push_back({std::move(item), BlockCommit(parts.shards.role)});
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
      if (!needs_page(blocks_[i].commit.next())) blocks_[i].item.page.reset();
      if (blocks_[i].commit.next() == Action::kDone) note(blocks_[i]);
    }
  }
}

void CommitBatch::seal() {
  for (const Block& block : blocks_) {
    seal_block(parts_.shards.describe(ObjectKind::kShard, block.item.block),
               block.item.page->bytes().first(parts_.shards.object_bytes()));
  }
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
    case Action::kProbeQuorum:
      return probe_quorum(blocks);
    case Action::kPutReady:
    case Action::kPutManifest:
      return put_markers(action, blocks);
    case Action::kDone:
      return;
  }
}

void CommitBatch::put_shards(const Indices& blocks) {
  std::vector<PutItem> items;
  std::vector<StagingLease> pages;
  items.reserve(blocks.size());
  pages.reserve(blocks.size());
  for (const std::size_t i : blocks) {
    const SaveItem& item = blocks_[i].item;
    items.push_back({parts_.shards.key(item.block), item.page->bytes().data(),
                     parts_.shards.object_bytes(), parts_.hot->replicas(item.block)});
    pages.push_back(item.page);
  }
  const Instant begin = parts_.worker.clock->now();
  const std::vector<PutResult> results =
      checked(parts_.worker.store->put(
                  std::move(items), {.deadline = deadline_, .hold = hold_pages(std::move(pages))}),
              blocks.size(), lost_put());
  const Duration took = parts_.worker.clock->now() - begin;
  parts_.counters->update([took](WorkerStats& stats) { stats.put_latency.add(took); });
  for (std::size_t n = 0; n < blocks.size(); ++n) {
    Block& block = blocks_[blocks[n]];
    block.commit.on_put(results[n]);
    block.put = results[n].reaction == Reaction::kOk;
  }
}

void CommitBatch::verify_shards(const Indices& blocks) {
  std::span<const std::size_t> rest(blocks);
  const std::size_t at_a_time = std::max<std::size_t>(pools_.checks->capacity() / kSaveTasks, 1);
  while (!rest.empty()) {
    std::vector<StagingLease> pages;
    while (pages.size() < std::min(at_a_time, rest.size())) {
      StagingLease page = pools_.checks->borrow(StagingPool::Use::kSave);
      if (page == nullptr) break;
      pages.push_back(std::move(page));
    }
    if (pages.empty()) {  // All in quarantine, so the store hangs.
      for (const std::size_t i : rest) blocks_[i].commit.on_verified(Reaction::kDown, false);
      return;
    }
    const std::size_t count = pages.size();
    verify_some(rest.first(count), std::move(pages));
    rest = rest.subspan(count);
  }
}

void CommitBatch::verify_some(std::span<const std::size_t> blocks,
                              std::vector<StagingLease> pages) {
  std::vector<GetItem> items;
  items.reserve(blocks.size());
  for (std::size_t n = 0; n < blocks.size(); ++n) {
    items.push_back({parts_.shards.key(blocks_[blocks[n]].item.block), pages[n]->bytes().data(),
                     parts_.shards.object_bytes()});
  }
  const std::vector<GetResult> results =
      checked(parts_.worker.store->get(std::move(items),
                                       {.deadline = deadline_, .hold = hold_pages(pages)}),
              blocks.size(), GetResult{});
  for (std::size_t n = 0; n < blocks.size(); ++n) {
    Block& block = blocks_[blocks[n]];
    const bool fits = results[n].bytes == parts_.shards.object_bytes();
    const bool intact = results[n].reaction == Reaction::kOk && fits &&
                        verify_block(parts_.shards.describe(ObjectKind::kShard, block.item.block),
                                     pages[n]->bytes().first(results[n].bytes)) == Rejection::kNone;
    // An object that is too large for the buffer was found, and is not what it should be.
    const bool too_large = results[n].reaction == Reaction::kCallerBug;
    block.commit.on_verified(too_large ? Reaction::kOk : results[n].reaction, intact);
  }
}

std::vector<Reaction> CommitBatch::remove(const Indices& blocks) {
  std::vector<std::string> keys;
  keys.reserve(blocks.size());
  for (const std::size_t i : blocks) keys.push_back(parts_.shards.key(blocks_[i].item.block));
  return checked(
      parts_.worker.store->remove(std::move(keys), {.deadline = deadline_, .hold = nullptr}),
      blocks.size(), Reaction::kDown);
}

void CommitBatch::remove_shards(const Indices& blocks) {
  const std::vector<Reaction> reactions = remove(blocks);
  for (std::size_t n = 0; n < blocks.size(); ++n) {
    blocks_[blocks[n]].commit.on_removed(reactions[n]);
  }
}

/// Shards that were found broken must not be taken for stored. One that cannot be removed stays
/// remembered; put-if-absent then changes nothing.
void CommitBatch::remove_broken() {
  Indices broken;
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    if (parts_.broken->contains(blocks_[i].item.block)) broken.push_back(i);
  }
  if (broken.empty()) return;
  const std::vector<Reaction> reactions = remove(broken);
  for (std::size_t n = 0; n < broken.size(); ++n) {
    const bool gone = reactions[n] == Reaction::kOk || reactions[n] == Reaction::kMiss;
    if (gone) parts_.broken->remove(blocks_[broken[n]].item.block);
  }
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
    seal_block(parts_.shards.describe(ready ? ObjectKind::kReady : ObjectKind::kManifest, hash),
               page->bytes());
    items.push_back({ready ? parts_.shards.keys.ready(hash, parts_.shards.role.rank)
                           : parts_.shards.keys.manifest(hash),
                     page->bytes().data(), page->bytes().size(), parts_.hot->replicas(hash)});
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
    if (block.put) ++(commit.shard_written() ? totals.written : totals.already_stored);
    switch (commit.outcome()) {
      case BlockCommit::Outcome::kCommitted:
        ++totals.committed;
        break;
      case BlockCommit::Outcome::kWaitingForPeers:
        break;
      case BlockCommit::Outcome::kPending:
      case BlockCommit::Outcome::kFailed:
        ++totals.failed;
        break;
    }
    if (commit.outcome() != BlockCommit::Outcome::kFailed) continue;
    totals.backed_off = totals.backed_off || commit.failure() == Reaction::kBackOff;
    totals.down = totals.down || commit.failure() == Reaction::kDown;
  }
  return totals;
}

}  // namespace kvc
