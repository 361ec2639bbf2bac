#include "kvc/scheduler.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <limits>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "connector/prefix_lookup.h"
#include "connector/quiet_log.h"
#include "connector/request_tracker.h"
#include "connector/tracked_request.h"
#include "kvc/object_key.h"
#include "replication/replication_policy.h"

namespace kvc {
namespace {

/// Part of the lease for which a promise may be given again without asking the store again; the
/// rest is left for the load.
constexpr int kLeaseShare = 4;

/// Lookups of one step follow each other at once. After such a pause another step has begun, even
/// if no plan was asked for in between.
constexpr Duration kStepPause = std::chrono::milliseconds(100);

Status check(const SchedulerOptions& options) {
  const auto at_least_one = [](std::string name) {
    return invalid(std::move(name) + " is 0: must be at least 1");
  };
  if (options.tokens_per_block == 0) return at_least_one("tokens_per_block");
  if (options.world_size == 0) return at_least_one("world_size");
  if (options.max_tracked_requests == 0) return at_least_one("max_tracked_requests");
  if (!(options.replication.hot_at > 0) || options.replication.half_life <= Duration::zero()) {
    return invalid("replication: hot_at and half_life must be above 0");
  }
  if (options.replication.max_replicas > kReplicasMax) {
    return invalid("replication: max_replicas must be at most " + std::to_string(kReplicasMax));
  }
  if (options.lookup_deadline <= Duration::zero()) {
    return invalid("lookup_deadline is not positive: must be above 0");
  }
  return {};
}

}  // namespace

struct Scheduler::Impl {
  Impl(SchedulerOptions with, const Fingerprint& of_keyspace, std::shared_ptr<Store> on,
       std::shared_ptr<const Clock> time, std::shared_ptr<Logger> log)
      : options(std::move(with)),
        hashing{options.tokens_per_block, options.deployment_secret},
        keyspace(of_keyspace),
        keys(of_keyspace, options.layers == 0 ? Granularity::kBlock : Granularity::kLayer),
        store(std::move(on)),
        clock(std::move(time)),
        logger(std::move(log)),
        tracker(options.max_tracked_requests),
        replication(options.replication, store->capabilities().max_replicas) {}

  Result<Offer> query(RequestId id, const RequestContent& content, std::size_t computed_tokens);
  Promise look_up(const BlockChain& chain, const TrackedRequest::Identity& identity);
  /// The promise of an earlier, still unused query that asked the same a short while ago.
  Promise earlier_promise(RequestId id, const BlockChain& chain,
                          const TrackedRequest::Identity& identity) KVC_EXCLUDES(mutex);
  /// What is left of the step's time for lookups.
  Deadline lookup_deadline(Instant now) KVC_EXCLUDES(mutex);
  /// The leading blocks of `available` that the step's loads have room for.
  std::size_t within_budget(std::size_t available) KVC_REQUIRES(mutex);
  bool track(RequestId id, TrackedRequest request, std::size_t offered_blocks) KVC_EXCLUDES(mutex);
  void forget(RequestId id) KVC_EXCLUDES(mutex);
  void drop(RequestId id) KVC_REQUIRES(mutex);
  void begin_step() KVC_REQUIRES(mutex);
  void count_lookup(std::size_t wanted, const PrefixLookup& found, Duration took)
      KVC_EXCLUDES(mutex);

  bool allocated(RequestId id, std::span<const SlotIndex> slots) KVC_EXCLUDES(mutex);
  void plan_loads(std::span<const StepRequest> batch, StepPlan* plan) KVC_REQUIRES(mutex);
  void plan_saves(std::span<const StepRequest> batch, StepPlan* plan) KVC_REQUIRES(mutex);
  void plan_copies(StepPlan* plan) KVC_REQUIRES(mutex);

  const SchedulerOptions options;
  const BlockHashOptions hashing;
  const Fingerprint keyspace;
  const ObjectKeys keys;
  const std::shared_ptr<Store> store;
  const std::shared_ptr<const Clock> clock;
  const std::shared_ptr<Logger> logger;

  mutable Mutex mutex;
  RequestTracker tracker KVC_GUARDED_BY(mutex);
  ReplicationPolicy replication KVC_GUARDED_BY(mutex);
  std::vector<RequestId> owing_loads KVC_GUARDED_BY(mutex);  // In the order of allocation.
  std::uint64_t plans KVC_GUARDED_BY(mutex) = 0;
  std::size_t load_budget KVC_GUARDED_BY(mutex) = std::numeric_limits<std::size_t>::max();
  // Since the last plan.
  Duration step_lookup_time KVC_GUARDED_BY(mutex){0};
  std::size_t step_promised KVC_GUARDED_BY(mutex) = 0;  // In blocks.
  Instant last_lookup KVC_GUARDED_BY(mutex){};
  bool store_failing KVC_GUARDED_BY(mutex) = false;
  SchedulerStats stats KVC_GUARDED_BY(mutex);
};

Result<Offer> Scheduler::Impl::query(RequestId id, const RequestContent& content,
                                     std::size_t computed_tokens) {
  {
    const MutexLock lock(mutex);
    ++stats.queries;
  }
  if (content.prompt_tokens > content.tokens.size()) {
    forget(id);
    return invalid("request " + std::to_string(id) + " has a prompt of " +
                   std::to_string(content.prompt_tokens) + " tokens, of which " +
                   std::to_string(content.tokens.size()) + " were given");
  }
  Result<BlockChain> chain = BlockChain::create(hashing, content.scope, content.media);
  Status named = chain.ok() ? chain->append(content.tokens) : chain.status();
  if (!named.ok()) {
    forget(id);
    return named;
  }
  TrackedRequest::Identity identity{content.scope, content.media, content.prompt_tokens,
                                    computed_tokens};
  Promise promise = earlier_promise(id, *chain, identity);
  if (promise.blocks.empty()) promise = look_up(*chain, identity);
  TrackedRequest request(hashing, std::move(chain).value(), std::move(identity));
  request.set_promise(promise);
  const std::size_t blocks = promise.blocks.size();
  if (!track(id, std::move(request), blocks)) return Offer{};
  return Offer{blocks, blocks * options.tokens_per_block};
}

Promise Scheduler::Impl::look_up(const BlockChain& chain,
                                 const TrackedRequest::Identity& identity) {
  const std::size_t block_tokens = options.tokens_per_block;
  const std::size_t first =
      identity.computed_tokens / block_tokens + (identity.computed_tokens % block_tokens != 0);
  // At least one token of the prompt is left to compute.
  const std::size_t end =
      identity.prompt_tokens == 0 ? 0 : (identity.prompt_tokens - 1) / block_tokens;
  const std::size_t wanted = end - std::min(first, end);
  if (identity.computed_tokens % block_tokens != 0) {
    const MutexLock lock(mutex);
    ++stats.lookups_unaligned;
    stats.blocks_looked_up += wanted;
    stats.blocks_missed_unaligned += wanted;
    return {};
  }
  if (wanted == 0) return {};
  const Instant asked_at = clock->now();
  const Deadline deadline = lookup_deadline(asked_at);
  const ProbeOptions probing{.world_size = options.world_size,
                             .atomic_publish = store->capabilities().atomic_publish,
                             .layers = options.layers};
  const PrefixLookup found = look_up_prefix(*store, *clock, probing, keys,
                                            chain.blocks().subspan(first, wanted), deadline);
  const Instant answered_at = clock->now();
  count_lookup(wanted, found, answered_at - asked_at);
  const MutexLock lock(mutex);
  step_lookup_time += answered_at - asked_at;
  // One without time asks nothing, and must not put off the next step.
  if (deadline.at > asked_at) last_lookup = answered_at;
  return {.blocks = {first, first + within_budget(found.available_blocks)}, .probed_at = asked_at};
}

Deadline Scheduler::Impl::lookup_deadline(Instant now) {
  const MutexLock lock(mutex);
  if (now - last_lookup >= kStepPause) begin_step();
  return {now + std::max(options.lookup_deadline - step_lookup_time, Duration::zero())};
}

std::size_t Scheduler::Impl::within_budget(std::size_t available) {
  const std::size_t room = load_budget - std::min(load_budget, step_promised);
  if (available <= room) return available;
  ++stats.lookups_over_budget;
  stats.blocks_missed_over_budget += available - room;
  return room;
}

void Scheduler::Impl::begin_step() {
  step_lookup_time = Duration::zero();
  step_promised = 0;
}

void Scheduler::Impl::count_lookup(std::size_t wanted, const PrefixLookup& found, Duration took) {
  const bool failed = found.end == PrefixProbe::End::kStoreError;
  const std::size_t missed = wanted - found.available_blocks;
  bool changed = false;
  {
    const MutexLock lock(mutex);
    stats.lookup_latency.add(took);
    stats.blocks_looked_up += wanted;
    if (failed) {
      ++stats.lookups_failed;
      stats.blocks_missed_store_failed += missed;
    } else if (found.end == PrefixProbe::End::kNoManifest) {
      ++stats.lookups_no_manifest;
      stats.blocks_missed_no_manifest += missed;
    } else if (found.end == PrefixProbe::End::kShardLost) {
      ++stats.lookups_shard_lost;
      stats.blocks_missed_shard_lost += missed;
    }
    changed = failed != store_failing;
    store_failing = failed;
  }
  if (!changed) return;
  if (failed) {
    log_quietly(*logger, LogLevel::kWarning,
                "lookups fail: the store gives no answer in time; requests are computed in full");
  } else {
    log_quietly(*logger, LogLevel::kInfo, "lookups work again");
  }
}

Promise Scheduler::Impl::earlier_promise(RequestId id, const BlockChain& chain,
                                         const TrackedRequest::Identity& identity) {
  const Duration fresh_for = store->capabilities().lease / kLeaseShare;
  const Instant now = clock->now();
  const MutexLock lock(mutex);
  const TrackedRequest* earlier = tracker.find(id);
  if (earlier == nullptr || now - earlier->promise().probed_at >= fresh_for) return {};
  if (!earlier->is_same_question(chain, identity)) return {};
  stats.blocks_looked_up += earlier->promise().blocks.size();
  return earlier->promise();
}

bool Scheduler::Impl::track(RequestId id, TrackedRequest request, std::size_t offered_blocks) {
  const MutexLock lock(mutex);
  drop(id);
  if (!tracker.insert(id, std::move(request), plans)) {
    stats.blocks_missed_untracked += offered_blocks;
    return false;
  }
  stats.blocks_offered += offered_blocks;
  step_promised += offered_blocks;
  return true;
}

void Scheduler::Impl::drop(RequestId id) {
  const TrackedRequest* request = tracker.find(id);
  if (request == nullptr) return;
  if (request->owes_loads()) std::erase(owing_loads, id);
  tracker.erase(id);
}

void Scheduler::Impl::forget(RequestId id) {
  const MutexLock lock(mutex);
  drop(id);
}

bool Scheduler::Impl::allocated(RequestId id, std::span<const SlotIndex> slots) {
  const MutexLock lock(mutex);
  TrackedRequest* request = tracker.find(id);
  if (request == nullptr) return false;
  // Once per request, whatever became of its lookups.
  if (replication.enabled() && !request->has_pages()) {
    replication.requested(request->blocks(), clock->now());
  }
  // Room first: once loads are owed, nothing may keep them from the next plan.
  const bool owed_before = request->owes_loads();
  if (!owed_before) owing_loads.push_back(id);
  if (!request->allocated(slots, options.exact_pages) && stats.pages_inconsistent++ == 0) {
    log_quietly(*logger, LogLevel::kWarning,
                "request " + std::to_string(id) + " got " + std::to_string(slots.size()) +
                    " pages, which do not fit its prompt at " +
                    std::to_string(options.tokens_per_block) +
                    " tokens a block: such requests are not saved; state the engine's real tokens "
                    "per block");
  }
  if (!request->owes_loads()) std::erase(owing_loads, id);
  return true;
}

void Scheduler::Impl::plan_loads(std::span<const StepRequest> batch, StepPlan* plan) {
  plan->loads_in_batch = true;
  for (const RequestId id : owing_loads) {
    TrackedRequest* request = tracker.find(id);
    if (request == nullptr) continue;
    const bool in_batch = std::ranges::any_of(batch, [id](const StepRequest& step) {
      return step.id == id && step.is_new && step.scheduled_tokens > 0;
    });
    plan->loads_in_batch = plan->loads_in_batch && in_batch;
    request->take_loads(id, &plan->loads);
  }
  owing_loads.clear();
}

void Scheduler::Impl::plan_saves(std::span<const StepRequest> batch, StepPlan* plan) {
  for (const StepRequest& step : batch) {
    if (TrackedRequest* request = tracker.find(step.id)) request->report(step, &plan->saves);
  }
}

void Scheduler::Impl::plan_copies(StepPlan* plan) {
  if (!replication.enabled()) return;
  plan->hot = replication.choose(plan->loads, plan->saves, clock->now());
  stats.blocks_hot += plan->hot.size();
}

Scheduler::Scheduler(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Scheduler::~Scheduler() = default;

Result<std::unique_ptr<Scheduler>> Scheduler::create(SchedulerOptions options,
                                                     const Fingerprint& keyspace,
                                                     std::shared_ptr<Store> store,
                                                     std::shared_ptr<const Clock> clock,
                                                     std::shared_ptr<Logger> logger) {
  if (Status status = check(options); !status.ok()) return status;
  if (store == nullptr || clock == nullptr || logger == nullptr) {
    return invalid("a scheduler needs a store, a clock and a logger");
  }
  return std::unique_ptr<Scheduler>(new Scheduler(std::make_unique<Impl>(
      std::move(options), keyspace, std::move(store), std::move(clock), std::move(logger))));
}

Result<Offer> Scheduler::query(RequestId id, const RequestContent& content,
                               std::size_t computed_tokens) {
  try {
    return impl_->query(id, content, computed_tokens);
  } catch (const std::exception& error) {
    log_quietly(*impl_->logger, LogLevel::kError, error.what());
  }
  impl_->forget(id);
  return Offer{};
}

bool Scheduler::allocated(RequestId id, std::span<const SlotIndex> slots) {
  try {
    return impl_->allocated(id, slots);
  } catch (const std::exception& error) {
    log_quietly(*impl_->logger, LogLevel::kError, error.what());
  }
  impl_->forget(id);
  return false;
}

StepPlan Scheduler::plan_step(std::span<const StepRequest> batch) {
  StepPlan plan;
  plan.keyspace = impl_->keyspace;
  const MutexLock lock(impl_->mutex);
  ++impl_->plans;
  impl_->begin_step();
  try {
    impl_->plan_loads(batch, &plan);
    impl_->plan_saves(batch, &plan);
    impl_->plan_copies(&plan);
  } catch (const std::exception& error) {
    log_quietly(*impl_->logger, LogLevel::kError, error.what());
    // What is owed still must not come later, when the pages are others'.
    plan.loads_lost = !impl_->owing_loads.empty();
    impl_->owing_loads.clear();
    // Tokens of this batch may be missing now, and with them the names of later blocks.
    plan.saves.clear();
    for (const StepRequest& step : batch) {
      if (TrackedRequest* request = impl_->tracker.find(step.id)) request->never_save();
    }
  }
  return plan;
}

void Scheduler::finished(RequestId id) { impl_->forget(id); }

void Scheduler::reset(RequestId id) { impl_->forget(id); }

void Scheduler::cancel_load(RequestId id, std::size_t start_tokens) {
  const MutexLock lock(impl_->mutex);
  TrackedRequest* request = impl_->tracker.find(id);
  if (request == nullptr) return;
  request->cancel_from(start_tokens);
  if (!request->owes_loads()) std::erase(impl_->owing_loads, id);
}

void Scheduler::set_load_budget(std::size_t blocks) {
  const MutexLock lock(impl_->mutex);
  impl_->load_budget = blocks;
}

SchedulerStats Scheduler::stats() const {
  const MutexLock lock(impl_->mutex);
  SchedulerStats stats = impl_->stats;
  stats.requests_tracked = impl_->tracker.size();
  stats.requests_forgotten = impl_->tracker.forgotten();
  return stats;
}

}  // namespace kvc
