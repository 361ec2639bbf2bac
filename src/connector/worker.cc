#include "kvc/worker.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/mutex.h"
#include "base/planted.h"
#include "connector/load_pipeline.h"
#include "connector/quiet_log.h"
#include "connector/replica_raiser.h"
#include "connector/save_pipeline.h"
#include "connector/staging_plan.h"

namespace kvc {
namespace {

constexpr Duration kFarewell = std::chrono::seconds(1);

Status check(const WorkerOptions& options) {
  if (options.world_size == 0) return invalid("world_size is 0: must be at least 1");
  if (options.rank >= options.world_size) {
    return invalid("rank is " + std::to_string(options.rank) + ": must be below world_size " +
                   std::to_string(options.world_size));
  }
  if (options.tokens_per_block == 0) return invalid("tokens_per_block is 0: must be at least 1");
  if (options.batch_blocks == 0) return invalid("batch_blocks is 0: must be at least 1");
  if (options.batch_bytes == 0) return invalid("batch_bytes is 0: must be at least 1");
  if (options.load_deadline <= Duration::zero()) {
    return invalid("load_deadline is not positive: must be above 0");
  }
  if (options.save_deadline <= Duration::zero()) {
    return invalid("save_deadline is not positive: must be above 0");
  }
  return {};
}

}  // namespace

struct Worker::Impl {
  /// All that depends on the pool; set once.
  struct Ready {
    Fingerprint keyspace{};
    RankShards shards;
    std::size_t slots = 0;
    std::shared_ptr<StagingArea> area;
    std::vector<std::shared_ptr<StagingPool>> pools;
    std::unique_ptr<LoadPipeline> loads;
    std::shared_ptr<SavePipeline> saves;
    std::shared_ptr<HotBlocks> hot;
    std::shared_ptr<ReplicaRaiser> raiser;
  };

  Impl(const WorkerOptions& with, WorkerParts of)
      : options(with), parts(std::move(of)), counters(std::make_shared<WorkerCounters>()) {}

  Status register_layout(const Fingerprint& keyspace, const PagedLayout& layout);
  std::shared_ptr<Ready> make_ready(const Fingerprint& keyspace, const PageGroup& group,
                                    const StagingPlan& staging, std::shared_ptr<StagingArea> area);

  std::vector<LoadFailure> load(const StepPlan& bound, const Ready* with, StreamHandle stream);
  std::vector<PageTask> loadable(const StepPlan& bound, const Ready& with,
                                 std::vector<LoadFailure>* failures);
  void raise_hot(const StepPlan& bound, const Ready& with,
                 const std::vector<LoadFailure>& failures);
  void note_failures(const StepPlan& bound, const std::vector<LoadFailure>& failures);
  void save(const StepPlan& bound, const Ready& with, StreamHandle stream);
  void close(Deadline deadline);

  /// Counts a call of the engine's thread, so that close() does not pull the memory away under it.
  /// Null if closed or without a pool.
  std::shared_ptr<Ready> enter() KVC_EXCLUDES(mutex);
  void leave() KVC_EXCLUDES(mutex);

  const WorkerOptions options;
  const WorkerParts parts;
  const std::shared_ptr<WorkerCounters> counters;

  // The engine's thread only.
  StepPlan plan;
  bool loads_due = false;
  bool saves_due = false;
  /// Of the bound plan: what it computes rests on pages that were not filled.
  std::unordered_set<RequestId> failed_requests;
  std::unordered_set<SlotIndex> failed_slots;

  mutable Mutex mutex;
  CondVar changed;
  std::shared_ptr<Ready> ready KVC_GUARDED_BY(mutex);
  std::size_t calls_inside KVC_GUARDED_BY(mutex) = 0;
  bool closed KVC_GUARDED_BY(mutex) = false;
};

Status Worker::Impl::register_layout(const Fingerprint& keyspace, const PagedLayout& layout) {
  {
    const MutexLock lock(mutex);
    if (closed) return {Code::kUnavailable, "the worker is closed"};
    if (ready != nullptr) return invalid("a KV pool is registered already");
  }
  if (Status status = check_layout(layout); !status.ok()) return status;
  if (layout.groups.size() != 1) {
    return {Code::kUnsupported, "the KV pool has " + std::to_string(layout.groups.size()) +
                                    " layer groups: this version serves one"};
  }
  const PageGroup& group = layout.groups.front();
  const Result<StagingPlan> staging =
      plan_staging(options, page_bytes(group), parts.store->capabilities().atomic_publish);
  if (!staging.ok()) return staging.status();
  const std::size_t object_bytes = kBlockHeaderBytes + page_bytes(group);
  const std::size_t limit = parts.store->capabilities().max_object_bytes;
  if (limit > 0 && object_bytes > limit) {
    return invalid("a block of this cache has " + std::to_string(object_bytes) +
                   " bytes, the store takes at most " + std::to_string(limit) +
                   ": raise its limit, or use smaller blocks");
  }
  Result<std::shared_ptr<StagingArea>> area =
      StagingArea::create(staging->total_bytes(), *parts.copier, *parts.store);
  if (!area.ok()) return area.status();
  std::shared_ptr<Ready> made = make_ready(keyspace, group, *staging, std::move(area).value());
  const MutexLock lock(mutex);
  ready = std::move(made);
  return {};
}

std::shared_ptr<Worker::Impl::Ready> Worker::Impl::make_ready(const Fingerprint& keyspace,
                                                              const PageGroup& group,
                                                              const StagingPlan& staging,
                                                              std::shared_ptr<StagingArea> area) {
  const std::span<std::byte> memory = area->bytes();
  const std::size_t pages_end = staging.pages * staging.page_bytes;
  const std::size_t checks_end = pages_end + staging.check_pages * staging.page_bytes;
  const auto pages = std::make_shared<StagingPool>(area, memory.first(pages_end),
                                                   staging.page_bytes, staging.save_pages);
  const auto checks =
      std::make_shared<StagingPool>(area, memory.subspan(pages_end, checks_end - pages_end),
                                    staging.page_bytes, staging.check_pages);
  const auto markers = std::make_shared<StagingPool>(
      area, memory.subspan(checks_end, staging.markers * staging.marker_bytes),
      staging.marker_bytes, staging.markers);

  const RankShards shards{.keys = ObjectKeys(keyspace),
                          .role = {.rank = options.rank,
                                   .world_size = options.world_size,
                                   .atomic_publish = parts.store->capabilities().atomic_publish},
                          .tokens_per_block = options.tokens_per_block,
                          .page_bytes = page_bytes(group)};
  const PipelineParts common{.worker = parts,
                             .shards = shards,
                             .group = group,
                             .pages = pages,
                             .recent = std::make_shared<RecentShards>(parts.clock),
                             .broken = std::make_shared<BrokenShards>(),
                             .hot = std::make_shared<HotBlocks>(),
                             .counters = counters};
  const std::size_t batch = blocks_per_batch(options, shards.object_bytes());
  const auto saves = std::make_shared<SavePipeline>(
      common, CommitBatch::Pools{.checks = checks, .markers = markers}, batch,
      options.save_deadline);
  return std::make_shared<Ready>(Ready{
      .keyspace = keyspace,
      .shards = shards,
      .slots = page_slots(group),
      .area = std::move(area),
      .pools = {pages, checks, markers},
      .loads = std::make_unique<LoadPipeline>(common, batch, options.load_deadline),
      .saves = saves,
      .hot = common.hot,
      .raiser = std::make_shared<ReplicaRaiser>(
          common, ReplicaRaiserOptions{.bytes_per_second = options.replication_bytes_per_second},
          [saves, most = options.save_queue_bytes / 2] { return saves->queued_bytes() > most; })});
}

std::shared_ptr<Worker::Impl::Ready> Worker::Impl::enter() {
  const MutexLock lock(mutex);
  if (closed || ready == nullptr) return nullptr;
  ++calls_inside;
  return ready;
}

void Worker::Impl::leave() {
  const MutexLock lock(mutex);
  --calls_inside;
  changed.notify_all();
}

std::vector<LoadFailure> Worker::Impl::load(const StepPlan& bound, const Ready* with,
                                            StreamHandle stream) {
  const auto fail_all = [&bound, with](const Status& status) {
    std::vector<LoadFailure> failures;
    const ObjectKeys keys(bound.keyspace);
    for (const PageTask& task : bound.loads) {
      failures.push_back({task.request,
                          with != nullptr ? with->shards.key(task.block) : to_hex(task.block),
                          status});
    }
    return failures;
  };
  if (with == nullptr) {
    return fail_all({Code::kUnavailable, "the worker has no KV pool, or is closed"});
  }
  if (with->keyspace != bound.keyspace) {
    return fail_all(
        {Code::kRejected, "the plan is of keyspace " + to_hex(bound.keyspace) +
                              ", this worker of " + to_hex(with->keyspace) +
                              ": run every rank with the same model, settings and version"});
  }
  try {
    std::vector<LoadFailure> failures;
    const std::vector<PageTask> tasks = loadable(bound, *with, &failures);
    for (LoadFailure& failure : with->loads->load(tasks, stream)) {
      failures.push_back(std::move(failure));
    }
    try {
      raise_hot(bound, *with, failures);
    } catch (const std::exception& error) {
      log_quietly(*parts.logger, LogLevel::kError, error.what());
    }
    return failures;
  } catch (const std::exception& error) {
    // How far it came is not known, so nothing counts as loaded.
    return fail_all({Code::kUnavailable, std::string("the load broke off: ") + error.what()});
  }
}

/// The loads whose page exists and is promised to one block only.
std::vector<PageTask> Worker::Impl::loadable(const StepPlan& bound, const Ready& with,
                                             std::vector<LoadFailure>* failures) {
  std::vector<PageTask> tasks;
  tasks.reserve(bound.loads.size());
  std::unordered_map<SlotIndex, const BlockHash*> block_of;
  block_of.reserve(bound.loads.size());
  for (const PageTask& task : bound.loads) {
    const bool exists = task.slot >= 0 && static_cast<std::size_t>(task.slot) < with.slots;
    if (!exists) {
      counters->update([](WorkerStats& stats) { ++stats.pages_out_of_range; });
      failures->push_back(
          {task.request,
           with.shards.key(task.block),
           {Code::kRejected, "page " + std::to_string(task.slot) + " is not one of the pool's " +
                                 std::to_string(with.slots) + " pages"}});
      continue;
    }
    const auto [at, is_new] = block_of.try_emplace(task.slot, &task.block);
    if (!is_new && *at->second != task.block) {
      failures->push_back({task.request,
                           with.shards.key(task.block),
                           {Code::kRejected, "page " + std::to_string(task.slot) +
                                                 " is promised to two different blocks"}});
      continue;
    }
    tasks.push_back(task);
  }
  return tasks;
}

/// Of the blocks that were loaded and verified, the hot ones get more copies.
void Worker::Impl::raise_hot(const StepPlan& bound, const Ready& with,
                             const std::vector<LoadFailure>& failures) {
  if (bound.hot.empty()) return;
  std::unordered_set<std::string> failed;
  for (const LoadFailure& failure : failures) failed.insert(failure.key);
  std::unordered_set<BlockHash, BlockHashHasher> loaded;
  for (const PageTask& task : bound.loads) {
    if (!failed.contains(with.shards.key(task.block))) loaded.insert(task.block);
  }
  std::vector<HotBlock> hot;
  for (const HotBlock& block : bound.hot) {
    if (block.replicas > 1 && loaded.contains(block.block)) hot.push_back(block);
  }
  with.raiser->raise(hot);
}

void Worker::Impl::note_failures(const StepPlan& bound, const std::vector<LoadFailure>& failures) {
  if (failures.empty() || KVC_PLANTED("save_after_failed_load")) return;
  for (const LoadFailure& failure : failures) failed_requests.insert(failure.request);
  // Which of a request's pages failed is not told apart: none of them is trusted.
  for (const PageTask& task : bound.loads) {
    if (failed_requests.contains(task.request)) failed_slots.insert(task.slot);
  }
}

void Worker::Impl::save(const StepPlan& bound, const Ready& with, StreamHandle stream) {
  std::uint64_t out_of_range = 0;
  std::uint64_t dropped = 0;
  if (with.keyspace != bound.keyspace) {
    dropped = bound.saves.size();
  } else {
    // A request that uses a page which was not filled computed its other pages from it.
    for (const PageTask& task : bound.saves) {
      if (failed_slots.contains(task.slot)) failed_requests.insert(task.request);
    }
    std::vector<PageTask> tasks;
    tasks.reserve(bound.saves.size());
    for (const PageTask& task : bound.saves) {
      if (task.slot < 0 || static_cast<std::size_t>(task.slot) >= with.slots) {
        ++out_of_range;
      } else if (failed_requests.contains(task.request)) {
        ++dropped;
      } else {
        tasks.push_back(task);
      }
    }
    with.hot->note(bound.hot);
    with.saves->save(tasks, stream);
  }
  if (out_of_range == 0 && dropped == 0) return;
  counters->update([out_of_range, dropped](WorkerStats& stats) {
    stats.pages_out_of_range += out_of_range;
    stats.saves_dropped += dropped;
  });
}

void Worker::Impl::close(Deadline deadline) {
  std::shared_ptr<Ready> last;
  bool idle = false;
  {
    const MutexLock lock(mutex);
    if (closed) return;
    closed = true;
    last = std::move(ready);
    ready = nullptr;
    if (last == nullptr) return;
  }
  idle = last->saves->close(deadline);
  (void)last->raiser->close(deadline);  // It uses no staging.
  {
    const MutexLock lock(mutex);
    while (calls_inside > 0 && !deadline.passed(*parts.clock)) {
      changed.wait_until(mutex, deadline.at);
    }
    idle = idle && calls_inside == 0;
  }
  for (const std::shared_ptr<StagingPool>& pool : last->pools) idle = idle && pool->lent() == 0;
  if (const Status status = last->area->close(*parts.store, idle); !status.ok()) {
    log_quietly(*parts.logger, LogLevel::kWarning,
                "the staging memory stays allocated: " + status.to_string());
  }
}

Worker::Worker(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Worker::~Worker() {
  try {
    close(Deadline::after(*impl_->parts.clock, kFarewell));
  } catch (const std::exception& error) {
    log_quietly(*impl_->parts.logger, LogLevel::kError, error.what());
  }
}

Result<std::unique_ptr<Worker>> Worker::create(WorkerOptions options, WorkerParts parts) {
  if (Status status = check(options); !status.ok()) return status;
  if (parts.store == nullptr || parts.executor == nullptr || parts.clock == nullptr ||
      parts.logger == nullptr || parts.copier == nullptr) {
    return invalid("a worker needs a store, an executor, a clock, a logger and a page copier");
  }
  return std::unique_ptr<Worker>(new Worker(std::make_unique<Impl>(options, std::move(parts))));
}

Status Worker::register_layout(const Fingerprint& keyspace, const PagedLayout& layout) {
  try {
    return impl_->register_layout(keyspace, layout);
  } catch (const std::exception& error) {
    return {Code::kExhausted, error.what()};
  }
}

void Worker::bind(StepPlan plan) {
  Impl& impl = *impl_;
  impl.plan = std::move(plan);
  impl.loads_due = !impl.plan.loads.empty();
  impl.saves_due = !impl.plan.saves.empty();
  impl.failed_requests.clear();
  impl.failed_slots.clear();
}

std::vector<LoadFailure> Worker::load(StreamHandle stream) {
  Impl& impl = *impl_;
  if (!std::exchange(impl.loads_due, false)) return {};
  const std::shared_ptr<Impl::Ready> ready = impl.enter();
  std::vector<LoadFailure> failures = impl.load(impl.plan, ready.get(), stream);
  if (ready != nullptr) impl.leave();
  impl.note_failures(impl.plan, failures);
  return failures;
}

void Worker::save(StreamHandle stream) {
  Impl& impl = *impl_;
  if (!std::exchange(impl.saves_due, false)) return;
  const std::shared_ptr<Impl::Ready> ready = impl.enter();
  if (ready == nullptr) return;
  try {
    impl.save(impl.plan, *ready, stream);
  } catch (const std::exception& error) {
    log_quietly(*impl.parts.logger, LogLevel::kError,
                std::string("the saves of a step were lost: ") + error.what());
  }
  impl.leave();
}

bool Worker::drain(Deadline deadline) {
  const std::shared_ptr<Impl::Ready> ready = impl_->enter();
  if (ready == nullptr) return true;
  const bool ended = ready->saves->drain(deadline);
  impl_->leave();
  return ended;
}

std::size_t Worker::load_budget_blocks() const {
  const MutexLock lock(impl_->mutex);
  return impl_->ready == nullptr ? 0 : impl_->ready->loads->budget_blocks();
}

WorkerStats Worker::stats() const {
  WorkerStats stats = impl_->counters->read();
  std::shared_ptr<Impl::Ready> ready;
  {
    const MutexLock lock(impl_->mutex);
    ready = impl_->ready;
  }
  if (ready != nullptr) stats.save_queue_bytes = ready->saves->queued_bytes();
  return stats;
}

void Worker::close(Deadline deadline) { impl_->close(deadline); }

}  // namespace kvc
