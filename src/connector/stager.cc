#include "connector/stager.h"

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

#include "base/at_end.h"
#include "base/hand_over.h"
#include "connector/block_fetch.h"
#include "connector/fetched_object.h"
#include "connector/quiet_log.h"

namespace kvc {
namespace {

/// The leader waits for little at a time: a batch is what it learns of at once.
constexpr std::size_t kBatchBytes = std::size_t{16} << 20;
/// Batches shrink towards the end, so that both tasks end together. Below this a call costs more
/// than that saves.
constexpr std::size_t kSmallBatchBytes = std::size_t{4} << 20;

/// Whatever is held, a load of what is not staged has a page to go through.
constexpr std::size_t kSparePages = 1;

std::size_t blocks_in(std::size_t bytes, const PipelineParts& parts) {
  return std::max<std::size_t>(bytes / parts.shards.object_bytes(), 1);
}

/// A rank as others may keep it, without keeping its memory, store and threads.
class WeakRank final : public StageRank {
 public:
  explicit WeakRank(std::weak_ptr<Stager> stager) : stager_(std::move(stager)) {}

  void stage(StageOrder order, Report report) override {
    if (const auto stager = stager_.lock())
      return stager->stage(std::move(order), std::move(report));
    if (report != nullptr) {
      report({.hold = order.hold, .staged = 0, .done = true, .end = StageEnd::kUnavailable});
    }
  }
  void release(HoldRelease release) override {
    if (const auto stager = stager_.lock()) stager->release(release);
  }
  void keep_only(std::span<const HoldId> live, HoldId newest) override {
    if (const auto stager = stager_.lock()) stager->keep_only(live, newest);
  }

 private:
  const std::weak_ptr<Stager> stager_;
};

}  // namespace

Stager::Stager(PipelineParts parts, std::size_t batch_blocks, Duration call_budget)
    : parts_(std::move(parts)),
      batch_blocks_(std::min(batch_blocks, blocks_in(kBatchBytes, parts_))),
      call_budget_(call_budget),
      tier_(parts_.pages, {.spare_pages = kSparePages}) {}

template <typename Work>
void Stager::guard(Work work) noexcept {
  try {
    work();
  } catch (const std::bad_alloc&) {
    // Whoever runs out of memory leaves everything as it was.
    log_quietly(*parts_.worker.logger, LogLevel::kError, "out of memory: the host tier gave way");
  } catch (const std::exception& error) {
    break_off(error.what());
  }
}

/// What state the tier is in is not known. Pages that are promised are fetched by their loads.
void Stager::break_off(const char* why) noexcept {
  {
    const MutexLock lock(mutex_);
    tier_.close();
    reports_.clear();
    outbox_.clear();
  }
  log_quietly(*parts_.worker.logger, LogLevel::kError, "the host tier is closed, since it broke:");
  log_quietly(*parts_.worker.logger, LogLevel::kError, why);
}

// Orders ----------------------------------------------------------------------------------------

void Stager::stage(StageOrder order, Report report) {
  const HoldId hold = order.hold;
  guard([&] {
    SharedReport shared;
    try {
      shared = std::make_shared<const Report>(std::move(report));
      take_order(std::move(order), shared);
    } catch (const std::bad_alloc&) {
      // Nobody may wait for it until his deadline.
      const Report& to = shared == nullptr ? report : *shared;
      const StageProgress refusal{.hold = hold, .done = true, .end = StageEnd::kUnavailable};
      if (to != nullptr) to(refusal);
      throw;
    }
    deliver();
    start_tasks();
  });
}

void Stager::take_order(StageOrder order, const SharedReport& report) {
  const Deadline give_up = Deadline::after(*parts_.worker.clock, order.fetch_budget);
  const MutexLock lock(mutex_);
  const HoldId hold = order.hold;
  const AtEnd forget([&]() KVC_REQUIRES(mutex_) {
    if (!tier_.has_hold(hold)) reports_.erase(hold);
  });
  if (!tier_.has_hold(hold)) reports_[hold] = report;
  tier_.stage(std::move(order), give_up.at);
  collect_reports();
  count();
}

void Stager::release(HoldRelease release) {
  guard([&] {
    {
      const MutexLock lock(mutex_);
      tier_.release(release);
      collect_reports();
      if (!tier_.has_hold(release.hold)) reports_.erase(release.hold);
    }
    deliver();
    start_tasks();
  });
}

void Stager::keep_only(std::span<const HoldId> live, HoldId newest) {
  guard([&] {
    {
      const MutexLock lock(mutex_);
      tier_.keep_only(live, newest);
      collect_reports();
      std::erase_if(reports_, [&](const auto& report)
                                  KVC_REQUIRES(mutex_) { return !tier_.has_hold(report.first); });
    }
    deliver();
    start_tasks();
  });
}

/// One for which there is no memory is lost, as on any other way to the leader.
void Stager::collect_reports() noexcept {
  try {
    for (const StageProgress& progress : tier_.take_reports()) {
      const auto at = reports_.find(progress.hold);
      if (at == reports_.end() || *at->second == nullptr) continue;
      outbox_.push_back({at->second, progress});
    }
  } catch (const std::bad_alloc&) {
    return;
  }
}

/// One thread at a time hands reports over, in order; whoever comes meanwhile leaves his to it.
void Stager::deliver() {
  while (true) {
    Message next;
    {
      const MutexLock lock(mutex_);
      if (is_delivering_ || outbox_.empty()) return;
      is_delivering_ = true;
      next = std::move(outbox_.front());
      outbox_.pop_front();
    }
    try {
      (*next.report)(next.progress);
    } catch (const std::exception& error) {
      log_quietly(*parts_.worker.logger, LogLevel::kError, error.what());
    }
    const MutexLock lock(mutex_);
    is_delivering_ = false;
    changed_.notify_all();
  }
}

/// What the tier has counted since the last time.
void Stager::count() {
  WorkerStats gained;
  const auto since = [](std::uint64_t now, std::uint64_t& before) {
    return now - std::exchange(before, now);
  };
  const auto ended = [&](StageEnd end) KVC_REQUIRES(mutex_) {
    return since(tier_.ended(end), counted_ends_[static_cast<std::size_t>(end)]);
  };
  gained.tier_evictions = since(tier_.evictions(), counted_evictions_);
  gained.stage_short_missing = ended(StageEnd::kMissing);
  gained.stage_short_rejected = ended(StageEnd::kRejected);
  gained.stage_short_no_room = ended(StageEnd::kNoRoom);
  gained.stage_short_unavailable = ended(StageEnd::kUnavailable);
  parts_.counters->update([&gained](WorkerStats& stats) { add(stats, gained); });
}

// Tasks -----------------------------------------------------------------------------------------

bool Stager::has_work() const {
  return tier_.wanted(1) > 0 || (tier_.wanted_loose(1) > 0 && !is_loose_running_);
}

std::size_t Stager::tasks_wanted() const {
  const std::size_t wanted = tier_.wanted(kFetchTasks * batch_blocks_);
  const std::size_t batches = (wanted + batch_blocks_ - 1) / batch_blocks_;
  // Two for what one batch could take: half of it each.
  const std::size_t loose = tier_.wanted_loose(1) > 0 && !is_loose_running_ ? 1 : 0;
  return std::min(kFetchTasks, running_ + std::max(std::min(batches * 2, wanted), loose));
}

void Stager::start_tasks() {
  while (true) {
    {
      const MutexLock lock(mutex_);
      if (closed_ || scheduled_ >= tasks_wanted()) return;
      ++scheduled_;
    }
    if (submit_task()) continue;
    {
      const MutexLock lock(mutex_);
      --scheduled_;
      // The tasks that there are take the work along. Without any, nobody would.
      if (scheduled_ > 0) return;
      tier_.give_up_wanted();
      collect_reports();
      count();
    }
    return deliver();
  }
}

/// A task keeps the stager alive only while it runs: an executor that never runs it again must not
/// keep a worker alive that is gone.
bool Stager::submit_task() {
  return hand_over(*parts_.worker.executor, [self = weak_from_this()] {
    if (const std::shared_ptr<Stager> stager = self.lock()) stager->run_task();
  });
}

void Stager::run_task() {
  guard([this] {
    // One batch per turn, so that saves get theirs. Without a turn the task goes on.
    while (run_batch()) {
      if (submit_task()) return;
    }
  });
}

/// True if this task is to come again.
bool Stager::run_batch() {
  Batch batch = take_batch();
  deliver();
  if (batch.fetches.empty()) return false;
  try {
    fetch(batch);
  } catch (const std::exception& error) {
    // What the tier has not been told, it is told now.
    log_quietly(*parts_.worker.logger, LogLevel::kError, "a fetch broke off: ", error.what());
  }
  const bool goes_on = end_batch(std::move(batch));
  deliver();
  return goes_on;
}

Stager::Batch Stager::take_batch() {
  const Instant now = parts_.worker.clock->now();
  const MutexLock lock(mutex_);
  Batch batch;
  const std::size_t half = (tier_.wanted(2 * batch_blocks_) + 1) / 2;
  const std::size_t small = blocks_in(kSmallBatchBytes, parts_);
  try {
    batch.fetches = tier_.begin_fetches(std::min(batch_blocks_, std::max(half, small)), now);
    if (batch.fetches.empty() && !is_loose_running_) {
      batch.fetches = tier_.begin_loose_fetches(batch_blocks_, now);
      is_loose_running_ = batch.is_loose = !batch.fetches.empty();
    }
  } catch (const std::bad_alloc&) {
    tier_.give_up_wanted();
  }
  collect_reports();
  count();
  if (batch.fetches.empty()) {
    --scheduled_;
  } else {
    ++running_;
  }
  return batch;
}

bool Stager::end_batch(Batch batch) {
  const MutexLock lock(mutex_);
  // Whatever has not been told: nobody may wait for it for ever.
  for (const HostTier::Fetch& each : batch.fetches) {
    tier_.fetched(each.block, FetchEnd::kUnavailable, nullptr);
  }
  // Before the batch counts as over: a worker that closes takes a page that is lent for one that
  // the store still uses.
  batch.fetches.clear();
  if (batch.is_loose) is_loose_running_ = false;
  --running_;
  collect_reports();
  count();
  changed_.notify_all();
  if (has_work() && !closed_) return true;
  --scheduled_;
  return false;
}

// One batch -------------------------------------------------------------------------------------

void Stager::fetch(const Batch& batch) {
  std::vector<BlockFetch::Item> items;
  items.reserve(batch.fetches.size());
  Deadline deadline{Instant::min()};
  for (const HostTier::Fetch& each : batch.fetches) {
    deadline.at = std::max(deadline.at, each.give_up_at);
    items.push_back({.wanted = items.size(),
                     .part = 0,
                     .key = parts_.shards.key(each.block, 0),
                     .page = each.page,
                     .object_bytes = parts_.shards.object_bytes()});
  }
  deadline = deadline.earlier_of(Deadline::after(*parts_.worker.clock, call_budget_));
  BlockFetch fetch(parts_.worker.store, std::move(items), deadline);
  fetch.run();
  retry_stale(fetch);
  const std::vector<std::size_t> rejected = settle(batch, fetch);
  if (rejected.empty()) return;
  deliver();
  std::vector<std::string> keys;
  keys.reserve(rejected.size());
  for (const std::size_t i : rejected) keys.push_back(fetch.items()[i].key);
  remove_rejected(parts_, keys, deadline);
  const MutexLock lock(mutex_);
  for (const std::size_t i : rejected) {
    tier_.fetched(batch.fetches[i].block, FetchEnd::kRejected, batch.fetches[i].page);
  }
}

/// Tells the tier of all blocks but those that were refused, which it returns: they have to be
/// removed first.
std::vector<std::size_t> Stager::settle(const Batch& batch, const BlockFetch& fetch) {
  WorkerStats gained;
  std::vector<FetchEnd> ends;
  std::vector<std::size_t> rejected;
  ends.reserve(batch.fetches.size());
  for (std::size_t i = 0; i < batch.fetches.size(); ++i) {
    const BlockHash& block = batch.fetches[i].block;
    const FetchEnd end = judge(parts_, block, fetch.items()[i], fetch.results()[i], gained).end;
    ends.push_back(end);
    if (end == FetchEnd::kVerified) {
      ++gained.blocks_staged;
      gained.bytes_staged += parts_.shards.page_bytes;
      parts_.recent->saw(block);
    } else if (end == FetchEnd::kRejected) {
      rejected.push_back(i);
    }
  }
  parts_.counters->update([&gained](WorkerStats& stats) { add(stats, gained); });
  const MutexLock lock(mutex_);
  for (std::size_t i = 0; i < ends.size(); ++i) {
    if (ends[i] == FetchEnd::kRejected) continue;
    tier_.fetched(batch.fetches[i].block, ends[i], batch.fetches[i].page);
  }
  collect_reports();
  count();
  return rejected;
}

// Pages -----------------------------------------------------------------------------------------

std::size_t Stager::resident_prefix(std::span<const BlockHash> blocks) const {
  const MutexLock lock(mutex_);
  return tier_.resident_prefix(blocks);
}

std::size_t Stager::room_blocks() const {
  const MutexLock lock(mutex_);
  if (closed_) return 0;
  const std::size_t free = parts_.pages->available(StagingPool::Use::kLoad);
  return free - std::min(free, kSparePages) + tier_.resident() - tier_.held();
}

StagingLease Stager::find(const BlockHash& block) {
  const MutexLock lock(mutex_);
  return tier_.find(block);
}

void Stager::put(const BlockHash& block, StagingLease page) {
  guard([&] {
    {
      const MutexLock lock(mutex_);
      tier_.put(block, std::move(page));
      collect_reports();
    }
    deliver();
  });
}

StagingLease Stager::borrow(StagingPool::Use use) {
  if (use == StagingPool::Use::kSave) {
    const MutexLock lock(mutex_);
    StagingLease page = tier_.borrow_for_save();
    count();
    return page;
  }
  StagingLease page = parts_.pages->borrow(use);
  // A page that becomes free may be borrowed by somebody else at once.
  while (page == nullptr) {
    {
      const MutexLock lock(mutex_);
      if (!tier_.make_room()) return nullptr;
      count();
    }
    page = parts_.pages->borrow(use);
  }
  return page;
}

void Stager::read(WorkerStats& stats) const {
  const MutexLock lock(mutex_);
  stats.tier_blocks = tier_.resident();
  stats.tier_blocks_held = tier_.held();
  stats.holds_open = tier_.holds();
  stats.fetches_in_flight = tier_.in_flight();
}

bool Stager::close(Deadline deadline) {
  const MutexLock lock(mutex_);
  closed_ = true;
  tier_.close();
  reports_.clear();
  outbox_.clear();
  while (running_ > 0 || is_delivering_) {
    if (deadline.passed(*parts_.worker.clock)) return false;
    changed_.wait_until(mutex_, deadline.at);
  }
  return true;
}

std::shared_ptr<StageRank> make_stage_rank(std::weak_ptr<Stager> stager) {
  return std::make_shared<WeakRank>(std::move(stager));
}

StagingLease borrow_page(const PipelineParts& parts, StagingPool::Use use) {
  return parts.stager == nullptr ? parts.pages->borrow(use) : parts.stager->borrow(use);
}

std::size_t pages_for_loads(const PipelineParts& parts) {
  return parts.stager == nullptr ? parts.pages->available(StagingPool::Use::kLoad)
                                 : parts.stager->room_blocks();
}

}  // namespace kvc
