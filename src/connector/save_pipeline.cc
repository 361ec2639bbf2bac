#include "connector/save_pipeline.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <iterator>
#include <new>
#include <string>
#include <utility>

#include "base/at_end.h"
#include "base/hand_over.h"
#include "connector/quiet_log.h"
#include "connector/stager.h"
#include "connector/staging_plan.h"

namespace kvc {
namespace {

constexpr Duration kFirstPause = std::chrono::milliseconds(100);
constexpr Duration kLongestPause = std::chrono::seconds(10);
/// Snapshots of one save() that are handed over together.
constexpr std::size_t kPieceBytes = std::size_t{8} << 20;

}  // namespace

SavePipeline::SavePipeline(PipelineParts parts, CommitBatch::Pools pools, std::size_t batch_blocks,
                           Duration batch_budget)
    : parts_(std::move(parts)),
      pools_(std::move(pools)),
      batch_blocks_(batch_blocks),
      batch_budget_(batch_budget) {}

void SavePipeline::save(std::span<const PageTask> tasks, std::span<const HotBlock> hot,
                        StreamHandle stream) {
  WantedCopies wanted;
  for (const HotBlock& block : hot) wanted.insert_or_assign(block.block, block.replicas);
  if (const std::unique_ptr<Snapshots> taken = std::move(snapshots_); taken != nullptr) {
    finish(std::move(*taken), wanted, stream);
    return;
  }
  // Piece by piece, so that the first pages are on their way while the others are being copied.
  const std::size_t block_bytes = parts_.shards.object_bytes() * parts_.shards.parts();
  const std::size_t piece = std::max<std::size_t>(kPieceBytes / block_bytes, 1);
  // Lent to saves until all are taken: a step copies and evicts no more than what may be queued.
  std::vector<SaveItem> unstored;
  while (!tasks.empty()) {
    const std::span<const PageTask> now = tasks.first(std::min(piece, tasks.size()));
    tasks = tasks.subspan(now.size());
    std::ranges::move(finish(make_room(now), wanted, stream), std::back_inserter(unstored));
  }
}

void SavePipeline::snapshot(std::span<const PageTask> tasks, std::uint32_t part,
                            StreamHandle stream) {
  if (snapshots_ == nullptr) snapshots_ = std::make_unique<Snapshots>(make_room(tasks));
  copy_part(*snapshots_, part, stream);
}

void SavePipeline::distrust_snapshots() {
  if (snapshots_ != nullptr) snapshots_->copied.assign(snapshots_->copied.size(), false);
}

std::vector<SaveItem> SavePipeline::finish(Snapshots taken, const WantedCopies& wanted,
                                           StreamHandle stream) {
  for (std::uint32_t part = 0; part < parts_.shards.parts(); ++part) {
    if (!taken.copied[part]) copy_part(taken, part, stream);
  }
  if (taken.fate != Fate::kStored) taken.dropped += taken.items.size();
  parts_.counters->update([&taken](WorkerStats& stats) {
    stats.blocks_already_stored += taken.already_stored;
    stats.saves_dropped += taken.dropped;
    stats.saves_failed += taken.failed;
  });
  if (taken.items.empty()) return {};
  keep_in_tier(taken.items);
  if (taken.fate != Fate::kStored) return std::move(taken.items);
  for (SaveItem& item : taken.items) {
    if (const auto hot = wanted.find(item.block); hot != wanted.end()) item.replicas = hot->second;
  }
  // Whatever was queued must not be left without a task.
  const AtEnd start([this] { start_tasks(); });
  enqueue(std::move(taken.items));
  return {};
}

SavePipeline::Snapshots SavePipeline::make_room(std::span<const PageTask> tasks) {
  Snapshots room;
  room.copied.assign(parts_.shards.parts(), false);
  for (const PageTask& task : tasks) {
    if (task.absent) parts_.recent->forget(task.block);
  }
  room.fate = fate_now();
  if (room.fate == Fate::kDropped) {
    room.dropped = tasks.size();
    return room;
  }
  std::unordered_set<BlockHash, BlockHashHasher> in_this_step;
  bool full = false;
  for (const PageTask& task : tasks) {
    if (!in_this_step.insert(task.block).second || is_queued(task.block)) continue;
    if (parts_.recent->contains(task.block)) {
      ++room.already_stored;
      continue;
    }
    if (room.fate == Fate::kOnlyInTier && parts_.stager->find(task.block) != nullptr) {
      ++room.dropped;
      continue;
    }
    // Where one block finds no page, those behind it do not look: that takes time, which the step
    // waits for.
    std::vector<StagingLease> pages;
    if (!full) pages = borrow_pages();
    full = pages.empty();
    if (full) {
      ++room.dropped;
      continue;
    }
    room.items.push_back({.block = task.block, .pages = std::move(pages)});
    room.slots.push_back(task.slot);
  }
  return room;
}

/// For all parts of a block, or none.
std::vector<StagingLease> SavePipeline::borrow_pages() {
  std::vector<StagingLease> pages;
  const std::uint32_t parts = parts_.shards.parts();
  pages.reserve(parts);
  while (pages.size() < parts) {
    StagingLease page = borrow_page(parts_, StagingPool::Use::kSave);
    if (page == nullptr) return {};
    pages.push_back(std::move(page));
  }
  return pages;
}

void SavePipeline::copy_part(Snapshots& into, std::uint32_t part, StreamHandle stream) {
  const std::size_t bytes = parts_.shards.part_bytes();
  std::size_t kept = 0;
  for (std::size_t i = 0; i < into.items.size(); ++i) {
    const std::span<std::byte> staging = into.items[i].pages[part]->bytes();
    const Status copied = parts_.worker.copier->copy_out(
        parts_.groups[part], into.slots[i], staging.subspan(kBlockHeaderBytes, bytes), stream);
    if (!copied.ok()) continue;
    if (kept != i) into.items[kept] = std::move(into.items[i]);
    into.slots[kept] = into.slots[i];
    ++kept;
  }
  // After this no page is read any more, and the staging holds the snapshot.
  if (kept > 0 && !parts_.worker.copier->flush(stream).ok()) kept = 0;
  into.failed += into.items.size() - kept;
  into.items.resize(kept);
  into.slots.resize(kept);
  into.copied[part] = true;
}

/// The payload is complete. The task that seals a page writes only its header, which is not read
/// here: the bytes have not left this process since they were computed. The first block is the most
/// recently used one, since the others are of no use without it.
void SavePipeline::keep_in_tier(const std::vector<SaveItem>& items) {
  if (parts_.stager == nullptr) return;
  for (std::size_t i = items.size(); i > 0; --i) {
    const SaveItem& item = items[i - 1];
    parts_.stager->put(item.block, without_claim(item.pages.front()));
  }
}

void SavePipeline::enqueue(std::vector<SaveItem> items) {
  const MutexLock lock(mutex_);
  for (SaveItem& item : items) {
    const Name name{item.block, ++last_ticket_};
    try {
      blocks_.insert(name.block);
      tickets_.insert(name.ticket);
      queue_.push_back({std::move(item), name.ticket});
    } catch (const std::bad_alloc&) {
      end_save(name);  // Nobody else would.
      throw;
    }
  }
  if (closed_) drop_queue();
}

bool SavePipeline::is_queued(const BlockHash& block) const {
  const MutexLock lock(mutex_);
  return blocks_.contains(block);
}

SavePipeline::Fate SavePipeline::fate_now() const {
  const Instant now = parts_.worker.clock->now();
  const MutexLock lock(mutex_);
  if (closed_) return Fate::kDropped;
  if (now >= paused_until_) return Fate::kStored;
  return parts_.stager == nullptr ? Fate::kDropped : Fate::kOnlyInTier;
}

std::size_t SavePipeline::tasks_wanted() const {
  const std::size_t batches = (queue_.size() + batch_blocks_ - 1) / batch_blocks_;
  return std::min(kSaveTasks, running_ + batches);
}

void SavePipeline::start_tasks() {
  while (true) {
    {
      const MutexLock lock(mutex_);
      if (scheduled_ >= tasks_wanted()) return;
      ++scheduled_;
    }
    if (submit_task()) continue;
    const MutexLock lock(mutex_);
    --scheduled_;
    // The tasks that there are take the queue along. Without any, nobody would.
    if (scheduled_ == 0) drop_queue();
    return;
  }
}

/// A task keeps the pipeline alive only while it runs: an executor that never runs it again must
/// not keep a worker alive that is gone.
bool SavePipeline::submit_task() {
  return hand_over(*parts_.worker.executor, [self = weak_from_this()] {
    if (const std::shared_ptr<SavePipeline> pipeline = self.lock()) pipeline->run_task();
  });
}

void SavePipeline::run_task() {
  try {
    // One batch per turn, so that prefetches of loads get theirs. Without a turn the task goes on.
    while (run_batch()) {
      if (submit_task()) return;
    }
  } catch (const std::exception& error) {
    tell_broken_off(error.what());
    const MutexLock lock(mutex_);
    --scheduled_;
    if (scheduled_ == 0) drop_queue();
  }
}

/// True if this task is to come again.
bool SavePipeline::run_batch() {
  const Instant begin = parts_.worker.clock->now();
  std::vector<Name> names;
  std::vector<SaveItem> items = take_batch(&names);
  if (!items.empty()) {
    const CommitTotals totals = commit(std::move(items));
    tell(totals);
    end_batch(names, totals, parts_.worker.clock->now() - begin);
  }
  const MutexLock lock(mutex_);
  if (!queue_.empty()) return true;
  --scheduled_;
  return false;
}

std::vector<SaveItem> SavePipeline::take_batch(std::vector<Name>* names) {
  const Instant now = parts_.worker.clock->now();
  const MutexLock lock(mutex_);
  if (now < paused_until_) drop_queue();
  const std::size_t count = std::min(queue_.size(), batch_blocks_);
  std::vector<SaveItem> items;
  items.reserve(count);
  names->reserve(count);
  while (items.size() < count) {
    Queued& next = queue_.front();
    names->push_back({next.item.block, next.ticket});
    items.push_back(std::move(next.item));
    queue_.pop_front();
  }
  if (count > 0) ++running_;
  return items;
}

/// Never throws: whatever goes wrong is a failed save, and the next batch starts afresh.
CommitTotals SavePipeline::commit(std::vector<SaveItem> items) {
  CommitTotals totals;
  totals.failed = items.size();
  try {
    CommitBatch batch(parts_, pools_, std::move(items),
                      Deadline::after(*parts_.worker.clock, batch_budget_));
    try {
      batch.run();
    } catch (const std::exception& error) {
      tell_broken_off(error.what());
    }
    totals = batch.totals();
  } catch (const std::exception& error) {
    tell_broken_off(error.what());
  }
  return totals;
}

void SavePipeline::end_batch(const std::vector<Name>& names, const CommitTotals& totals,
                             Duration took) {
  parts_.counters->update(
      [&totals, took, page_bytes = parts_.shards.page_bytes](WorkerStats& stats) {
        stats.blocks_saved += totals.written;
        stats.bytes_saved += totals.written * page_bytes;
        stats.save_nanoseconds += static_cast<std::uint64_t>(took.count());
        stats.blocks_already_stored += totals.already_stored;
        stats.blocks_committed += totals.committed;
        stats.saves_failed += totals.failed;
      });
  const Instant now = parts_.worker.clock->now();
  const MutexLock lock(mutex_);
  for (const Name& name : names) end_save(name);
  adjust_pace(totals, now);
  --running_;
  changed_.notify_all();
}

/// Writing into a full store makes it evict, and each refusal costs a call: wait longer each time.
void SavePipeline::adjust_pace(const CommitTotals& totals, Instant now) {
  if (totals.backed_off) {
    pause_ = std::clamp(pause_ * 2, kFirstPause, kLongestPause);
    paused_until_ = now + pause_;
  } else if (totals.failed == 0) {
    pause_ = Duration::zero();
  }
}

void SavePipeline::end_save(const Name& name) {
  blocks_.erase(name.block);
  tickets_.erase(name.ticket);
}

void SavePipeline::drop_queue() {
  if (queue_.empty()) return;
  const std::size_t dropped = queue_.size();
  for (const Queued& queued : queue_) end_save({queued.item.block, queued.ticket});
  queue_.clear();
  parts_.counters->update([dropped](WorkerStats& stats) { stats.saves_dropped += dropped; });
  changed_.notify_all();
}

bool SavePipeline::drain(Deadline deadline) {
  const MutexLock lock(mutex_);
  const std::uint64_t last = last_ticket_;
  const auto ended = [this, last]() KVC_REQUIRES(mutex_) {
    return tickets_.empty() || *tickets_.begin() > last;
  };
  while (!ended()) {
    if (deadline.passed(*parts_.worker.clock)) return false;
    changed_.wait_until(mutex_, deadline.at);
  }
  return true;
}

bool SavePipeline::close(Deadline deadline) {
  const MutexLock lock(mutex_);
  closed_ = true;
  drop_queue();
  while (running_ > 0) {
    if (deadline.passed(*parts_.worker.clock)) return false;
    changed_.wait_until(mutex_, deadline.at);
  }
  return true;
}

std::size_t SavePipeline::queued_bytes() const {
  const MutexLock lock(mutex_);
  return tickets_.size() * parts_.shards.page_bytes;
}

/// Says once that saves fail, and once that they work again. Does not throw: end_batch() must
/// follow.
void SavePipeline::tell(const CommitTotals& totals) {
  const bool fails = totals.failed > 0;
  {
    const MutexLock lock(mutex_);
    if (fails == failing_) return;
    failing_ = fails;
  }
  if (!fails) {
    log_quietly(*parts_.worker.logger, LogLevel::kInfo, "saves work again");
    return;
  }
  log_quietly(*parts_.worker.logger, LogLevel::kWarning,
              totals.backed_off
                  ? "saves fail: the store has no room; some will be left out for a while"
              : totals.down ? "saves fail: the store does not answer"
                            : "saves fail: the store did not keep what was put");
}

/// Does not throw either.
void SavePipeline::tell_broken_off(const char* why) {
  {
    const MutexLock lock(mutex_);
    if (told_broken_off_) return;
    told_broken_off_ = true;
  }
  log_quietly(*parts_.worker.logger, LogLevel::kError, "a batch of saves broke off (told once):");
  log_quietly(*parts_.worker.logger, LogLevel::kError, why);
}

}  // namespace kvc
