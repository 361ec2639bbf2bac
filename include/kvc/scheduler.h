// The scheduler's side of the connector: what of a prompt is in the store, and what to load and
// save in each step. One per engine instance.
//
// Life of a request:
//   query()      hashes the prompt and probes the store; the answer is a promise for this request
//   allocated()  tells the pages; from here on the promise is firm
//   plan_step()  once per executed batch: emits the promised loads and the pages to save
//   finished()   forgets the request. Requests that vanish silently are forgotten when
//                the tracker is full, oldest first.
//
// `leased` promise: the probe's lease protects the promised blocks until the load, which follows in
// the same step; where it does not, renew_leases() renews the lease.
// `staged` promise (with a StageLeader): only what every rank has fetched and verified by then is
// promised, and it is held until it is loaded, so that a load depends on no store: unless the
// allocation came after the promise had expired (StageLeaderOptions::hold_for), or a rank's memory
// was given up because of an error inside. Such a load fetches, and may fail. Blocks that rank 0
// has in memory need no probe.
//
// Threads: every method may be called from any thread; calls are serialised. No method fails for
// store reasons: a store problem means a promise of 0. Bounds: all queries of a step together wait
// for the store and for the ranks `lookup_deadline` at most, besides the time to name the prompts;
// renew_leases() waits as long on its own thread. Nothing else touches the store.
// Claims and their tests: docs/contract/connector.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "kvc/block_hash.h"
#include "kvc/clock.h"
#include "kvc/log.h"
#include "kvc/replication.h"
#include "kvc/stats.h"
#include "kvc/step_plan.h"
#include "kvc/store.h"

namespace kvc {

class StageLeader;

/// No step can wait longer for its lookups.
inline constexpr Duration kLookupDeadlineMax = std::chrono::hours(1);

struct SchedulerOptions {
  std::uint32_t tokens_per_block = 0;
  /// Shards that a block has in the store: one per rank, or 1 (WorkerOptions::replicated).
  std::uint32_t world_size = 1;
  std::string deployment_secret;
  /// For all lookups between two plans together, and for all staging: the engine's step waits for
  /// each of them. With a leader the last part of it is kept for blocks that rank 0 has in memory.
  /// Above 0, at most kLookupDeadlineMax.
  Duration lookup_deadline = std::chrono::milliseconds(1000);
  /// Whether a prompt gets exactly the pages that its tokens need. Then more pages than that show
  /// that the engine's blocks are smaller than `tokens_per_block`, and nothing may be saved.
  bool exact_pages = false;
  /// Layers of a page, where the workers store each as an object of its own
  /// (Worker::layers_stored_apart()). 0: they store blocks whole.
  std::uint32_t layers = 0;
  /// Requests tracked at once, each with its tokens; past it the oldest is forgotten (it is then
  /// neither loaded nor saved).
  std::size_t max_tracked_requests = 8192;
  /// Which blocks the workers are to give more copies; none with the default.
  ReplicationOptions replication = {};
  /// Makes promises staged. Of as many ranks as a block has shards, or that one is for all of;
  /// blocks must be stored whole. Null: leased.
  std::shared_ptr<StageLeader> stage_leader = nullptr;
  /// How many leading blocks rank 0 has in its memory, with a leader. Called from any thread; must
  /// not block. Null: none.
  std::function<std::size_t(std::span<const BlockHash>)> resident_prefix = nullptr;
  /// What the engine computes of a prompt in a second: blocks that would take longer to fetch, with
  /// what that costs the requests that are running, are not promised. 0: whatever is there is.
  std::uint64_t prefill_tokens_per_s = 0;
  /// Fewer blocks than that are not promised.
  std::size_t min_hit_blocks = 1;
  /// Objects whose leases one renew_leases() renews at most.
  std::size_t max_renewed_objects = std::size_t{1} << 18;
  /// Queries that explain() remembers.
  std::size_t explained_requests = 256;
};

/// What a request is, as far as its KV is concerned.
struct RequestContent {
  std::span<const Token> tokens;  ///< All known tokens; the prompt is a prefix of them.
  std::size_t prompt_tokens = 0;
  RequestScope scope;
  std::vector<MediaItem> media;
};

/// Blocks that the caller need not compute: [local match, local match + blocks).
struct Offer {
  std::size_t blocks = 0;
  std::size_t tokens = 0;  ///< blocks * tokens_per_block; leaves at least one prompt token.
};

/// One request of an executed batch, absolute positions in tokens.
struct StepRequest {
  RequestId id = 0;
  /// First report of this allocation: replaces what was known of the request's pages.
  bool is_new = false;
  std::span<const Token> new_tokens;  ///< Follow those reported before (is_new: all known tokens).
  std::span<const SlotIndex> new_slots;  ///< Follow those reported before.
  std::size_t computed_tokens = 0;   ///< Where this pass begins, or where the load begins (is_new).
  std::size_t scheduled_tokens = 0;  ///< Computed by this pass.
};

/// Blocks that a prompt could have got (whole ones after the engine's own match, with at least one
/// token left to compute) are either offered or missed for one reason:
/// blocks_looked_up == blocks_offered + all of blocks_missed_*.
struct SchedulerStats {
  std::uint64_t queries = 0;
  std::uint64_t blocks_looked_up = 0;
  std::uint64_t blocks_offered = 0;
  std::uint64_t blocks_missed_no_manifest = 0;
  std::uint64_t blocks_missed_shard_lost = 0;
  std::uint64_t blocks_missed_store_failed = 0;
  std::uint64_t blocks_missed_over_budget = 0;
  std::uint64_t blocks_missed_unaligned = 0;
  std::uint64_t blocks_missed_untracked = 0;
  std::uint64_t blocks_missed_rejected = 0;
  std::uint64_t blocks_missed_late = 0;
  std::uint64_t blocks_missed_no_room = 0;
  std::uint64_t blocks_missed_too_many_promises = 0;
  std::uint64_t blocks_missed_rank_unavailable = 0;
  std::uint64_t blocks_missed_recompute_cheaper = 0;
  std::uint64_t blocks_missed_below_minimum = 0;
  std::uint64_t blocks_resident = 0;
  std::uint64_t lookups_failed = 0;
  std::uint64_t lookups_no_manifest = 0;
  std::uint64_t lookups_shard_lost = 0;
  std::uint64_t lookups_over_budget = 0;
  std::uint64_t lookups_unaligned = 0;
  std::uint64_t requests_tracked = 0;
  std::uint64_t requests_forgotten = 0;
  std::uint64_t pages_inconsistent = 0;
  std::uint64_t blocks_hot = 0;
  std::uint64_t promises_held = 0;
  std::uint64_t promises_expired = 0;
  std::uint64_t ranks_awaited = 0;
  std::uint64_t leases_renewed = 0;
  std::uint64_t leases_lost = 0;
  std::uint64_t decodes_running = 0;
  std::uint64_t fetch_blocks_per_s = 0;
  LatencyHistogram lookup_latency;
  LatencyHistogram staging_latency;
};

inline constexpr StatField<SchedulerStats> kSchedulerStats[] = {
    {"queries", "", &SchedulerStats::queries, StatKind::kCounter, "Requests asked about."},
    {"blocks_looked_up", "", &SchedulerStats::blocks_looked_up, StatKind::kCounter,
     "Blocks that the prompts asked about could have got."},
    {"blocks_offered", "", &SchedulerStats::blocks_offered, StatKind::kCounter,
     "Blocks promised: hits."},
    {"blocks_missed", "no_manifest", &SchedulerStats::blocks_missed_no_manifest, StatKind::kCounter,
     "From the first block on that nobody has committed."},
    {"blocks_missed", "shard_lost", &SchedulerStats::blocks_missed_shard_lost, StatKind::kCounter,
     "From the first block on whose manifest outlived a shard of some rank."},
    {"blocks_missed", "store_failed", &SchedulerStats::blocks_missed_store_failed,
     StatKind::kCounter, "From where on the store gave no answer in time."},
    {"blocks_missed", "over_budget", &SchedulerStats::blocks_missed_over_budget, StatKind::kCounter,
     "More than one step can look up and load in time."},
    {"blocks_missed", "unaligned", &SchedulerStats::blocks_missed_unaligned, StatKind::kCounter,
     "After a local match that ends inside a block."},
    {"blocks_missed", "untracked", &SchedulerStats::blocks_missed_untracked, StatKind::kCounter,
     "Stored, but as many requests are tracked as can be."},
    {"blocks_missed", "rejected", &SchedulerStats::blocks_missed_rejected, StatKind::kCounter,
     "From the first block on that failed its check while it was staged."},
    {"blocks_missed", "late", &SchedulerStats::blocks_missed_late, StatKind::kCounter,
     "Stored, but not staged on every rank in time."},
    {"blocks_missed", "no_room", &SchedulerStats::blocks_missed_no_room, StatKind::kCounter,
     "Stored, but there was no staging memory on some rank."},
    {"blocks_missed", "too_many_promises", &SchedulerStats::blocks_missed_too_many_promises,
     StatKind::kCounter, "Stored, but as many staged promises are given as can be."},
    {"blocks_missed", "rank_unavailable", &SchedulerStats::blocks_missed_rank_unavailable,
     StatKind::kCounter,
     "Some rank was not connected, was lost, or got no answer of the store; without a connection "
     "the store is not asked."},
    {"blocks_missed", "recompute_cheaper", &SchedulerStats::blocks_missed_recompute_cheaper,
     StatKind::kCounter, "Stored, but computing them costs less than fetching them."},
    {"blocks_missed", "below_minimum", &SchedulerStats::blocks_missed_below_minimum,
     StatKind::kCounter, "Of hits shorter than the least that is promised."},
    {"blocks_resident", "", &SchedulerStats::blocks_resident, StatKind::kCounter,
     "Blocks looked up that rank 0 had in its memory."},
    {"lookups_failed", "", &SchedulerStats::lookups_failed, StatKind::kCounter,
     "Lookups ended by a store error or the deadline."},
    {"lookups_no_manifest", "", &SchedulerStats::lookups_no_manifest, StatKind::kCounter,
     "Lookups ended by a block that is not committed."},
    {"lookups_shard_lost", "", &SchedulerStats::lookups_shard_lost, StatKind::kCounter,
     "Lookups ended by a manifest without all of its shards."},
    {"lookups_over_budget", "", &SchedulerStats::lookups_over_budget, StatKind::kCounter,
     "Lookups cut to what one step can look up and load in time."},
    {"lookups_unaligned", "", &SchedulerStats::lookups_unaligned, StatKind::kCounter,
     "Queries whose local match ends inside a block."},
    {"requests_tracked", "", &SchedulerStats::requests_tracked, StatKind::kGauge,
     "Requests known now."},
    {"requests_forgotten", "", &SchedulerStats::requests_forgotten, StatKind::kCounter,
     "Requests that lost their place, or found none, by the bound on tracked requests."},
    {"pages_inconsistent", "", &SchedulerStats::pages_inconsistent, StatKind::kCounter,
     "Requests whose pages did not fit their prompt; they are not saved."},
    {"blocks_hot", "", &SchedulerStats::blocks_hot, StatKind::kCounter,
     "Blocks handed out to get more copies, each time."},
    {"promises_held", "", &SchedulerStats::promises_held, StatKind::kGauge,
     "Staged promises whose load is still to be planned."},
    {"promises_expired", "", &SchedulerStats::promises_expired, StatKind::kCounter,
     "Staged promises whose pages came too late: their loads fetch."},
    {"ranks_awaited", "", &SchedulerStats::ranks_awaited, StatKind::kGauge,
     "Ranks that cannot be reached now, so that nothing is promised; 0 where promises are leased."},
    {"leases_renewed", "", &SchedulerStats::leases_renewed, StatKind::kCounter,
     "Blocks of leased promises that were protected once more, since their loads are still to be "
     "planned."},
    {"leases_lost", "", &SchedulerStats::leases_lost, StatKind::kCounter,
     "Blocks of leased promises that were gone from the store before their loads were planned."},
    {"decodes_running", "", &SchedulerStats::decodes_running, StatKind::kGauge,
     "Requests beyond their prompt in the last step: what a fetch holds back."},
    {"fetch_blocks_per_s", "", &SchedulerStats::fetch_blocks_per_s, StatKind::kGauge,
     "Blocks that staging fetches in a second, as measured; 0: not known."},
};
inline constexpr LatencyField<SchedulerStats> kSchedulerLatencies[] = {
    {"lookup_latency", &SchedulerStats::lookup_latency, "One lookup in the store, all its calls."},
    {"staging_latency", &SchedulerStats::staging_latency,
     "From the order of a promise's blocks until all ranks had them, or the deadline."},
};
static_assert(covers_all(kSchedulerStats, kSchedulerLatencies));

class Scheduler {
 public:
  /// `keyspace`: of the workers of this instance. kInvalid for zero sizes.
  static Result<std::unique_ptr<Scheduler>> create(SchedulerOptions options,
                                                   const Fingerprint& keyspace,
                                                   std::shared_ptr<Store> store,
                                                   std::shared_ptr<const Clock> clock,
                                                   std::shared_ptr<Logger> logger);
  ~Scheduler();

  /// Looks up the blocks that follow `computed_tokens` (the engine's own match) and starts tracking
  /// the request, replacing any earlier state of this id.
  /// Status kInvalid if the content cannot be hashed: the request is not tracked and not cached.
  Result<Offer> query(RequestId id, const RequestContent& content, std::size_t computed_tokens);

  /// The pages of the whole prompt (more may follow). Unknown ids are ignored. A prompt whose pages
  /// do not cover it is served as far as they reach and never saved. False if nothing is known of
  /// the request, or no longer: what was promised to it will not be loaded.
  bool allocated(RequestId id, std::span<const SlotIndex> slots);

  /// Loads of every request allocated since the last plan, in this batch or not, each exactly once;
  /// saves of the blocks of this batch that the coming pass completes, each once per allocation.
  /// A promise that can not be kept because of something inside makes the step fail (loads_lost).
  StepPlan plan_step(std::span<const StepRequest> batch);

  /// The request is over, or its allocation is gone and it will be queried again. Idempotent;
  /// unknown ids are ignored.
  void finished(RequestId id);
  /// Blocks of the promise at or after `start_tokens` will not be used.
  void cancel_load(RequestId id, std::size_t start_tokens);

  /// Promises between two plans end at this many blocks, which is what a load can move in time
  /// (Worker::load_budget_blocks()). No bound until it is called.
  void set_load_budget(std::size_t blocks);

  /// Of leased promises: protects what they need in the store anew where half of its lease is over,
  /// from the promise until the load is planned or the request has ended. To be called every
  /// lease_check_interval(), from one thread at a time. Waits for the store, at most
  /// `lookup_deadline` for all of them together, and leaves the rest to the next call then, or once
  /// a stop is requested.
  void renew_leases(const std::stop_token& stop = {});
  /// Zero where there are no leases to renew.
  Duration lease_check_interval() const;

  SchedulerStats stats() const;

  /// The request is not asked about, for a reason in the caller's words: for explain() alone.
  void note_opted_out(RequestId id, std::string_view why);
  /// One line for each of the last requests asked about, oldest first: what the engine had itself,
  /// what was offered, and what ended it.
  std::vector<std::string> explain() const;

 private:
  struct Impl;
  explicit Scheduler(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvc
