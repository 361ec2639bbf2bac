#include "connector/load_run.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <unordered_map>
#include <utility>

#include "base/hand_over.h"
#include "connector/fetched_object.h"
#include "connector/quiet_log.h"
#include "connector/stager.h"
#include "kvc/block_format.h"

namespace kvc {
namespace {

/// Batches shrink towards the end of a part, since nothing is fetched any more while the last one
/// is verified and copied. Below this a call costs more than it hides.
constexpr std::size_t kSmallBatchBytes = std::size_t{8} << 20;

/// The leases of a promise have at least a quarter left when its load is planned
/// (LeaseKeeper::interval()): the first renewal comes well before that.
constexpr int kFirstRenewalShare = 8;
/// Asked for in one call; what comes after it has time.
constexpr std::size_t kRenewedAtOnce = 4096;

constexpr std::size_t kNone = static_cast<std::size_t>(-1);

}  // namespace

LoadRun::LoadRun(const PipelineParts& parts, std::shared_ptr<LoadSpeed> speed,
                 std::vector<PageTask> tasks, StreamHandle stream, std::size_t batch_blocks,
                 Duration budget)
    : parts_(parts),
      speed_(std::move(speed)),
      tasks_(std::move(tasks)),
      stream_(stream),
      begin_(parts_.worker.clock->now()),
      deadline_{begin_ + budget},
      // Half of the free staging, so that the batch after this one finds room beside it.
      batch_blocks_max_(std::clamp<std::size_t>(pages_for_loads(parts_) / 2, 1, batch_blocks)),
      lease_(parts_.worker.store->capabilities().lease),
      leases_due_(begin_ + lease_ / kFirstRenewalShare) {
  collect_blocks();
}

void LoadRun::collect_blocks() {
  next_task_.assign(tasks_.size(), kNone);
  std::unordered_map<BlockHash, std::size_t, BlockHashHasher> index_of;
  index_of.reserve(tasks_.size());
  wanted_.reserve(tasks_.size());
  for (std::size_t t = 0; t < tasks_.size(); ++t) {
    const auto [at, is_new] = index_of.try_emplace(tasks_[t].block, wanted_.size());
    if (is_new) {
      wanted_.push_back({.first_task = t, .last_task = t});
    } else {
      Wanted& same = wanted_[at->second];
      next_task_[same.last_task] = t;
      same.last_task = t;
    }
  }
  const MutexLock lock(mutex_);
  outcomes_.resize(wanted_.size());
  if (wanted_.empty()) {
    in_place_ = parts_.shards.parts();
    ended_ = true;
  }
}

// Who does the work ---------------------------------------------------------------------------

void LoadRun::start() {
  // A task keeps the run alive only while it runs: an executor that never runs it must not.
  (void)hand_over(*parts_.worker.executor, [self = weak_from_this()] {
    if (const std::shared_ptr<LoadRun> run = self.lock()) run->drive_in_background();
  });
}

void LoadRun::drive_in_background() {
  {
    const MutexLock lock(mutex_);
    while (driving_ && !ended_) changed_.wait(mutex_);
    if (ended_) return;
    driving_ = true;
  }
  try {
    drive_to(parts_.shards.parts() - 1);
  } catch (const std::exception& error) {
    log_quietly(*parts_.worker.logger, LogLevel::kError, "a load broke off: ", error.what());
  }
}

bool LoadRun::wait(std::uint32_t part) {
  const Clock& clock = *parts_.worker.clock;
  while (true) {
    bool late = false;
    {
      const MutexLock lock(mutex_);
      const auto goes_on = [&]() KVC_REQUIRES(mutex_) { return in_place_ <= part && !ended_; };
      while (goes_on() && driving_ && !deadline_.passed(clock)) {
        changed_.wait_until(mutex_, deadline_.at);
      }
      if (in_place_ > part) return true;
      while (ended_ && copying_) changed_.wait(mutex_);
      if (ended_) return false;
      late = driving_;
      if (!late) driving_ = true;
    }
    if (late) {
      run_out_of_time();
    } else {
      drive_to(part);
    }
  }
}

/// Drives the run until `part` is in place or the run has ended, and gives the role back. REQUIRES:
/// this thread has taken it.
void LoadRun::drive_to(std::uint32_t part) {
  const auto leave = [this](bool broken) {
    std::string failed;
    {
      const MutexLock lock(mutex_);
      if (broken && !ended_) failed = break_off();
      if (ended_) current_ = nullptr;
      copying_ = driving_ = false;
      changed_.notify_all();
    }
    tell(failed);
  };
  try {
    while (parts_in_place() <= part && advance()) {
    }
  } catch (...) {  // How far it came is not known.
    leave(true);
    throw;
  }
  leave(false);
}

/// One batch further. False: the run has ended.
bool LoadRun::advance() {
  if (has_ended()) return false;
  if (current_ == nullptr) current_ = next_fetch();
  if (current_ == nullptr) {
    if (deadline_.passed(*parts_.worker.clock)) {
      run_out_of_time();
    } else {
      run_out_of_staging();
    }
    return false;
  }
  if (!current_->finish(*parts_.worker.clock)) {
    run_out_of_time();
    return false;
  }
  for (const BlockFetch::Item& item : current_->items()) fetched_ += item.object_bytes;
  keep_leases();
  const std::shared_ptr<BlockFetch> following = next_fetch();
  if (following != nullptr) {
    // On another thread if there is one; finish() does it otherwise.
    (void)hand_over(*parts_.worker.executor, [following] { following->run(); });
  }
  const std::size_t asked_again = retry_missing(*current_);
  if (!begin_copying()) return false;
  Settled settled = settle(*current_);
  settled.gained.loads_asked_again = asked_again;
  end_copying();
  remove_rejected(parts_, settled.rejected, deadline_);
  take_in(settled);
  current_->release_pages();
  current_ = following;
  return true;
}

// One batch -----------------------------------------------------------------------------------

/// The store may give the memory of an object to another one once its lease is over, so the
/// transfer of a batch must end well before.
std::size_t LoadRun::objects_in_half_a_lease() const {
  if (lease_ == Duration::zero()) return batch_blocks_max_;
  double bytes_per_second = static_cast<double>(speed_->bytes_per_second());
  const Duration took = parts_.worker.clock->now() - begin_;
  if (fetched_ > 0 && took > Duration::zero()) {  // This load may be slower than those before.
    const double seconds = std::chrono::duration<double>(took).count();
    bytes_per_second = std::min(bytes_per_second, static_cast<double>(fetched_) / seconds);
  }
  const double bytes = std::chrono::duration<double>(lease_ / 2).count() * bytes_per_second;
  return std::max<std::size_t>(
      static_cast<std::size_t>(bytes / static_cast<double>(parts_.shards.object_bytes())), 1);
}

/// In the background: a load that goes on for longer than a lease must find its last objects, too.
void LoadRun::keep_leases() {
  const Instant now = parts_.worker.clock->now();
  const std::size_t blocks = wanted_.size();
  if (lease_ == Duration::zero() || now < leases_due_) return;
  leases_due_ = now + lease_ / 2;
  std::vector<std::string> keys;
  for (std::size_t next = begun_; next < blocks * parts_.shards.parts(); ++next) {
    if (keys.size() == kRenewedAtOnce) break;
    keys.push_back(
        parts_.shards.key(block(next % blocks), static_cast<std::uint32_t>(next / blocks)));
  }
  if (keys.empty()) return;
  (void)hand_over(*parts_.worker.executor, [store = parts_.worker.store, deadline = deadline_,
                                            keys = std::move(keys)]() mutable {
    try {
      (void)store->exists(std::move(keys), {.deadline = deadline, .hold = nullptr});
    } catch (const std::exception&) {  // The gets will tell.
    }
  });
}

/// The next objects of a part, as many as a batch, the staging and the rest of the part allow. Null
/// if there are none left, or none can be fetched now.
std::shared_ptr<BlockFetch> LoadRun::next_fetch() {
  const std::size_t blocks = wanted_.size();
  const std::size_t all = blocks * parts_.shards.parts();
  if (begun_ == all || deadline_.passed(*parts_.worker.clock)) return nullptr;
  const auto part = static_cast<std::uint32_t>(begun_ / blocks);
  const std::size_t first = begun_ % blocks;
  const std::size_t rest = blocks - first;
  const std::size_t object_bytes = parts_.shards.object_bytes();
  const std::size_t small = std::max<std::size_t>(kSmallBatchBytes / object_bytes, 1);
  const std::size_t count = std::min(
      {rest, batch_blocks_max_, std::max(small, (rest + 1) / 2), objects_in_half_a_lease()});
  std::vector<BlockFetch::Item> items;
  items.reserve(count);
  while (items.size() < count) {
    StagingLease page = borrow_page(parts_, StagingPool::Use::kLoad);
    if (page == nullptr) break;
    const std::size_t index = first + items.size();
    items.push_back({.wanted = index,
                     .part = part,
                     .key = parts_.shards.key(block(index), part),
                     .page = std::move(page),
                     .object_bytes = object_bytes});
  }
  if (items.empty()) return nullptr;
  begun_ += items.size();
  return std::make_shared<BlockFetch>(parts_.worker.store, std::move(items), deadline_);
}

/// False if the run was ended: no page may be written any more.
bool LoadRun::begin_copying() {
  const MutexLock lock(mutex_);
  if (ended_) return false;
  copying_ = true;
  return true;
}

void LoadRun::end_copying() {
  const MutexLock lock(mutex_);
  copying_ = false;
  changed_.notify_all();
}

LoadRun::Settled LoadRun::settle(const BlockFetch& fetch) {
  try {
    return place_all(fetch);
  } catch (...) {
    // What was issued reads the staging and writes to the pages until it is complete.
    (void)parts_.worker.copier->flush(stream_);
    throw;
  }
}

LoadRun::Settled LoadRun::place_all(const BlockFetch& fetch) {
  Settled settled;
  std::vector<const BlockFetch::Item*> intact;
  for (std::size_t i = 0; i < fetch.items().size(); ++i) {
    const BlockFetch::Item& item = fetch.items()[i];
    const Status status = place(item, fetch.results()[i], settled);
    if (status.ok()) {
      settled.placed.push_back(item.wanted);
      intact.push_back(&item);
    } else {
      settled.failed.push_back({item.wanted, item.key, status});
    }
  }
  // Only now may the staging be used for other blocks.
  const Status flushed = parts_.worker.copier->flush(stream_);
  if (flushed.ok()) {
    keep_in_tier(intact);
    return settled;
  }
  const std::uint32_t part = fetch.items().front().part;
  for (const std::size_t index : std::exchange(settled.placed, {})) {
    settled.failed.push_back(
        {index,
         parts_.shards.key(block(index), part),
         {Code::kUnavailable, "the copy into the page failed: " + flushed.message()}});
  }
  return settled;
}

void LoadRun::keep_in_tier(const std::vector<const BlockFetch::Item*>& intact) {
  // Not if what is left for loads would come to be held there.
  if (parts_.stager == nullptr || parts_.pages->available(StagingPool::Use::kLoad) == 0) return;
  for (const BlockFetch::Item* item : intact) parts_.stager->put(block(item->wanted), item->page);
}

/// Ok: every page that wants the block holds the verified bytes of this part of it.
Status LoadRun::place(const BlockFetch::Item& item, const GetResult& result, Settled& settled) {
  const Verdict verdict = judge(parts_, block(item.wanted), item, result, settled.gained);
  switch (verdict.end) {
    case FetchEnd::kVerified:
      return copy_in(item);
    case FetchEnd::kMissing:
      ++settled.gained.loads_missing;
      return {Code::kMissing, "promised, but not in the store: evicted, or its owner is gone"};
    case FetchEnd::kRejected:
      settled.rejected.push_back(item.key);
      return {Code::kRejected, "the stored bytes were refused (" +
                                   std::string(to_string(verdict.rejection)) +
                                   "); the object is removed, the next save heals it"};
    case FetchEnd::kUnavailable:
      break;
  }
  ++settled.gained.loads_unavailable;
  return deadline_.passed(*parts_.worker.clock)
             ? Status(Code::kTimedOut, "not answered within the load deadline")
             : Status(Code::kUnavailable, "the store does not answer");
}

Status LoadRun::copy_in(const BlockFetch::Item& item) {
  const std::span<const std::byte> payload =
      item.page->bytes().subspan(kBlockHeaderBytes, parts_.shards.part_bytes());
  for (std::size_t t = wanted_[item.wanted].first_task; t != kNone; t = next_task_[t]) {
    const Status copied =
        parts_.worker.copier->copy_in(parts_.groups[item.part], tasks_[t].slot, payload, stream_);
    if (!copied.ok()) {
      return {Code::kUnavailable, "the copy into the page failed: " + copied.message()};
    }
  }
  return {};
}

// What became of it ---------------------------------------------------------------------------

void LoadRun::take_in(const Settled& settled) {
  std::string failed;
  {
    const MutexLock lock(mutex_);
    if (!ended_) failed = add_up(settled);
  }
  tell(failed);
}

/// Ends the run if there is nothing more to do; returns what end() does then.
std::string LoadRun::add_up(const Settled& settled) {
  const std::uint32_t parts = parts_.shards.parts();
  add(gained_, settled.gained);
  for (const Failed& failed : settled.failed) fail(failed.wanted, failed.key, failed.status);
  for (const std::size_t index : settled.placed) {
    if (++outcomes_[index].placed_parts < parts) continue;
    parts_.recent->saw(block(index));
    for (std::size_t t = wanted_[index].first_task; t != kNone; t = next_task_[t]) {
      ++gained_.blocks_loaded;
      gained_.bytes_loaded += parts_.shards.page_bytes;
    }
  }
  settled_ += settled.placed.size() + settled.failed.size();
  if (settled_ % wanted_.size() != 0) return {};
  // A part is complete. After one that is not in place everywhere, no later one is of use.
  if (failures_.empty()) in_place_ = static_cast<std::uint32_t>(settled_ / wanted_.size());
  if (in_place_ < parts && failures_.empty()) {
    changed_.notify_all();
    return {};
  }
  if (in_place_ == parts || settled_ == parts * wanted_.size()) return end();
  return give_up(Code::kUnavailable, "given up, since another block of the step failed");
}

void LoadRun::run_out_of_time() {
  std::string failed;
  {
    const MutexLock lock(mutex_);
    if (!ended_) failed = give_up(Code::kTimedOut, "not answered within the load deadline");
    while (copying_) changed_.wait(mutex_);
  }
  tell(failed);
}

void LoadRun::run_out_of_staging() {
  std::string failed;
  {
    const MutexLock lock(mutex_);
    if (ended_) return;
    failed = give_up(
        Code::kUnavailable,
        "no staging memory is free: it is held for others, or by the store for earlier calls");
  }
  tell(failed);
}

void LoadRun::fail(std::size_t index, const std::string& key, const Status& status) {
  outcomes_[index].failed = true;
  for (std::size_t t = wanted_[index].first_task; t != kNone; t = next_task_[t]) {
    failures_.push_back({tasks_[t].request, key, status});
  }
}

/// Ends the run with what is not in place. Never throws: nobody but its caller would end it.
std::string LoadRun::give_up(Code code, const char* why) noexcept {
  try {
    gained_.loads_unavailable += fail_rest({code, why});
  } catch (const std::exception&) {
    return break_off();
  }
  return end();
}

/// Failures may be missing from the list: without one, all that is not complete counts as failed.
std::string LoadRun::break_off() noexcept {
  failures_.clear();
  return end();
}

/// What is neither in place nor known to have failed; returns how many blocks that are.
std::size_t LoadRun::fail_rest(const Status& status) {
  const std::uint32_t parts = parts_.shards.parts();
  std::size_t count = 0;
  for (std::size_t index = 0; index < wanted_.size(); ++index) {
    const Outcome& outcome = outcomes_[index];
    if (outcome.failed || outcome.placed_parts == parts) continue;
    fail(index, parts_.shards.key(block(index), outcome.placed_parts), status);
    ++count;
  }
  return count;
}

/// Returns what is to be told of the run once the lock is gone, since a logger may take its time.
std::string LoadRun::end() noexcept {
  ended_ = true;
  changed_.notify_all();
  try {
    return account();
  } catch (const std::exception&) {
    return {};  // What failed is returned, which is what counts.
  }
}

/// Counts what became of the run, and puts its failures into words.
std::string LoadRun::account() {
  const Duration took = parts_.worker.clock->now() - begin_;
  const bool late = std::ranges::any_of(failures_, [](const LoadFailure& failure) {
    return failure.status.code() == Code::kTimedOut;
  });
  if (late) {
    speed_->ran_out_of_time();
  } else {
    speed_->moved(gained_.bytes_loaded, took);
  }
  const WorkerStats gained = gained_;
  parts_.counters->update([&gained, took](WorkerStats& stats) {
    add(stats, gained);
    stats.load_latency.add(took);
  });
  if (failures_.empty()) return {};
  const LoadFailure& first = failures_.front();
  return std::to_string(failures_.size()) + " of " + std::to_string(tasks_.size()) +
         " promised pages were not loaded, the first from " + first.key + ": " +
         first.status.to_string();
}

void LoadRun::tell(const std::string& failed) const noexcept {
  if (!failed.empty()) log_quietly(*parts_.worker.logger, LogLevel::kWarning, failed);
}

void LoadRun::cancel() noexcept {
  std::string failed;
  {
    const MutexLock lock(mutex_);
    if (!ended_) failed = end();
    while (copying_) changed_.wait(mutex_);
    if (!driving_) current_ = nullptr;
  }
  tell(failed);
}

bool LoadRun::wait_until_idle(Deadline deadline) {
  const MutexLock lock(mutex_);
  while (driving_) {
    if (deadline.passed(*parts_.worker.clock)) return false;
    changed_.wait_until(mutex_, deadline.at);
  }
  return true;
}

std::uint32_t LoadRun::parts_in_place() const {
  const MutexLock lock(mutex_);
  return in_place_;
}

bool LoadRun::has_ended() const {
  const MutexLock lock(mutex_);
  return ended_;
}

std::vector<LoadFailure> LoadRun::failures() const {
  const MutexLock lock(mutex_);
  return failures_;
}

}  // namespace kvc
