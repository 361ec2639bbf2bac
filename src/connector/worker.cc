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
#include "connector/layer_hooks.h"
#include "connector/load_pipeline.h"
#include "connector/quiet_log.h"
#include "connector/replica_raiser.h"
#include "connector/save_pipeline.h"
#include "connector/stager.h"
#include "connector/staging_plan.h"
#include "connector/tier_loads.h"

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
    std::vector<std::uint32_t> layers;  // Global indices, ascending; none where blocks are whole.
    std::shared_ptr<StagingArea> area;
    std::vector<std::shared_ptr<StagingPool>> pools;
    std::unique_ptr<LoadPipeline> loads;
    std::shared_ptr<SavePipeline> saves;
    std::shared_ptr<LayerHooks> hooks;  // The engine's thread only.
    std::shared_ptr<ReplicaRaiser> raiser;
    PipelineParts common;
    std::shared_ptr<Stager> stager;  // Null unless staged.

    bool by_layer() const { return !layers.empty(); }
    /// The place of a layer in the page; layers.size() if the page does not have it.
    std::size_t place_of(std::uint32_t layer) const {
      const auto at = std::ranges::lower_bound(layers, layer);
      return at != layers.end() && *at == layer ? static_cast<std::size_t>(at - layers.begin())
                                                : layers.size();
    }
  };

  struct Unsaved {
    std::uint64_t out_of_range = 0;
    std::uint64_t dropped = 0;
  };

  Impl(const WorkerOptions& with, WorkerParts of)
      : options(with), parts(std::move(of)), counters(std::make_shared<WorkerCounters>()) {}

  Status register_layout(const Fingerprint& keyspace, const PagedLayout& layout);
  std::shared_ptr<Ready> make_ready(const Fingerprint& keyspace, const PageGroup& group,
                                    const StagingPlan& staging, std::shared_ptr<StagingArea> area);

  std::vector<LoadFailure> load(const StepPlan& bound, const Ready* with, StreamHandle stream);
  std::vector<LoadFailure> run_loads(const StepPlan& bound, const Ready& with, StreamHandle stream);
  std::vector<LoadFailure> failures_of(const LoadRun& failed) const;
  std::vector<LoadFailure> fail_all(const StepPlan& bound, const Ready* with,
                                    const Status& status) const;
  std::vector<PageTask> loadable(const StepPlan& bound, const Ready& with,
                                 std::vector<LoadFailure>* failures);
  void end_holds(const Ready& with);
  void raise_hot(const StepPlan& bound, const Ready& with,
                 const std::vector<LoadFailure>& failures);
  void note_failures(const StepPlan& bound, const std::vector<LoadFailure>& failures);
  std::vector<LoadFailure> wait_for_layer(const Ready& with, std::uint32_t layer);
  void layer_computed(const Ready& with, std::uint32_t layer, StreamHandle stream);
  std::vector<LoadFailure> end_pass(const Ready& with);
  std::vector<LoadFailure> end_closed_pass();
  void drop_told(std::vector<LoadFailure>* failures) const;
  std::vector<PageTask> savable(const StepPlan& bound, const Ready& with, Unsaved* unsaved);
  void save(const StepPlan& bound, const Ready& with, StreamHandle stream);
  void close(Deadline deadline);

  /// Counts a call of the engine's thread, so that close() does not pull the memory away under it.
  /// Null if closed or without a pool.
  std::shared_ptr<Ready> enter() KVC_EXCLUDES(mutex);
  void leave() KVC_EXCLUDES(mutex);
  /// Null unless staged and open.
  std::shared_ptr<Stager> stager() const KVC_EXCLUDES(mutex) {
    const MutexLock lock(mutex);
    return ready == nullptr ? nullptr : ready->stager;
  }

  const WorkerOptions options;
  const WorkerParts parts;
  const std::shared_ptr<WorkerCounters> counters;

  // The engine's thread only.
  StepPlan plan;
  bool loads_due = false;
  bool hot_due = false;  // Loads go on behind the pass, so that more copies wait for its end.
  bool saves_due = false;
  bool holds_due = false;  // To end.
  bool pass_open = false;
  std::shared_ptr<LoadRun> run;  // Of the bound plan, once begun.
  std::shared_ptr<const LayerHooks> hooks_of_run;
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
  PageGroup group = layout.groups.front();
  const bool by_layer = options.granularity == Granularity::kLayer;
  if (by_layer && (group.layer_bytes == 0 || group.layers.empty())) {
    log_quietly(*parts.logger, LogLevel::kWarning,
                "the KV pool does not tell where its layers are: blocks are stored whole");
  }
  // From here on a group that tells is one that is stored so.
  if (!by_layer || group.layers.empty()) group.layer_bytes = 0;
  const auto objects = static_cast<std::uint32_t>(group.layer_bytes == 0 ? 1 : group.layers.size());
  const Result<StagingPlan> staging =
      plan_staging(options, page_bytes(group), parts.store->capabilities().atomic_publish, objects);
  if (!staging.ok()) return staging.status();
  const std::size_t object_bytes = kBlockHeaderBytes + page_bytes(group) / objects;
  const std::size_t limit = parts.store->capabilities().max_object_bytes;
  if (limit > 0 && object_bytes > limit) {
    return invalid("an object of this cache has " + std::to_string(object_bytes) +
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

  const bool by_layer = group.layer_bytes > 0;
  const RankShards shards{
      .keys = ObjectKeys(keyspace, by_layer ? Granularity::kLayer : Granularity::kBlock),
      .role = {.rank = options.replicated ? 0 : options.rank,
               .world_size = options.replicated ? 1 : options.world_size,
               .atomic_publish = parts.store->capabilities().atomic_publish,
               .by_layer = by_layer},
      .tokens_per_block = options.tokens_per_block,
      .page_bytes = page_bytes(group),
      .layers = by_layer ? static_cast<std::uint32_t>(group.layers.size()) : 0,
      .writers = options.replicated ? options.world_size : 1,
      .writer = options.replicated ? options.rank : 0};
  std::vector<PageGroup> part_groups;
  for (std::size_t layer = 0; layer < shards.layers; ++layer) {
    part_groups.push_back(layer_of(group, layer));
  }
  if (!by_layer) part_groups.push_back(group);
  PipelineParts common{.worker = parts,
                       .shards = shards,
                       .groups = std::move(part_groups),
                       .pages = pages,
                       .recent = std::make_shared<RecentShards>(parts.clock),
                       .broken = std::make_shared<BrokenObjects>(),
                       .counters = counters};
  // It works on the parts as they are before there is a tier.
  if (options.staged && !by_layer) {
    common.stager = std::make_shared<Stager>(
        common, blocks_per_batch(options, shards.object_bytes()), options.load_deadline);
  }
  const std::size_t objects = blocks_per_batch(options, shards.object_bytes());
  const std::size_t blocks = blocks_per_batch(options, shards.object_bytes() * shards.parts());
  const auto saves = std::make_shared<SavePipeline>(
      common, CommitBatch::Pools{.checks = checks, .markers = markers}, blocks,
      options.save_deadline);
  return std::make_shared<Ready>(Ready{
      .keyspace = keyspace,
      .shards = shards,
      .slots = page_slots(group),
      .layers = by_layer ? group.layers : std::vector<std::uint32_t>{},
      .area = std::move(area),
      .pools = {pages, checks, markers},
      .loads = std::make_unique<LoadPipeline>(common, objects, options.load_deadline),
      .saves = saves,
      .hooks = std::make_shared<LayerHooks>(shards.layers),
      .raiser = std::make_shared<ReplicaRaiser>(
          common, ReplicaRaiserOptions{.bytes_per_second = options.replication_bytes_per_second},
          [saves, most = options.save_queue_bytes / 2] { return saves->queued_bytes() > most; }),
      .common = common,
      .stager = common.stager});
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

std::vector<LoadFailure> Worker::Impl::fail_all(const StepPlan& bound, const Ready* with,
                                                const Status& status) const {
  std::vector<LoadFailure> failures;
  failures.reserve(bound.loads.size());
  for (const PageTask& task : bound.loads) {
    failures.push_back({task.request,
                        with != nullptr ? with->shards.key(task.block, 0) : to_hex(task.block),
                        status});
  }
  return failures;
}

std::vector<LoadFailure> Worker::Impl::load(const StepPlan& bound, const Ready* with,
                                            StreamHandle stream) {
  if (bound.loads_lost) {
    const Status lost(Code::kUnavailable, "promised loads of this step could not be planned");
    std::vector<LoadFailure> failures = fail_all(bound, with, lost);
    failures.push_back({0, "", lost});
    return failures;
  }
  if (with == nullptr) {
    return fail_all(bound, with, {Code::kUnavailable, "the worker has no KV pool, or is closed"});
  }
  if (with->keyspace != bound.keyspace) {
    return fail_all(
        bound, with,
        {Code::kRejected, "the plan is of keyspace " + to_hex(bound.keyspace) +
                              ", this worker of " + to_hex(with->keyspace) +
                              ": run every rank with the same model, settings and version"});
  }
  try {
    return run_loads(bound, *with, stream);
  } catch (const std::exception& error) {
    // How far it came is not known, so nothing counts as loaded.
    return fail_all(bound, with,
                    {Code::kUnavailable, std::string("the load broke off: ") + error.what()});
  }
}

std::vector<LoadFailure> Worker::Impl::run_loads(const StepPlan& bound, const Ready& with,
                                                 StreamHandle stream) {
  std::vector<LoadFailure> failures;
  const std::vector<PageTask> tasks = loadable(bound, with, &failures);
  if (with.stager == nullptr) {
    run = with.loads->begin(tasks, stream);
  } else {
    TierLoads tier(with.common, tasks);
    run = with.loads->begin(tier.others(), stream);
    for (LoadFailure& failure : tier.copy(bound.done_holds, stream)) {
      failures.push_back(std::move(failure));
    }
  }
  hooks_of_run = with.hooks;
  const bool overlap = with.by_layer() && options.overlap_loads && bound.loads_in_batch &&
                       failures.empty() && with.hooks->trusted();
  if (overlap) {
    run->start();
  } else if (!run->wait(with.shards.parts() - 1)) {
    for (LoadFailure& failure : failures_of(*run)) failures.push_back(std::move(failure));
  }
  with.hooks->begin_pass(true, run->parts_in_place());
  hot_due = overlap;
  if (!overlap) raise_hot(bound, with, failures);
  return failures;
}

std::vector<LoadFailure> Worker::Impl::failures_of(const LoadRun& failed) const {
  std::vector<LoadFailure> failures = failed.failures();
  if (!failures.empty() || failed.is_complete()) return failures;
  // It broke off, was ended early, or the worker was closed under it.
  return fail_all(plan, nullptr, {Code::kUnavailable, "it broke off"});
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
           with.shards.key(task.block, 0),
           {Code::kRejected, "page " + std::to_string(task.slot) + " is not one of the pool's " +
                                 std::to_string(with.slots) + " pages"}});
      continue;
    }
    const auto [at, is_new] = block_of.try_emplace(task.slot, &task.block);
    if (!is_new && *at->second != task.block) {
      failures->push_back({task.request,
                           with.shards.key(task.block, 0),
                           {Code::kRejected, "page " + std::to_string(task.slot) +
                                                 " is promised to two different blocks"}});
      continue;
    }
    tasks.push_back(task);
  }
  return tasks;
}

/// After the copies of the plan's loads are complete, or if they will not be made.
void Worker::Impl::end_holds(const Ready& with) {
  if (!std::exchange(holds_due, false) || with.stager == nullptr) return;
  for (const HoldId hold : plan.done_holds) with.stager->release({.hold = hold, .from_block = 0});
  for (const HoldRelease& release : plan.released) with.stager->release(release);
}

/// Of the blocks that were loaded and verified, the hot ones get more copies. Never fails the load.
void Worker::Impl::raise_hot(const StepPlan& bound, const Ready& with,
                             const std::vector<LoadFailure>& failures) try {
  if (bound.hot.empty()) return;
  std::unordered_set<std::string> failed;
  for (const LoadFailure& failure : failures) failed.insert(failure.key);
  std::unordered_set<BlockHash, BlockHashHasher> loaded;
  for (const PageTask& task : bound.loads) {
    bool whole = true;
    for (std::uint32_t part = 0; !failed.empty() && part < with.shards.parts(); ++part) {
      whole = whole && !failed.contains(with.shards.key(task.block, part));
    }
    if (whole) loaded.insert(task.block);
  }
  std::vector<HotBlock> hot;
  for (const HotBlock& block : bound.hot) {
    const bool ours = block.replicas > 1 && with.shards.stores(block.block);
    if (ours && loaded.contains(block.block)) hot.push_back(block);
  }
  with.raiser->raise(hot);
} catch (const std::exception& error) {
  log_quietly(*parts.logger, LogLevel::kError, error.what());
}

void Worker::Impl::note_failures(const StepPlan& bound, const std::vector<LoadFailure>& failures) {
  if (failures.empty() || KVC_PLANTED("save_after_failed_load")) return;
  for (const LoadFailure& failure : failures) failed_requests.insert(failure.request);
  // Which of a request's pages failed is not told apart: none of them is trusted.
  for (const PageTask& task : bound.loads) {
    if (failed_requests.contains(task.request)) failed_slots.insert(task.slot);
  }
}

std::vector<LoadFailure> Worker::Impl::wait_for_layer(const Ready& with, std::uint32_t layer) {
  const std::size_t place = with.place_of(layer);
  if (place == with.layers.size()) return {};
  std::vector<LoadFailure> failures;
  if (run != nullptr && !run->wait(static_cast<std::uint32_t>(place))) {
    failures = failures_of(*run);
    // The pages of whatever request has not failed are complete.
    for (std::size_t later = place + 1; later < with.layers.size(); ++later) {
      with.hooks->waited(later);
    }
  }
  with.hooks->waited(place);
  return failures;
}

void Worker::Impl::layer_computed(const Ready& with, std::uint32_t layer, StreamHandle stream) {
  const std::size_t place = with.place_of(layer);
  // Copies out of order would be made once more.
  if (!with.hooks->computed(place) || !saves_due || !failed_requests.empty()) return;
  Unsaved unsaved;
  with.saves->snapshot(savable(plan, with, &unsaved), static_cast<std::uint32_t>(place), stream);
}

/// The pages that the pass has read although they may not have been filled, if it has. No page of
/// the plan is written from here on.
std::vector<LoadFailure> Worker::Impl::end_pass(const Ready& with) {
  with.loads->end();
  const std::shared_ptr<LoadRun> ended = std::exchange(run, nullptr);
  const bool had_loads = ended != nullptr;
  std::vector<LoadFailure> failures;
  if (had_loads && !with.hooks->loads_were_in_time()) {
    failures = fail_all(
        plan, &with,
        {Code::kUnavailable,
         "the pass did not wait for layer " +
             std::to_string(with.layers[with.hooks->first_not_in_time()]) +
             " and may have read pages that were not filled; loads are complete before later "
             "passes begin, until one waits for every layer"});
    drop_told(&failures);
  }
  if (!failures.empty()) {
    log_quietly(*parts.logger, LogLevel::kError, failures.front().status.to_string());
    counters->update(
        [&failures](WorkerStats& stats) { stats.loads_unavailable += failures.size(); });
  }
  const bool all_loaded = had_loads && ended->parts_in_place() == with.shards.parts();
  if (std::exchange(hot_due, false) && all_loaded) raise_hot(plan, with, {});
  with.hooks->end_pass();
  return failures;
}

/// As end_pass(), of a worker that was closed under the pass.
std::vector<LoadFailure> Worker::Impl::end_closed_pass() {
  const std::shared_ptr<LoadRun> ended = std::exchange(run, nullptr);
  if (ended == nullptr || hooks_of_run->loads_were_in_time()) return {};
  std::vector<LoadFailure> failures = fail_all(
      plan, nullptr,
      {Code::kUnavailable, "the worker was closed before the pass had waited for every layer"});
  drop_told(&failures);
  return failures;
}

void Worker::Impl::drop_told(std::vector<LoadFailure>* failures) const {
  std::erase_if(*failures, [this](const LoadFailure& failure) {
    return failed_requests.contains(failure.request);
  });
}

/// The saves of pages that exist and hold what they should.
std::vector<PageTask> Worker::Impl::savable(const StepPlan& bound, const Ready& with,
                                            Unsaved* unsaved) {
  std::vector<PageTask> tasks;
  if (with.keyspace != bound.keyspace) {
    unsaved->dropped = bound.saves.size();
    return tasks;
  }
  // A request that uses a page which was not filled computed its other pages from it.
  for (const PageTask& task : bound.saves) {
    if (failed_slots.contains(task.slot)) failed_requests.insert(task.request);
  }
  tasks.reserve(bound.saves.size());
  for (const PageTask& task : bound.saves) {
    if (!with.shards.stores(task.block)) continue;
    if (task.slot < 0 || static_cast<std::size_t>(task.slot) >= with.slots) {
      ++unsaved->out_of_range;
    } else if (failed_requests.contains(task.request)) {
      ++unsaved->dropped;
    } else {
      tasks.push_back(task);
    }
  }
  return tasks;
}

void Worker::Impl::save(const StepPlan& bound, const Ready& with, StreamHandle stream) {
  Unsaved unsaved;
  const std::vector<PageTask> tasks = savable(bound, with, &unsaved);
  if (!failed_requests.empty()) with.saves->forget_snapshots();
  if (!with.hooks->computed_in_order()) with.saves->distrust_snapshots();
  with.saves->save(tasks, bound.hot, stream);
  if (unsaved.out_of_range == 0 && unsaved.dropped == 0) return;
  counters->update([&unsaved](WorkerStats& stats) {
    stats.pages_out_of_range += unsaved.out_of_range;
    stats.saves_dropped += unsaved.dropped;
  });
}

void Worker::Impl::close(Deadline deadline) {
  std::shared_ptr<Ready> last;
  bool idle = false;
  bool left = false;
  {
    const MutexLock lock(mutex);
    if (closed) return;
    closed = true;
    last = std::move(ready);
    ready = nullptr;
    if (last == nullptr) return;
  }
  idle = last->loads->close(deadline);
  if (last->stager != nullptr) idle = last->stager->close(deadline) && idle;
  idle = last->saves->close(deadline) && idle;
  (void)last->raiser->close(deadline);  // It uses no staging.
  {
    const MutexLock lock(mutex);
    while (calls_inside > 0 && !deadline.passed(*parts.clock)) {
      changed.wait_until(mutex, deadline.at);
    }
    left = calls_inside == 0;
  }
  // Nobody comes in any more, so that a pass that is under way can give its staging back.
  if (left) last->saves->forget_snapshots();
  idle = idle && left;
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
  impl.run = nullptr;
  impl.hooks_of_run = nullptr;
  if (const std::shared_ptr<Impl::Ready> ready = impl.enter()) {
    // The pass before may have failed half way.
    ready->loads->end();
    ready->saves->forget_snapshots();
    ready->hooks->begin_pass(false, ready->layers.size());
    impl.end_holds(*ready);  // Of a plan whose loads were not asked for.
    impl.leave();
  }
  impl.plan = std::move(plan);
  impl.loads_due = !impl.plan.loads.empty() || impl.plan.loads_lost;
  impl.saves_due = !impl.plan.saves.empty();
  impl.holds_due = !impl.plan.done_holds.empty() || !impl.plan.released.empty();
  impl.pass_open = true;
  impl.failed_requests.clear();
  impl.failed_slots.clear();
}

std::vector<LoadFailure> Worker::load(StreamHandle stream) {
  Impl& impl = *impl_;
  const bool loads_due = std::exchange(impl.loads_due, false);
  if (!loads_due && !impl.holds_due) return {};
  const std::shared_ptr<Impl::Ready> ready = impl.enter();
  std::vector<LoadFailure> failures;
  if (loads_due) failures = impl.load(impl.plan, ready.get(), stream);
  if (ready != nullptr) {
    impl.end_holds(*ready);
    impl.leave();
  }
  impl.note_failures(impl.plan, failures);
  return failures;
}

std::vector<LoadFailure> Worker::wait_for_layer(std::uint32_t layer, StreamHandle) {
  Impl& impl = *impl_;
  const std::shared_ptr<Impl::Ready> ready = impl.enter();
  std::vector<LoadFailure> failures;
  if (ready == nullptr) {
    if (impl.run != nullptr) failures = impl.failures_of(*impl.run);
    impl.note_failures(impl.plan, failures);
    return failures;
  }
  try {
    if (ready->by_layer()) failures = impl.wait_for_layer(*ready, layer);
  } catch (const std::exception& error) {
    failures =
        impl.fail_all(impl.plan, ready.get(),
                      {Code::kUnavailable, std::string("a load broke off: ") + error.what()});
  }
  impl.leave();
  impl.note_failures(impl.plan, failures);
  return failures;
}

void Worker::layer_computed(std::uint32_t layer, StreamHandle stream) {
  Impl& impl = *impl_;
  const std::shared_ptr<Impl::Ready> ready = impl.enter();
  if (ready == nullptr) return;
  try {
    if (ready->by_layer()) impl.layer_computed(*ready, layer, stream);
  } catch (const std::exception& error) {
    ready->saves->forget_snapshots();
    log_quietly(*impl.parts.logger, LogLevel::kError,
                std::string("a layer was not copied in time: ") + error.what());
  }
  impl.leave();
}

std::vector<LoadFailure> Worker::save(StreamHandle stream) {
  Impl& impl = *impl_;
  const bool saves_due = std::exchange(impl.saves_due, false);
  if (!std::exchange(impl.pass_open, false)) return {};
  const std::shared_ptr<Impl::Ready> ready = impl.enter();
  if (ready == nullptr) return impl.end_closed_pass();
  std::vector<LoadFailure> failures;
  try {
    failures = impl.end_pass(*ready);
    impl.note_failures(impl.plan, failures);
    if (saves_due && failures.empty()) impl.save(impl.plan, *ready, stream);
  } catch (const std::exception& error) {
    ready->hooks->end_pass();
    // What end_pass() has to tell must not be lost, whatever else is.
    if (failures.empty() && !ready->hooks->loads_were_in_time()) {
      failures.push_back({0,
                          "",
                          {Code::kUnavailable,
                           std::string("the pass may have read pages that were not filled; its end "
                                       "broke off: ") +
                               error.what()}});
    }
    log_quietly(*impl.parts.logger, LogLevel::kError,
                std::string("the saves of a step were lost: ") + error.what());
  }
  ready->saves->forget_snapshots();  // Those of saves that did not come about.
  impl.leave();
  return failures;
}

void Worker::end_loads() {
  const std::shared_ptr<Impl::Ready> ready = impl_->enter();
  if (ready == nullptr) return;  // Closed: close() has ended them.
  // The run stays, so that whoever goes on with the pass all the same is told.
  ready->loads->end();
  impl_->leave();
}

std::uint32_t Worker::layers_stored_apart() const {
  const MutexLock lock(impl_->mutex);
  return impl_->ready == nullptr ? 0 : impl_->ready->shards.layers;
}

bool Worker::drain(Deadline deadline) {
  const std::shared_ptr<Impl::Ready> ready = impl_->enter();
  if (ready == nullptr) return true;
  const bool ended = ready->saves->drain(deadline);
  impl_->leave();
  return ended;
}

std::shared_ptr<StageRank> Worker::stage_rank() const {
  const std::shared_ptr<Stager> stager = impl_->stager();
  return stager == nullptr ? nullptr : make_stage_rank(stager);
}

std::size_t Worker::resident_prefix(std::span<const BlockHash> blocks) const {
  const std::shared_ptr<Stager> stager = impl_->stager();
  return stager == nullptr ? 0 : stager->resident_prefix(blocks);
}

std::size_t Worker::stage_room_blocks() const {
  const std::shared_ptr<Stager> stager = impl_->stager();
  return stager == nullptr ? 0 : stager->room_blocks();
}

std::uint64_t Worker::stage_bytes_per_second() const {
  const std::shared_ptr<Stager> stager = impl_->stager();
  return stager == nullptr ? 0 : stager->bytes_per_second();
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
  if (ready != nullptr && ready->stager != nullptr) ready->stager->read(stats);
  return stats;
}

void Worker::close(Deadline deadline) { impl_->close(deadline); }

}  // namespace kvc
