// The promises of a Scheduler: what is looked up for a request, what of it is promised, and how
// that is kept in the store until its load is planned.
#include <algorithm>
#include <array>
#include <chrono>
#include <numeric>
#include <string>
#include <utility>

#include "base/at_end.h"
#include "connector/quiet_log.h"
#include "connector/scheduler_impl.h"

namespace kvc {
namespace {

/// Part of the lease for which a promise may be given again without asking the store again; the
/// rest is left for the load.
constexpr int kLeaseShare = 4;

/// Of a step's time for lookups, for what rank 0 has in memory alone: when a store that hangs has
/// used up the rest, it is still asked of the other ranks, which takes them a message each.
constexpr Duration kResidentTime = std::chrono::milliseconds(50);
constexpr int kResidentShare = 8;  // At most that part of a short time.

/// Of the whole time, what one order of such blocks may wait while nothing else has used it up.
/// Much longer than a message takes on a machine that is busy, and short for whoever waits for a
/// fetch that nobody has weighed against computing.
constexpr int kOneResidentShare = 4;

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
  of(PrefixEnd::kTooManyPromises) = &SchedulerStats::blocks_missed_too_many_promises;
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
    case StageEnd::kTooMany:
      return PrefixEnd::kTooManyPromises;
    case StageEnd::kAll:
    case StageEnd::kUnavailable:
      break;
  }
  return PrefixEnd::kUnavailable;
}

}  // namespace

Result<Offer> Scheduler::Impl::query(RequestId id, const RequestContent& content,
                                     std::size_t computed_tokens) {
  query_began();
  const AtEnd end([this] { query_ended(); });
  return answer(id, content, computed_tokens);
}

void Scheduler::Impl::query_began() {
  const Instant now = clock->now();
  const MutexLock lock(mutex);
  ++stats.queries;
  if (step_time.query_began(now)) step_promised = 0;
}

void Scheduler::Impl::query_ended() {
  const Instant now = clock->now();
  const MutexLock lock(mutex);
  step_time.query_ended(now);
}

void Scheduler::Impl::waited_since(Instant asked_at) {
  const Duration waited = clock->now() - asked_at;
  const MutexLock lock(mutex);
  step_time.spend(waited);
}

Result<Offer> Scheduler::Impl::answer(RequestId id, const RequestContent& content,
                                      std::size_t computed_tokens) {
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
  try {
    TrackedRequest request(hashing, std::move(chain).value(), std::move(identity));
    request.set_promise(promise);
    request.set_decision(decision);
    const std::size_t promised = track(id, std::move(request), &decision);
    return Offer{promised, promised * options.tokens_per_block};
  } catch (...) {
    if (promise.hold != 0) leader->release(promise.hold, 0);  // Nobody else may know of it.
    throw;
  }
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
  const AtEnd end_of_wait([this, asked_at] { waited_since(asked_at); });
  const HoldId hold = ask(blocks, asked_at, decision);
  return {.blocks = {first, first + decision->offered}, .probed_at = asked_at, .hold = hold};
}

HoldId Scheduler::Impl::ask(std::span<const BlockHash> blocks, Instant now, Decision* decision) {
  if (leader != nullptr && !leader->connected()) {
    // Without a rank nothing can be staged, whatever is stored; the leader says which one it is. If
    // that one is back by now, what all have in memory is promised.
    return stage(blocks, {now}, decision);
  }
  if (leader != nullptr && blocks.size() > kMaxOrderBlocks) {
    decision->cut(kMaxOrderBlocks, PrefixEnd::kOverBudget);
    blocks = blocks.first(kMaxOrderBlocks);
  }
  const LookupTime time = lookup_time(now);
  probe(blocks, time.fetches, decision);
  decide(decision, now);
  if (leader == nullptr) {
    decision->cut(load_room(), PrefixEnd::kOverBudget);
    return 0;
  }
  const std::span<const BlockHash> ordered = blocks.first(decision->offered);
  if (ordered.size() > decision->resident && comes_in_time(*decision, time.fetches)) {
    return stage(ordered, time.fetches, decision);
  }
  // Whoever does not have them either has to fetch them, which nobody has weighed against computing
  // them: there is time for an answer, not for a long fetch. It goes on for later requests.
  const Instant each_until =
      clock->now() + (decision->resident == 0 ? Duration::zero() : time.each);
  return stage(ordered, {std::min(time.residents.at, each_until)}, decision);
}

/// Whether as much as a block can be expected by `deadline`, as far as fetches so far tell: a store
/// that is slower than that would cost every step its whole budget, and give nothing.
bool Scheduler::Impl::comes_in_time(const Decision& decision, Deadline deadline) const {
  if (decision.blocks_per_second <= 0) return true;
  const double left = std::chrono::duration<double>(deadline.remaining(*clock)).count();
  return decision.blocks_per_second * left >= 1;
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
    // What rank 0 has in memory, another rank may have to fetch; only the time tells that. Nothing
    // within the little that is waited for it does not.
    const bool rank0_fetched = blocks.size() > decision->resident;
    const Duration took = staged_at - ordered_at;
    const bool another_fetched = staged.blocks > 0 && took >= FetchSpeed::kTellingWait;
    if (moved_what_it_could && (rank0_fetched || another_fetched)) {
      const std::size_t had = rank0_fetched ? decision->resident : 0;
      fetch_speed.fetched(std::max<std::size_t>(staged.blocks, had) - had, took, staged_at);
    }
  }
  // What was not probed is stored nowhere, as far as anybody knows: rank 0 may have it from a save
  // that never came to its end.
  const bool was_probed = staged.blocks >= decision->resident;
  const bool is_unknown = staged.end == StageEnd::kMissing && !was_probed;
  decision->cut(staged.blocks, is_unknown ? PrefixEnd::kNoManifest : end_of(staged.end),
                is_unknown ? 0 : staged.rank);
  if (staged.blocks >= options.min_hit_blocks || staged.hold == 0) return staged.hold;
  decision->cut(0, PrefixEnd::kBelowMinimum);
  leader->release(staged.hold, 0);
  return 0;
}

Scheduler::Impl::LookupTime Scheduler::Impl::lookup_time(Instant now) {
  const Duration all = options.lookup_deadline;
  const Duration kept =
      leader == nullptr ? Duration::zero() : std::min(kResidentTime, all / kResidentShare);
  const MutexLock lock(mutex);
  return {.fetches = {now + step_time.left(all - kept)},
          .residents = {now + step_time.left(all)},
          .each = all / kOneResidentShare};
}

std::size_t Scheduler::Impl::load_room() {
  const MutexLock lock(mutex);
  return load_budget - std::min(load_budget, step_promised);
}

void Scheduler::Impl::begin_step() {
  step_time.begin(clock->now());
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
  stats.blocks_looked_up +=
      std::accumulate(decision.missed.begin(), decision.missed.end(), decision.offered);
  stats.blocks_offered += decision.offered;
  if (decision.repeats == 0) stats.blocks_resident += decision.resident;
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
  // As it was then, told once more; what was missed then was counted then.
  *decision = earlier->decision();
  ++decision->repeats;
  decision->cut(promise.blocks.size(), PrefixEnd::kCancelled);
  decision->missed = {};
  return promise;
}

std::size_t Scheduler::Impl::track(RequestId id, TrackedRequest request, Decision* decision) {
  const HoldId hold = request.hold();
  std::size_t promised = request.promise().blocks.size();
  const Instant leased_at = request.promise().probed_at;
  const MutexLock lock(mutex);
  drop(id);
  if (tracker.is_full()) {
    ++stats.requests_forgotten;  // That one, or this.
    if (const auto least_needed = tracker.least_needed(plans)) drop(*least_needed);
  }
  if (!tracker.insert(id, std::move(request), plans)) {
    promised = 0;
    decision->cut(0, PrefixEnd::kUntracked);
    if (hold != 0) leader->release(hold, 0);
  }
  if (promised > 0) leases.promised(id, leased_at);
  decisions.add(*decision);
  step_promised += promised;
  count(*decision);
  return promised;
}

std::vector<Scheduler::Impl::Renewal> Scheduler::Impl::due_renewals() {
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

bool Scheduler::Impl::renew(const Renewal& renewal, Deadline deadline) {
  const Instant asked_at = clock->now();
  // The same probe again, which grants the same leases.
  const PrefixLookup found =
      look_up_prefix(*store, *clock, probing(), keys, renewal.blocks, deadline);
  if (found.end == PrefixProbe::End::kStoreError) return false;
  const MutexLock lock(mutex);
  stats.leases_renewed += found.available_blocks;
  stats.leases_lost += renewal.blocks.size() - found.available_blocks;
  if (found.available_blocks == renewal.blocks.size()) {
    leases.renewed(renewal.request, asked_at);
  } else {
    leases.lost(renewal.request, asked_at);  // The load will miss it, and says so.
  }
  return true;
}

}  // namespace kvc
