// What a Scheduler is made of. Its promises are in scheduler_promises.cc, its plans in
// scheduler.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "connector/decision_log.h"
#include "connector/lease_keeper.h"
#include "connector/load_decision.h"
#include "connector/prefix_lookup.h"
#include "connector/request_tracker.h"
#include "connector/shard_sets.h"
#include "connector/step_time.h"
#include "connector/tracked_request.h"
#include "keyspace/chain_cache.h"
#include "kvc/object_key.h"
#include "kvc/scheduler.h"
#include "kvc/stage_leader.h"
#include "replication/replication_policy.h"

namespace kvc {

struct Scheduler::Impl {
  /// Of requests that are over, for the names of the next ones: 16 MB, and 4 MB of names at 32
  /// tokens a block.
  static constexpr std::size_t kTokensKept = std::size_t{4} << 20;

  /// A promise whose leases are to be renewed.
  struct Renewal {
    RequestId request = 0;
    std::vector<BlockHash> blocks;
  };

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
        handed_out(clock, kHandedOutKept),
        replication(options.replication, store->capabilities().max_replicas),
        decisions(options.explained_requests),
        step_time(options.lookup_deadline) {}

  /// As many as a few long prompts have. A block too many is looked up once more before it is
  /// saved.
  static constexpr std::size_t kHandedOutKept = 8192;

  struct LookupTime {
    Deadline fetches;    ///< For what has to be asked of the store.
    Deadline residents;  ///< For orders of what rank 0 has in memory; later than `fetches`.
    Duration each{0};    ///< What one such order may take of it.
  };

  Result<Offer> query(RequestId id, const RequestContent& content, std::size_t computed_tokens)
      KVC_EXCLUDES(mutex);
  Result<Offer> answer(RequestId id, const RequestContent& content, std::size_t computed_tokens)
      KVC_EXCLUDES(mutex);
  /// The names of a prompt. What was hashed for an earlier one is compared and not hashed again.
  Result<BlockChain> name(RequestId id, const RequestContent& content) KVC_EXCLUDES(mutex);
  Promise look_up(const BlockChain& chain, const TrackedRequest::Identity& identity,
                  Decision* decision) KVC_EXCLUDES(mutex);
  /// Asks for the blocks what look_up() is for, within the step's time; the hold of it.
  HoldId ask(std::span<const BlockHash> blocks, Instant now, Decision* decision)
      KVC_EXCLUDES(mutex);
  /// Cuts what is offered of `blocks` to what is in rank 0's memory or, after that, in the store.
  void probe(std::span<const BlockHash> blocks, Deadline deadline, Decision* decision)
      KVC_EXCLUDES(mutex);
  /// Cuts it to what is worth its load.
  void decide(Decision* decision, Instant now) KVC_EXCLUDES(mutex);
  bool comes_in_time(const Decision& decision, Deadline deadline) const;
  /// Cuts it to what all ranks have staged of `blocks` in time; the hold of that.
  HoldId stage(std::span<const BlockHash> blocks, Deadline deadline, Decision* decision)
      KVC_EXCLUDES(mutex);
  /// The promise of an earlier, still unused query that asked the same: of a short while ago, or
  /// held since. Its hold is the caller's from here on.
  Promise earlier_promise(RequestId id, const BlockChain& chain,
                          const TrackedRequest::Identity& identity, Decision* decision)
      KVC_EXCLUDES(mutex);
  /// What is left of the step's time for lookups.
  LookupTime lookup_time(Instant now) KVC_EXCLUDES(mutex);
  /// The blocks that the step's loads have room for.
  std::size_t load_room() KVC_EXCLUDES(mutex);
  /// The blocks that may be offered: those whose loads this request will ask for.
  std::size_t track(RequestId id, TrackedRequest request, Decision* decision) KVC_EXCLUDES(mutex);
  void forget(RequestId id) KVC_EXCLUDES(mutex);
  void drop(RequestId id) KVC_REQUIRES(mutex);
  void query_began() KVC_EXCLUDES(mutex);
  void query_ended() KVC_EXCLUDES(mutex);
  void waited_since(Instant asked_at) KVC_EXCLUDES(mutex);
  void begin_step() KVC_REQUIRES(mutex);
  /// Lets go what the request cannot need any more of its hold.
  void trim_hold(TrackedRequest& request) KVC_REQUIRES(mutex);
  ProbeOptions probing() const;
  /// What is to be renewed now, within the bound of a round.
  std::vector<Renewal> due_renewals() KVC_EXCLUDES(mutex);
  /// False if the store gave no answer in time.
  bool renew(const Renewal& renewal, Deadline deadline) KVC_EXCLUDES(mutex);
  void count_lookup(const PrefixLookup& found, Duration took) KVC_EXCLUDES(mutex);
  void count(const Decision& decision) KVC_REQUIRES(mutex);

  bool allocated(RequestId id, std::span<const SlotIndex> slots) KVC_EXCLUDES(mutex);
  void plan_loads(std::span<const StepRequest> batch, StepPlan* plan) KVC_REQUIRES(mutex);
  void plan_saves(std::span<const StepRequest> batch, StepPlan* plan) KVC_REQUIRES(mutex);
  /// Of what a query found to be absent, what was not handed out to be saved since is so still.
  void note_absent(const TrackedRequest& request, std::span<PageTask> saves) KVC_REQUIRES(mutex);
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
  RecentShards handed_out KVC_GUARDED_BY(mutex);
  ReplicationPolicy replication KVC_GUARDED_BY(mutex);
  DecisionLog decisions KVC_GUARDED_BY(mutex);
  FetchSpeed fetch_speed KVC_GUARDED_BY(mutex);
  std::size_t running_decodes KVC_GUARDED_BY(mutex) = 0;
  std::vector<RequestId> owing_loads KVC_GUARDED_BY(mutex);  // In the order of allocation.
  std::vector<HoldId> loaded_holds KVC_GUARDED_BY(mutex);    // Of the loads of the plan being made.
  std::uint64_t plans KVC_GUARDED_BY(mutex) = 0;
  std::size_t load_budget KVC_GUARDED_BY(mutex) = std::numeric_limits<std::size_t>::max();
  // Since the last plan.
  StepTime step_time KVC_GUARDED_BY(mutex);
  std::size_t step_promised KVC_GUARDED_BY(mutex) = 0;  // In blocks.
  bool store_failing KVC_GUARDED_BY(mutex) = false;
  SchedulerStats stats KVC_GUARDED_BY(mutex);
};

}  // namespace kvc
