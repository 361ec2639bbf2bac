#include "kvc/scheduler.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <limits>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "connector/decision_log.h"
#include "connector/lease_keeper.h"
#include "connector/load_decision.h"
#include "connector/prefix_lookup.h"
#include "connector/quiet_log.h"
#include "connector/request_tracker.h"
#include "connector/tracked_request.h"
#include "keyspace/chain_cache.h"
#include "kvc/object_key.h"
#include "kvc/stage_leader.h"
#include "replication/replication_policy.h"

namespace kvc {
namespace {

/// Part of the lease for which a promise may be given again without asking the store again; the
/// rest is left for the load.
constexpr int kLeaseShare = 4;

/// Lookups of one step follow each other at once. After such a pause another step has begun, even
/// if no plan was asked for in between.
constexpr Duration kStepPause = std::chrono::milliseconds(100);

/// Of requests that are over, for the names of the next ones: 16 MB, and 4 MB of names at 32 tokens
/// a block.
constexpr std::size_t kTokensKept = std::size_t{4} << 20;

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
  if (options.stage_leader == nullptr) return {};
  if (options.layers != 0) {
    return invalid("blocks that are stored layer by layer cannot be staged: use leased promises");
  }
  const std::uint32_t ranks = options.stage_leader->world_size();
  if (ranks != options.world_size && options.world_size != 1) {
    return invalid("the stage leader has " + std::to_string(ranks) + " ranks, blocks have " +
                   std::to_string(options.world_size) + " shards: must be as many, or 1");
  }
  return {};
}

/// The counter of each reason to miss; null where nothing can be missed for it.
constexpr auto kMissCounters = [] {
  std::array<std::uint64_t SchedulerStats::*, kPrefixEnds> counters{};
  const auto of = [&](PrefixEnd end) -> auto& { return counters[static_cast<std::size_t>(end)]; };
  of(PrefixEnd::kNoManifest) = &SchedulerStats::blocks_missed_no_manifest;
  of(PrefixEnd::kShardLost) = &SchedulerStats::blocks_missed_shard_lost;
  of(PrefixEnd::kStoreFailed) = &SchedulerStats::blocks_missed_store_failed;
  of(PrefixEnd::kOverBudget) = &SchedulerStats::blocks_missed_over_budget;
  of(PrefixEnd::kUnaligned) = &SchedulerStats::blocks_missed_unaligned;
  of(PrefixEnd::kUntracked) = &SchedulerStats::blocks_missed_untracked;
  of(PrefixEnd::kRejected) = &SchedulerStats::blocks_missed_rejected;
  of(PrefixEnd::kLate) = &SchedulerStats::blocks_missed_late;
  of(PrefixEnd::kNoRoom) = &SchedulerStats::blocks_missed_no_room;
  of(PrefixEnd::kUnavailable) = &SchedulerStats::blocks_missed_rank_unavailable;
  of(PrefixEnd::kRecomputeCheaper) = &SchedulerStats::blocks_missed_recompute_cheaper;
  of(PrefixEnd::kBelowMinimum) = &SchedulerStats::blocks_missed_below_minimum;
  return counters;
}();

PrefixEnd end_of(PrefixProbe::End end) {
  switch (end) {
    case PrefixProbe::End::kNoManifest:
      return PrefixEnd::kNoManifest;
    case PrefixProbe::End::kShardLost:
      return PrefixEnd::kShardLost;
    case PrefixProbe::End::kPending:
    case PrefixProbe::End::kAll:
    case PrefixProbe::End::kStoreError:
      break;
  }
  return PrefixEnd::kStoreFailed;
}

PrefixEnd end_of(StageEnd end) {
  switch (end) {
    case StageEnd::kMissing:
      return PrefixEnd::kShardLost;
    case StageEnd::kRejected:
      return PrefixEnd::kRejected;
    case StageEnd::kNoRoom:
      return PrefixEnd::kNoRoom;
    case StageEnd::kLate:
      return PrefixEnd::kLate;
    case StageEnd::kAll:
    case StageEnd::kUnavailable:
      break;
  }
  return PrefixEnd::kUnavailable;
}

/// A promise whose leases are to be renewed.
struct Renewal {
  RequestId request = 0;
  std::vector<BlockHash> blocks;
};

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
        leader(options.stage_leader.get()),
        tracker(options.max_tracked_requests),
        leases({.lease = leader == nullptr ? store->capabilities().lease : Duration::zero()}),
        chains(hashing, kTokensKept),
        replication(options.replication, store->capabilities().max_replicas),
        decisions(options.explained_requests) {}

  Result<Offer> query(RequestId id, const RequestContent& content, std::size_t computed_tokens);
  /// The names of a prompt. What was hashed for an earlier one is compared and not hashed again.
  Result<BlockChain> name(RequestId id, const RequestContent& content) KVC_EXCLUDES(mutex);
  Promise look_up(const BlockChain& chain, const TrackedRequest::Identity& identity,
                  Decision* decision) KVC_EXCLUDES(mutex);
  /// Cuts what is offered of `blocks` to what is in rank 0's memory or, after that, in the store.
  void probe(std::span<const BlockHash> blocks, Deadline deadline, Decision* decision)
      KVC_EXCLUDES(mutex);
  /// Cuts it to what is worth its load.
  void decide(Decision* decision, Instant now) KVC_EXCLUDES(mutex);
  /// Cuts it to what all ranks have staged of `blocks` in time; the hold of that.
  HoldId stage(std::span<const BlockHash> blocks, Deadline deadline, Decision* decision)
      KVC_EXCLUDES(mutex);
  /// The promise of an earlier, still unused query that asked the same: of a short while ago, or
  /// held since. Its hold is the caller's from here on.
  Promise earlier_promise(RequestId id, const BlockChain& chain,
                          const TrackedRequest::Identity& identity, Decision* decision)
      KVC_EXCLUDES(mutex);
  /// What is left of the step's time for lookups.
  Deadline lookup_deadline(Instant now) KVC_EXCLUDES(mutex);
  /// The blocks that the step's loads have room for.
  std::size_t load_room() KVC_EXCLUDES(mutex);
  void track(RequestId id, TrackedRequest request, Decision* decision) KVC_EXCLUDES(mutex);
  void forget(RequestId id) KVC_EXCLUDES(mutex);
  void drop(RequestId id) KVC_REQUIRES(mutex);
  void begin_step() KVC_REQUIRES(mutex);
  /// Lets go what the request cannot need any more of its hold.
  void trim_hold(TrackedRequest& request) KVC_REQUIRES(mutex);
  ProbeOptions probing() const;
  /// What is to be renewed now, within the bound of a round.
  std::vector<Renewal> due_renewals() KVC_EXCLUDES(mutex);
  /// False if the store gave no answer.
  bool renew(const Renewal& renewal) KVC_EXCLUDES(mutex);
  void count_lookup(const PrefixLookup& found, Duration took) KVC_EXCLUDES(mutex);
  void count(const Decision& decision) KVC_REQUIRES(mutex);

  bool allocated(RequestId id, std::span<const SlotIndex> slots) KVC_EXCLUDES(mutex);
  void plan_loads(std::span<const StepRequest> batch, StepPlan* plan) KVC_REQUIRES(mutex);
  void plan_saves(std::span<const StepRequest> batch, StepPlan* plan) KVC_REQUIRES(mutex);
  void plan_copies(StepPlan* plan) KVC_REQUIRES(mutex);
  void plan_holds(StepPlan* plan) KVC_REQUIRES(mutex);

  const SchedulerOptions options;
  const BlockHashOptions hashing;
  const Fingerprint keyspace;
  const ObjectKeys keys;
  const std::shared_ptr<Store> store;
  const std::shared_ptr<const Clock> clock;
  const std::shared_ptr<Logger> logger;
  StageLeader* const leader;  // Null: promises are leased.

  mutable Mutex mutex;
  RequestTracker tracker KVC_GUARDED_BY(mutex);
  LeaseKeeper leases KVC_GUARDED_BY(mutex);
  ChainCache chains KVC_GUARDED_BY(mutex);  // Of requests that are over.
  ReplicationPolicy replication KVC_GUARDED_BY(mutex);
  DecisionLog decisions KVC_GUARDED_BY(mutex);
  FetchSpeed fetch_speed KVC_GUARDED_BY(mutex);
  std::size_t running_decodes KVC_GUARDED_BY(mutex) = 0;
  std::vector<RequestId> owing_loads KVC_GUARDED_BY(mutex);  // In the order of allocation.
  std::vector<HoldId> loaded_holds KVC_GUARDED_BY(mutex);    // Of the loads of the plan being made.
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
  Result<BlockChain> chain = name(id, content);
  if (!chain.ok()) {
    forget(id);
    return chain.status();
  }
  TrackedRequest::Identity identity{content.scope, content.media, content.prompt_tokens,
                                    computed_tokens};
  Decision decision{.request = id, .matched = computed_tokens / options.tokens_per_block};
  Promise promise = earlier_promise(id, *chain, identity, &decision);
  if (promise.blocks.empty()) promise = look_up(*chain, identity, &decision);
  TrackedRequest request(hashing, std::move(chain).value(), std::move(identity));
  request.set_promise(promise);
  track(id, std::move(request), &decision);
  return Offer{decision.offered, decision.offered * options.tokens_per_block};
}

Result<BlockChain> Scheduler::Impl::name(RequestId id, const RequestContent& content) {
  const MutexLock lock(mutex);
  const TrackedRequest* asked_before = tracker.find(id);
  if (asked_before == nullptr || !asked_before->is_of(content.scope, content.media)) {
    return chains.take(content.scope, content.media, content.tokens);
  }
  Result<BlockChain> chain = BlockChain::create(hashing, content.scope, content.media);
  if (!chain.ok()) return chain;
  if (Status status = chain->assign(content.tokens, asked_before->chain()); !status.ok()) {
    return status;
  }
  return chain;
}

Promise Scheduler::Impl::look_up(const BlockChain& chain, const TrackedRequest::Identity& identity,
                                 Decision* decision) {
  const std::size_t block_tokens = options.tokens_per_block;
  const std::size_t first =
      identity.computed_tokens / block_tokens + (identity.computed_tokens % block_tokens != 0);
  // At least one token of the prompt is left to compute.
  const std::size_t end =
      identity.prompt_tokens == 0 ? 0 : (identity.prompt_tokens - 1) / block_tokens;
  decision->want(end - std::min(first, end));
  if (identity.computed_tokens % block_tokens != 0) {
    decision->cut(0, PrefixEnd::kUnaligned);
    const MutexLock lock(mutex);
    ++stats.lookups_unaligned;
    return {};
  }
  if (decision->wanted == 0) return {};
  const std::span<const BlockHash> blocks = chain.blocks().subspan(first, decision->wanted);
  const Instant asked_at = clock->now();
  const Deadline deadline = lookup_deadline(asked_at);
  probe(blocks, deadline, decision);
  decide(decision, asked_at);
  HoldId hold = 0;
  if (leader != nullptr) {
    hold = stage(blocks.first(decision->offered), deadline, decision);
  } else {
    decision->cut(load_room(), PrefixEnd::kOverBudget);
  }
  const Instant answered_at = clock->now();
  const MutexLock lock(mutex);
  step_lookup_time += answered_at - asked_at;
  // One without time asks nothing, and must not put off the next step.
  if (deadline.at > asked_at) last_lookup = answered_at;
  return {.blocks = {first, first + decision->offered}, .probed_at = asked_at, .hold = hold};
}

ProbeOptions Scheduler::Impl::probing() const {
  return {.world_size = options.world_size,
          .atomic_publish = store->capabilities().atomic_publish,
          .layers = options.layers};
}

void Scheduler::Impl::probe(std::span<const BlockHash> blocks, Deadline deadline,
                            Decision* decision) {
  if (leader != nullptr && options.resident_prefix) {
    decision->resident = std::min(options.resident_prefix(blocks), blocks.size());
    if (decision->resident == blocks.size()) return;
  }
  const Instant asked_at = clock->now();
  if (leader != nullptr && asked_at >= deadline.at) {
    // Earlier queries of the step have spent its time; the store is not to blame.
    return decision->cut(decision->resident, PrefixEnd::kOverBudget);
  }
  const PrefixLookup found =
      look_up_prefix(*store, *clock, probing(), keys, blocks.subspan(decision->resident), deadline);
  count_lookup(found, clock->now() - asked_at);
  decision->cut(decision->resident + found.available_blocks, end_of(found.end), found.lost_rank);
}

void Scheduler::Impl::decide(Decision* decision, Instant now) {
  {
    const MutexLock lock(mutex);
    decision->blocks_per_second = fetch_speed.blocks_per_second(now);
    decision->running_decodes = running_decodes;
  }
  decision->prefill_tokens_per_s = static_cast<double>(options.prefill_tokens_per_s);
  if (decision->offered == 0) return;
  const LoadDecision chosen = decide_load({.resident = decision->resident,
                                           .to_fetch = decision->offered - decision->resident,
                                           .blocks_per_second = decision->blocks_per_second,
                                           .prefill_tokens_per_s = decision->prefill_tokens_per_s,
                                           .tokens_per_block = options.tokens_per_block,
                                           .running_decodes = decision->running_decodes,
                                           .min_blocks = options.min_hit_blocks});
  decision->cut(chosen.blocks, chosen.reason == LoadReason::kBelowMinimum
                                   ? PrefixEnd::kBelowMinimum
                                   : PrefixEnd::kRecomputeCheaper);
}

HoldId Scheduler::Impl::stage(std::span<const BlockHash> blocks, Deadline deadline,
                              Decision* decision) {
  if (blocks.empty()) return 0;
  const Instant ordered_at = clock->now();
  const StagedBlocks staged = leader->stage(blocks, deadline);
  const Instant staged_at = clock->now();
  {
    const MutexLock lock(mutex);
    stats.staging_latency.add(staged_at - ordered_at);
    const bool moved_what_it_could = staged.end == StageEnd::kAll || staged.end == StageEnd::kLate;
    if (moved_what_it_could && blocks.size() > decision->resident) {
      const std::size_t all = std::max<std::size_t>(staged.blocks, decision->resident);
      fetch_speed.fetched(all - decision->resident, staged_at - ordered_at, staged_at);
    }
  }
  decision->cut(staged.blocks, end_of(staged.end), staged.rank);
  if (staged.blocks >= options.min_hit_blocks || staged.hold == 0) return staged.hold;
  decision->cut(0, PrefixEnd::kBelowMinimum);
  leader->release(staged.hold, 0);
  return 0;
}

Deadline Scheduler::Impl::lookup_deadline(Instant now) {
  const MutexLock lock(mutex);
  if (now - last_lookup >= kStepPause) begin_step();
  return {now + std::max(options.lookup_deadline - step_lookup_time, Duration::zero())};
}

std::size_t Scheduler::Impl::load_room() {
  const MutexLock lock(mutex);
  return load_budget - std::min(load_budget, step_promised);
}

void Scheduler::Impl::begin_step() {
  step_lookup_time = Duration::zero();
  step_promised = 0;
}

void Scheduler::Impl::count_lookup(const PrefixLookup& found, Duration took) {
  const bool failed = found.end == PrefixProbe::End::kStoreError;
  bool changed = false;
  {
    const MutexLock lock(mutex);
    stats.lookup_latency.add(took);
    if (failed) {
      ++stats.lookups_failed;
    } else if (found.end == PrefixProbe::End::kNoManifest) {
      ++stats.lookups_no_manifest;
    } else if (found.end == PrefixProbe::End::kShardLost) {
      ++stats.lookups_shard_lost;
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

void Scheduler::Impl::count(const Decision& decision) {
  stats.blocks_looked_up += decision.wanted;
  stats.blocks_offered += decision.offered;
  stats.blocks_resident += decision.resident;
  for (std::size_t end = 0; end < kPrefixEnds; ++end) {
    if (kMissCounters[end] != nullptr) stats.*kMissCounters[end] += decision.missed[end];
  }
  const auto over_budget = static_cast<std::size_t>(PrefixEnd::kOverBudget);
  if (decision.missed[over_budget] > 0) ++stats.lookups_over_budget;
}

Promise Scheduler::Impl::earlier_promise(RequestId id, const BlockChain& chain,
                                         const TrackedRequest::Identity& identity,
                                         Decision* decision) {
  const Duration fresh_for = store->capabilities().lease / kLeaseShare;
  const Instant now = clock->now();
  const MutexLock lock(mutex);
  TrackedRequest* earlier = tracker.find(id);
  if (earlier == nullptr || earlier->promise().blocks.empty()) return {};
  const Promise promise = earlier->promise();
  if (leader == nullptr && now - promise.probed_at >= fresh_for) return {};
  if (!earlier->is_same_question(chain, identity)) return {};
  if (leader != nullptr && (promise.hold == 0 || !leader->renew(promise.hold))) return {};
  earlier->forget_hold();
  decision->repeated = true;
  decision->want(promise.blocks.size());
  return promise;
}

void Scheduler::Impl::track(RequestId id, TrackedRequest request, Decision* decision) {
  const HoldId hold = request.hold();
  const Instant leased_at = request.promise().probed_at;
  const MutexLock lock(mutex);
  drop(id);
  if (!tracker.insert(id, std::move(request), plans)) {
    decision->cut(0, PrefixEnd::kUntracked);
    if (hold != 0) leader->release(hold, 0);
  }
  if (decision->offered > 0) leases.promised(id, leased_at);
  step_promised += decision->offered;
  count(*decision);
  decisions.add(*decision);
}

void Scheduler::Impl::drop(RequestId id) {
  TrackedRequest* request = tracker.find(id);
  if (request == nullptr) return;
  if (request->owes_loads()) std::erase(owing_loads, id);
  leases.over(id);
  const HoldId hold = request->hold();
  request->keep_names(&chains);
  tracker.erase(id);
  if (hold != 0) leader->release(hold, 0);
}

void Scheduler::Impl::trim_hold(TrackedRequest& request) {
  if (request.hold() == 0) return;
  const std::size_t needed = request.needed_blocks();
  leader->release(request.hold(), static_cast<std::uint32_t>(needed));
  if (needed == 0) request.forget_hold();
}

std::vector<Renewal> Scheduler::Impl::due_renewals() {
  std::vector<Renewal> renewals;
  const MutexLock lock(mutex);
  std::size_t room = options.max_renewed_objects;
  for (const RequestId id : leases.due(clock->now())) {
    const TrackedRequest* request = tracker.look_at(id);
    const std::span<const BlockHash> needed =
        request == nullptr ? std::span<const BlockHash>() : request->needed();
    const std::size_t objects =
        needed.size() * options.world_size * std::max<std::size_t>(options.layers, 1);
    if (needed.empty()) {
      leases.over(id);
    } else if (objects <= room) {
      room -= objects;
      renewals.push_back({id, {needed.begin(), needed.end()}});
    }
  }
  return renewals;
}

bool Scheduler::Impl::renew(const Renewal& renewal) {
  const Instant asked_at = clock->now();
  // The same probe again, which grants the same leases.
  const PrefixLookup found = look_up_prefix(*store, *clock, probing(), keys, renewal.blocks,
                                            {asked_at + options.lookup_deadline});
  if (found.end == PrefixProbe::End::kStoreError) return false;
  const MutexLock lock(mutex);
  stats.leases_renewed += found.available_blocks;
  stats.leases_lost += renewal.blocks.size() - found.available_blocks;
  if (found.available_blocks == renewal.blocks.size()) {
    leases.renewed(renewal.request, asked_at);
  } else {
    leases.over(renewal.request);  // The load will miss it, and says so.
  }
  return true;
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
  leases.allocated(id);
  if (request->hold() != 0 && !leader->allocated(request->hold())) {
    // Its pages count as computed: the load has to fetch what is staged no more.
    ++stats.promises_expired;
    request->forget_hold();
  }
  trim_hold(*request);
  return true;
}

void Scheduler::Impl::plan_loads(std::span<const StepRequest> batch, StepPlan* plan) {
  plan->loads_in_batch = true;
  loaded_holds.reserve(owing_loads.size());
  for (const RequestId id : owing_loads) {
    leases.over(id);
    TrackedRequest* request = tracker.find(id);
    if (request == nullptr) continue;
    const bool in_batch = std::ranges::any_of(batch, [id](const StepRequest& step) {
      return step.id == id && step.is_new && step.scheduled_tokens > 0;
    });
    plan->loads_in_batch = plan->loads_in_batch && in_batch;
    request->take_loads(id, &plan->loads);
    if (request->hold() != 0) loaded_holds.push_back(request->hold());
    request->forget_hold();
  }
  owing_loads.clear();
}

void Scheduler::Impl::plan_saves(std::span<const StepRequest> batch, StepPlan* plan) {
  running_decodes = 0;
  for (const StepRequest& step : batch) {
    TrackedRequest* request = tracker.find(step.id);
    // One that is not known is taken for a decode if its pass is as short as one.
    const bool is_decoding = request != nullptr ? request->is_decoding(step)
                                                : !step.is_new && step.scheduled_tokens == 1;
    if (is_decoding) ++running_decodes;
    if (request != nullptr) request->report(step, &plan->saves);
  }
}

void Scheduler::Impl::plan_copies(StepPlan* plan) {
  if (!replication.enabled()) return;
  plan->hot = replication.choose(plan->loads, plan->saves, clock->now());
  stats.blocks_hot += plan->hot.size();
}

/// Whatever became of the rest of the plan: ranks must hear of the ends of holds.
void Scheduler::Impl::plan_holds(StepPlan* plan) {
  if (leader != nullptr) leader->plan(loaded_holds, plan);
  loaded_holds.clear();
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
    for (const RequestId id : impl_->owing_loads) impl_->leases.over(id);
    impl_->owing_loads.clear();
    // Tokens of this batch may be missing now, and with them the names of later blocks.
    plan.saves.clear();
    for (const StepRequest& step : batch) {
      if (TrackedRequest* request = impl_->tracker.find(step.id)) request->never_save();
    }
  }
  try {
    impl_->plan_holds(&plan);
  } catch (const std::exception& error) {
    log_quietly(*impl_->logger, LogLevel::kError, error.what());
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
  impl_->trim_hold(*request);
}

void Scheduler::set_load_budget(std::size_t blocks) {
  const MutexLock lock(impl_->mutex);
  impl_->load_budget = blocks;
}

void Scheduler::renew_leases() {
  try {
    for (const Renewal& renewal : impl_->due_renewals()) {
      if (!impl_->renew(renewal)) return;
    }
  } catch (const std::exception& error) {
    log_quietly(*impl_->logger, LogLevel::kError, error.what());
  }
}

Duration Scheduler::lease_check_interval() const {
  const MutexLock lock(impl_->mutex);
  return impl_->leases.interval();
}

SchedulerStats Scheduler::stats() const {
  const MutexLock lock(impl_->mutex);
  SchedulerStats stats = impl_->stats;
  stats.requests_tracked = impl_->tracker.size();
  stats.requests_forgotten = impl_->tracker.forgotten();
  stats.decodes_running = impl_->running_decodes;
  if (impl_->leader == nullptr) return stats;
  stats.promises_held = impl_->leader->holds();
  stats.ranks_awaited = impl_->leader->awaited();
  stats.fetch_blocks_per_s =
      static_cast<std::uint64_t>(impl_->fetch_speed.blocks_per_second(impl_->clock->now()));
  return stats;
}

void Scheduler::note_opted_out(RequestId id, std::string_view why) {
  Decision decision{.request = id, .end = PrefixEnd::kOptedOut, .why = std::string(why)};
  const MutexLock lock(impl_->mutex);
  impl_->decisions.add(std::move(decision));
}

std::vector<std::string> Scheduler::explain() const {
  std::vector<Decision> entries;
  {
    const MutexLock lock(impl_->mutex);
    entries = impl_->decisions.entries();
  }
  std::vector<std::string> lines;
  lines.reserve(entries.size());
  for (const Decision& entry : entries) lines.push_back(to_line(entry));
  return lines;
}

}  // namespace kvc
