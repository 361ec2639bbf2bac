#include "kvc/worker.h"

#include <chrono>
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "base/at_end.h"
#include "connector/quiet_log.h"
#include "connector/worker_impl.h"

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
  std::shared_ptr<Ready> made;
  try {
    made = make_ready(keyspace, group, *staging, area.value());
  } catch (...) {
    (void)area.value()->close(*parts.store, true);
    throw;
  }
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
                "the staging memory stays allocated: ", status.message());
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
  impl.holds_due = !impl.plan.done_holds.empty() || !impl.plan.released.empty() ||
                   impl.plan.live_holds.newest != 0;
  impl.pass_open = true;
  impl.failed_requests.clear();
  impl.failed_slots.clear();
}

std::vector<LoadFailure> Worker::load(StreamHandle stream) {
  Impl& impl = *impl_;
  const bool loads_due = std::exchange(impl.loads_due, false);
  if (!loads_due && !impl.holds_due) return {};
  const std::shared_ptr<Impl::Ready> ready = impl.enter();
  const AtEnd leave([&] {
    if (ready != nullptr) impl.leave();
  });
  std::vector<LoadFailure> failures;
  try {
    if (loads_due) failures = impl.load(impl.plan, ready.get(), stream);
  } catch (const std::bad_alloc&) {
    impl.saves_due = false;
    throw;
  }
  if (ready != nullptr) impl.end_holds(*ready);
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
  const AtEnd leave([&] { impl.leave(); });
  try {
    if (ready->by_layer()) failures = impl.wait_for_layer(*ready, layer);
  } catch (const std::exception& error) {
    impl.saves_due = false;
    ready->loads->end();  // Every later wait says so again.
    failures = impl.fail_all(impl.plan, ready.get(), Impl::broke_off("a load", error));
  }
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
                "a layer was not copied in time: ", error.what());
  }
  impl.leave();
}

std::vector<LoadFailure> Worker::save(StreamHandle stream) {
  Impl& impl = *impl_;
  const bool saves_due = std::exchange(impl.saves_due, false);
  if (!std::exchange(impl.pass_open, false)) return {};
  const std::shared_ptr<Impl::Ready> ready = impl.enter();
  if (ready == nullptr) return impl.end_closed_pass();
  const AtEnd leave([&] {
    ready->saves->forget_snapshots();  // Those of saves that did not come about.
    impl.leave();
  });
  std::vector<LoadFailure> failures;
  try {
    failures = impl.end_pass(*ready);
    impl.note_failures(impl.plan, failures);
    if (saves_due && failures.empty()) impl.save(impl.plan, *ready, stream);
  } catch (const std::exception& error) {
    ready->hooks->end_pass();
    log_quietly(*impl.parts.logger, LogLevel::kError,
                "the saves of a step were lost: ", error.what());
    // What end_pass() has to tell must not be lost, whatever else is.
    if (failures.empty() && !ready->hooks->loads_were_in_time()) {
      failures.push_back(
          {0, "",
           Impl::broke_off("the pass may have read pages that were not filled; its end", error)});
    }
  }
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
