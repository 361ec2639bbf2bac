#include "connector/commit_batch.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "connector/staging_plan.h"

namespace kvc {

namespace {

/// Of one exists() call.
constexpr std::size_t kKeysPerProbe = 4096;

bool needs_pages(BlockCommit::Action action) {
  return action == BlockCommit::Action::kPutShard || action == BlockCommit::Action::kVerifyShard ||
         action == BlockCommit::Action::kRemoveShard;
}

}  // namespace

CommitBatch::CommitBatch(const PipelineParts& parts, const Pools& pools,
                         std::vector<SaveItem> items, Deadline deadline)
    : parts_(parts),
      pools_(pools),
      deadline_(deadline),
      items_(std::move(items)),
      steps_(parts.shards.role, items_.size(), parts.shards.parts()) {}

void CommitBatch::run() {
  seal();
  remove_broken();
  while (steps_.action() != Action::kDone) {
    const CommitSteps::Indices blocks = steps_.blocks();
    perform();
    steps_.end_step();
    for (const std::size_t i : blocks) {
      const Action next = steps_.commit(i).next();
      if (!needs_pages(next)) items_[i].pages.clear();
      if (next == Action::kDone) note(i);
    }
  }
}

void CommitBatch::seal() {
  for (const SaveItem& item : items_) {
    for (std::uint32_t part = 0; part < item.pages.size(); ++part) {
      seal_block(parts_.shards.describe_part(item.block, part),
                 item.pages[part]->bytes().first(parts_.shards.object_bytes()));
    }
  }
}

std::string CommitBatch::key_of(const Part& at) const {
  return parts_.shards.key(items_[at.block].block, at.part);
}

std::vector<std::string> CommitBatch::keys_of(std::span<const Part> parts) const {
  std::vector<std::string> keys;
  keys.reserve(parts.size());
  for (const Part& at : parts) keys.push_back(key_of(at));
  return keys;
}

void CommitBatch::perform() {
  switch (steps_.action()) {
    case Action::kPutShard:
      return put_shards();
    case Action::kVerifyShard:
      return verify_shards();
    case Action::kRemoveShard:
      return steps_.on_removed(remove(steps_.parts()));
    case Action::kProbeShard:
      return probe_shards();
    case Action::kProbeQuorum:
      return probe_quorum();
    case Action::kPutReady:
      return put_markers(ObjectKind::kReady);
    case Action::kPutManifest:
      return put_markers(ObjectKind::kManifest);
    case Action::kDone:
      return;
  }
}

/// One call for each part, so that calls are no larger than those of whole blocks.
void CommitBatch::put_shards() {
  for (std::uint32_t part = 0; part < parts_.shards.parts(); ++part) {
    const CommitSteps::Indices blocks = steps_.puts(part);
    if (!blocks.empty()) put_part(part, blocks);
  }
}

void CommitBatch::put_part(std::uint32_t part, const CommitSteps::Indices& blocks) {
  std::vector<PutItem> items;
  std::vector<StagingLease> pages;
  items.reserve(blocks.size());
  pages.reserve(blocks.size());
  for (const std::size_t i : blocks) {
    const StagingLease& page = items_[i].pages[part];
    items.push_back({key_of({i, part}), page->bytes().data(), parts_.shards.object_bytes(),
                     items_[i].replicas});
    pages.push_back(page);
  }
  const Instant begin = parts_.worker.clock->now();
  std::vector<PutResult> results = parts_.worker.store->put(
      std::move(items), {.deadline = deadline_, .hold = hold_pages(std::move(pages))});
  const Duration took = parts_.worker.clock->now() - begin;
  parts_.counters->update([took](WorkerStats& stats) { stats.put_latency.add(took); });
  steps_.on_put(part, std::move(results));
}

void CommitBatch::verify_shards() {
  const Parts unsure = steps_.parts();
  std::span<const Part> rest(unsure);
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
    verify_some(rest.first(count), std::move(pages));
    rest = rest.subspan(count);
  }
  for (const Part& at : rest) steps_.on_read(at, kUnanswered<GetResult>, false);
}

void CommitBatch::verify_some(std::span<const Part> parts, std::vector<StagingLease> pages) {
  const std::size_t object_bytes = parts_.shards.object_bytes();
  std::vector<GetItem> items;
  items.reserve(parts.size());
  for (std::size_t n = 0; n < parts.size(); ++n) {
    items.push_back({key_of(parts[n]), pages[n]->bytes().data(), object_bytes});
  }
  const std::vector<GetResult> results =
      checked(parts_.worker.store->get(std::move(items),
                                       {.deadline = deadline_, .hold = hold_pages(pages)}),
              parts.size());
  for (std::size_t n = 0; n < parts.size(); ++n) {
    const BlockHash& block = items_[parts[n].block].block;
    steps_.on_read(parts[n], results[n],
                   parts_.shards.intact(block, parts[n].part, results[n],
                                        pages[n]->bytes().first(object_bytes)));
  }
}

std::vector<Reaction> CommitBatch::remove(const Parts& parts) {
  return parts_.worker.store->remove(keys_of(parts), {.deadline = deadline_, .hold = nullptr});
}

std::vector<Reaction> CommitBatch::exists(std::vector<std::string> keys) {
  return parts_.worker.store->exists(std::move(keys), {.deadline = deadline_, .hold = nullptr});
}

/// Objects that were found broken must not be taken for stored. One that cannot be removed stays
/// remembered; put-if-absent then changes nothing.
void CommitBatch::remove_broken() {
  if (parts_.broken->empty()) return;
  Parts broken = steps_.parts();
  std::erase_if(broken, [this](const Part& at) { return !parts_.broken->contains(key_of(at)); });
  if (broken.empty()) return;
  const std::vector<Reaction> reactions = checked(remove(broken), broken.size());
  for (std::size_t n = 0; n < broken.size(); ++n) {
    if (is_gone(reactions[n])) parts_.broken->remove(key_of(broken[n]));
  }
}

void CommitBatch::probe_shards() {
  const Parts parts = steps_.parts();
  const std::size_t per_shard = parts_.shards.parts();
  const std::size_t at_a_time = std::max<std::size_t>(kKeysPerProbe / per_shard, 1) * per_shard;
  std::vector<Reaction> reactions;
  reactions.reserve(parts.size());
  for (std::span<const Part> rest(parts); !rest.empty();) {
    const std::size_t count = std::min(at_a_time, rest.size());
    std::ranges::copy(checked(exists(keys_of(rest.first(count))), count),
                      std::back_inserter(reactions));
    rest = rest.subspan(count);
  }
  steps_.on_probed(std::move(reactions));
}

void CommitBatch::put_markers(ObjectKind kind) {
  const CommitSteps::Indices& blocks = steps_.blocks();
  std::vector<PutItem> items;
  std::vector<StagingLease> pages;
  items.reserve(blocks.size());
  pages.reserve(blocks.size());
  for (const std::size_t i : blocks) {
    StagingLease page = pools_.markers->borrow(StagingPool::Use::kSave);
    if (page == nullptr) break;
    const BlockHash& hash = items_[i].block;
    seal_block(parts_.shards.describe_marker(kind, hash), page->bytes());
    items.push_back({parts_.shards.marker_key(kind, hash), page->bytes().data(),
                     page->bytes().size(), items_[i].replicas});
    pages.push_back(std::move(page));
  }
  const std::size_t count = items.size();
  std::vector<PutResult> results;
  if (count > 0) {
    results = checked(
        parts_.worker.store->put(std::move(items),
                                 {.deadline = deadline_, .hold = hold_pages(std::move(pages))}),
        count);
  }
  // Without a page the marker was not put: the store still holds them all for earlier calls.
  results.resize(blocks.size(), {Reaction::kDown, PutEffect::kNone});
  steps_.on_markers_put(std::move(results));
}

void CommitBatch::probe_quorum() {
  const CommitRole& role = parts_.shards.role;
  std::vector<std::string> keys;
  keys.reserve(steps_.blocks().size() * role.world_size);
  for (const std::size_t i : steps_.blocks()) {
    for (std::string& key : quorum_keys(parts_.shards.keys, items_[i].block, role)) {
      keys.push_back(std::move(key));
    }
  }
  steps_.on_quorum(exists(std::move(keys)));
}

void CommitBatch::note(std::size_t block) {
  const BlockCommit& commit = steps_.commit(block);
  const BlockHash& hash = items_[block].block;
  if (commit.outcome() != BlockCommit::Outcome::kFailed) {
    parts_.recent->saw(hash);  // The quorum probe has seen the shard.
    return;
  }
  parts_.recent->forget(hash);
  if (commit.failure() == Reaction::kDown) parts_.recent->clear();
}

CommitTotals CommitBatch::totals() const {
  CommitTotals totals;
  for (std::size_t i = 0; i < items_.size(); ++i) {
    const BlockCommit& commit = steps_.commit(i);
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
