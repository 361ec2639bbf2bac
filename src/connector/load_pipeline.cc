#include "connector/load_pipeline.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/planted.h"
#include "connector/quiet_log.h"
#include "kvc/block_format.h"

namespace kvc {
namespace {

/// Batches shrink towards the end of a load, since nothing is fetched any more while the last one
/// is verified and copied. Below this a call costs more than it hides.
constexpr std::size_t kSmallBatchBytes = std::size_t{8} << 20;

/// Smaller loads say more about the time of a call than about the speed of transfers.
constexpr std::uint64_t kTellingBytes = std::uint64_t{16} << 20;
constexpr std::uint64_t kSlowestBytesPerSecond = std::uint64_t{1} << 20;
/// Of the load deadline, the part that promises may use. The rest is for a store that slows down.
constexpr int kBudgetShare = 2;

constexpr std::size_t kNone = static_cast<std::size_t>(-1);

}  // namespace

/// The state of one load.
struct LoadPipeline::Run {
  std::span<const PageTask> tasks;
  StreamHandle stream = 0;
  Deadline deadline;

  /// A block and its tasks, as a chain through next_task.
  struct Wanted {
    std::size_t first_task = 0;
    std::size_t last_task = 0;
  };
  std::vector<Wanted> wanted;
  std::vector<std::size_t> next_task;
  std::size_t begun = 0;  // Of `wanted`, handed to a fetch.
  std::size_t batch_blocks_max = 1;

  std::vector<LoadFailure> failures;
  std::vector<BlockHash> rejected;
  WorkerStats gained;

  const BlockHash& block(std::size_t index) const { return tasks[wanted[index].first_task].block; }

  void fail(std::size_t index, const std::string& key, const Status& status) {
    for (std::size_t t = wanted[index].first_task; t != kNone; t = next_task[t]) {
      failures.push_back({tasks[t].request, key, status});
    }
  }
};

std::vector<LoadFailure> LoadPipeline::load(std::span<const PageTask> tasks, StreamHandle stream) {
  const Instant begin = parts_.worker.clock->now();
  Run run;
  run.tasks = tasks;
  run.stream = stream;
  run.deadline = {begin + budget_};
  // Half of the free staging, so that the batch after this one finds room beside it.
  run.batch_blocks_max = std::clamp<std::size_t>(
      parts_.pages->available(StagingPool::Use::kLoad) / 2, 1, batch_blocks_);
  run.next_task.assign(tasks.size(), kNone);
  std::unordered_map<BlockHash, std::size_t, BlockHashHasher> index_of;
  index_of.reserve(tasks.size());
  for (std::size_t t = 0; t < tasks.size(); ++t) {
    const auto [at, is_new] = index_of.try_emplace(tasks[t].block, run.wanted.size());
    if (is_new) {
      run.wanted.push_back({t, t});
    } else {
      Run::Wanted& same = run.wanted[at->second];
      run.next_task[same.last_task] = t;
      same.last_task = t;
    }
  }

  std::shared_ptr<BlockFetch> current = next_fetch(run);
  while (current != nullptr) {
    const bool finished = current->finish(*parts_.worker.clock);
    const std::shared_ptr<BlockFetch> following = finished ? next_fetch(run) : nullptr;
    if (following != nullptr) start(following);
    if (!finished) break;
    settle(run, *current);
    current->release_pages();
    current = following != nullptr ? following : next_fetch(run);
  }
  // What could not be begun, or was given up with the fetch that held it.
  const Status late(Code::kTimedOut, "not answered within the load deadline");
  const Status no_staging(Code::kUnavailable,
                          "no staging memory is free: the store still holds it for earlier calls");
  if (current != nullptr) {
    for (const BlockFetch::Item& item : current->items()) {
      ++run.gained.loads_unavailable;
      run.fail(item.wanted, item.key, late);
    }
  }
  for (; run.begun < run.wanted.size(); ++run.begun) {
    ++run.gained.loads_unavailable;
    run.fail(run.begun, parts_.shards.key(run.block(run.begun)),
             current != nullptr || run.deadline.passed(*parts_.worker.clock) ? late : no_staging);
  }
  remove_rejected(run);
  run.gained.load_nanoseconds =
      static_cast<std::uint64_t>((parts_.worker.clock->now() - begin).count());
  report(run);
  learn_speed(run);
  return std::move(run.failures);
}

std::size_t LoadPipeline::budget_blocks() const {
  const double seconds = std::chrono::duration<double>(budget_ / kBudgetShare).count();
  const double bytes = seconds * static_cast<double>(bytes_per_second_.load());
  const double blocks = bytes / static_cast<double>(parts_.shards.page_bytes);
  return std::max<std::size_t>(static_cast<std::size_t>(blocks), 1);
}

/// A load that ran out of time halves the guess, since what it would have taken is not known.
void LoadPipeline::learn_speed(const Run& run) {
  const bool late = std::ranges::any_of(run.failures, [](const LoadFailure& failure) {
    return failure.status.code() == Code::kTimedOut;
  });
  const std::uint64_t guess = bytes_per_second_.load();
  if (late) {
    bytes_per_second_ = std::max(guess / 2, kSlowestBytesPerSecond);
  } else if (run.gained.bytes_loaded >= kTellingBytes && run.gained.load_nanoseconds > 0) {
    const double seconds = static_cast<double>(run.gained.load_nanoseconds) / 1e9;
    const auto measured =
        static_cast<std::uint64_t>(static_cast<double>(run.gained.bytes_loaded) / seconds);
    bytes_per_second_ = std::max(guess / 4 * 3 + measured / 4, kSlowestBytesPerSecond);
  }
}

/// The next blocks, as many as a batch, the staging and the rest of the load allow. Null if there
/// are none left, or none can be fetched now.
std::shared_ptr<BlockFetch> LoadPipeline::next_fetch(Run& run) {
  const std::size_t rest = run.wanted.size() - run.begun;
  if (rest == 0 || run.deadline.passed(*parts_.worker.clock)) return nullptr;
  const std::size_t object_bytes = parts_.shards.object_bytes();
  const std::size_t small = std::max<std::size_t>(kSmallBatchBytes / object_bytes, 1);
  const std::size_t count = std::min({rest, run.batch_blocks_max, std::max(small, (rest + 1) / 2)});
  std::vector<BlockFetch::Item> items;
  items.reserve(count);
  while (items.size() < count) {
    StagingLease page = parts_.pages->borrow(StagingPool::Use::kLoad);
    if (page == nullptr) break;
    const std::size_t index = run.begun + items.size();
    items.push_back({index, parts_.shards.key(run.block(index)), std::move(page), object_bytes});
  }
  if (items.empty()) return nullptr;
  run.begun += items.size();
  return std::make_shared<BlockFetch>(parts_.worker.store, std::move(items), run.deadline);
}

/// Begins the get on another thread if there is one; finish() does it otherwise.
void LoadPipeline::start(const std::shared_ptr<BlockFetch>& fetch) {
  (void)parts_.worker.executor->submit([fetch] { fetch->run(); });
}

void LoadPipeline::settle(Run& run, BlockFetch& fetch) {
  retry_stale(fetch);
  std::vector<std::size_t> placed;
  placed.reserve(fetch.items().size());
  for (std::size_t i = 0; i < fetch.items().size(); ++i) {
    const BlockFetch::Item& item = fetch.items()[i];
    const Status status = place(run, item, fetch.results()[i]);
    if (status.ok()) {
      placed.push_back(item.wanted);
    } else {
      run.fail(item.wanted, item.key, status);
    }
  }
  // Only now may the staging be used for other blocks.
  const Status flushed = parts_.worker.copier->flush(run.stream);
  for (const std::size_t index : placed) {
    if (!flushed.ok()) {
      run.fail(index, parts_.shards.key(run.block(index)),
               {Code::kUnavailable, "the copy into the page failed: " + flushed.message()});
      continue;
    }
    parts_.recent->saw(run.block(index));
    for (std::size_t t = run.wanted[index].first_task; t != kNone; t = run.next_task[t]) {
      ++run.gained.blocks_loaded;
      run.gained.bytes_loaded += parts_.shards.page_bytes;
    }
  }
}

/// "Said to be there, could not be read" passes: a placement that moved, a lease that lapsed during
/// the transfer. Asked once more, then it is a miss.
void LoadPipeline::retry_stale(BlockFetch& fetch) {
  std::vector<std::size_t> stale;
  for (std::size_t i = 0; i < fetch.results().size(); ++i) {
    if (fetch.results()[i].reaction == Reaction::kStale) stale.push_back(i);
  }
  if (!stale.empty()) fetch.fetch_again(stale);
}

/// Ok: every page that wants the block holds its verified bytes.
Status LoadPipeline::place(Run& run, const BlockFetch::Item& item, const GetResult& result) {
  const BlockHash& block = run.block(item.wanted);
  switch (result.reaction) {
    case Reaction::kOk:
      break;
    case Reaction::kMiss:
    case Reaction::kStale:
      parts_.recent->forget(block);
      ++run.gained.loads_missing;
      return {Code::kMissing, "promised, but not in the store: evicted, or its owner is gone"};
    case Reaction::kCallerBug:
      // The object is larger than any shard of this keyspace can be.
      return reject(run, item, Rejection::kSize);
    case Reaction::kDown:
    case Reaction::kBackOff:
      parts_.recent->clear();
      ++run.gained.loads_unavailable;
      return run.deadline.passed(*parts_.worker.clock)
                 ? Status(Code::kTimedOut, "not answered within the load deadline")
                 : Status(Code::kUnavailable, "the store does not answer");
  }
  const std::span<const std::byte> page = item.page->bytes();
  if (result.bytes > item.object_bytes) return reject(run, item, Rejection::kSize);
  const std::span<const std::byte> object = page.first(result.bytes);
  Rejection rejection = verify_block(parts_.shards.describe(ObjectKind::kShard, block), object);
  if (KVC_PLANTED("skip_verification")) rejection = Rejection::kNone;
  if (rejection != Rejection::kNone) return reject(run, item, rejection);

  const std::span<const std::byte> payload =
      page.subspan(kBlockHeaderBytes, parts_.shards.page_bytes);
  for (std::size_t t = run.wanted[item.wanted].first_task; t != kNone; t = run.next_task[t]) {
    const Status copied =
        parts_.worker.copier->copy_in(parts_.group, run.tasks[t].slot, payload, run.stream);
    if (!copied.ok())
      return {Code::kUnavailable, "the copy into the page failed: " + copied.message()};
  }
  return {};
}

Status LoadPipeline::reject(Run& run, const BlockFetch::Item& item, Rejection rejection) {
  const BlockHash& block = run.block(item.wanted);
  count_rejection(run.gained, rejection);
  parts_.recent->forget(block);
  run.rejected.push_back(block);
  return {Code::kRejected, "the stored bytes were refused (" + std::string(to_string(rejection)) +
                               "); the shard is removed, the next save heals it"};
}

/// Before the failure is told, so that a retry is not promised the same bytes again. What cannot be
/// removed now is removed by the next save of the block.
void LoadPipeline::remove_rejected(Run& run) {
  if (run.rejected.empty()) return;
  for (const BlockHash& block : run.rejected) parts_.broken->add(block);
  if (run.deadline.passed(*parts_.worker.clock)) return;
  std::vector<std::string> keys;
  keys.reserve(run.rejected.size());
  for (const BlockHash& block : run.rejected) keys.push_back(parts_.shards.key(block));
  const std::vector<Reaction> reactions =
      parts_.worker.store->remove(std::move(keys), {.deadline = run.deadline, .hold = nullptr});
  for (std::size_t i = 0; i < run.rejected.size() && i < reactions.size(); ++i) {
    const bool gone = reactions[i] == Reaction::kOk || reactions[i] == Reaction::kMiss;
    if (gone) parts_.broken->remove(run.rejected[i]);
  }
}

void LoadPipeline::report(const Run& run) {
  parts_.counters->update([&gained = run.gained](WorkerStats& stats) {
    add(stats, gained);
    stats.load_latency.add(std::chrono::nanoseconds(gained.load_nanoseconds));
  });
  if (run.failures.empty()) return;
  const LoadFailure& first = run.failures.front();
  log_quietly(*parts_.worker.logger, LogLevel::kWarning,
              std::to_string(run.failures.size()) + " of " + std::to_string(run.tasks.size()) +
                  " promised pages were not loaded, the first from " + first.key + ": " +
                  first.status.to_string());
}

}  // namespace kvc
