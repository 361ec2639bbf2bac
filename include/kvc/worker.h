// The worker's side of the connector: moves pages between one rank's KV cache and the store.
//
// Per step: bind() the plan, load() before the forward pass, save() after it. Loads are synchronous
// and verified; a promised block that is missing or rejected is reported, all others of the step
// are in place. Saves are snapshots: save() copies pages into staging and returns; background tasks
// checksum, put and commit them. A page is never read after save() returned and never written after
// load() returned.
//
// Layer by layer (WorkerOptions::granularity): every layer of a page is an object of its own, and
// the pass may begin while loads go on. It calls wait_for_layer() before it reads a layer, and
// layer_computed() after it has written one, whose pages are then copied; save() stores them. Both
// calls may be left out, come for some layers, in any order or twice. Since a pass that leaves out
// the first would compute on pages that are not filled, load() returns early only if the last pass
// with loads has waited once for each layer, in order; a pass that then did not is told by save(),
// and its results must not be used. A failure ends the loads of the whole step. Pages are written
// until load(), the last wait, save(), end_loads() or the next bind(), whichever ends the loads: a
// pass that breaks off needs end_loads() before its pages are given to others.
//
// Threads: bind, load, wait_for_layer, layer_computed, save and end_loads come from one thread at a
// time; stats, drain and close from any. Bounds: load() and wait_for_layer() return within
// `load_deadline` of the begin of load(), save() and layer_computed() without touching the store.
// When the save queue or the staging memory is full the newest save is dropped and counted. Claims
// and their tests: docs/contract/connector.md.
//
// Staged (WorkerOptions::staged): the leader orders blocks through stage_rank() before it promises
// them. load() copies what is in staging, which no fault of the store can prevent, and gets the
// rest as above; then it ends the holds that the plan names (bind() of the next plan does if load()
// was not called). What save() has copied is in staging too, and is served from there at once: it
// is what this rank has computed itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvc/clock.h"
#include "kvc/device.h"
#include "kvc/executor.h"
#include "kvc/layout.h"
#include "kvc/log.h"
#include "kvc/object_key.h"
#include "kvc/stage.h"
#include "kvc/stats.h"
#include "kvc/step_plan.h"
#include "kvc/store.h"

namespace kvc {

struct WorkerOptions {
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  /// Every rank's page of a block has the same bytes (one latent per token), so that a block has
  /// one shard: one of the ranks stores it, chosen by the block's name, and all of them load it.
  bool replicated = false;
  std::uint32_t tokens_per_block = 0;
  /// kLayer needs a pool that tells where its layers are (PageGroup::layer_bytes). With any other,
  /// blocks are stored whole, which is logged.
  Granularity granularity = Granularity::kBlock;
  /// Whether loads may go on while the pass runs. Not where a pass may leave out waits that it made
  /// before: where graphs are replayed in passes that compute prompts.
  bool overlap_loads = true;
  std::size_t staging_bytes = 256u << 20;  ///< Registered with the store; loads and saves share it.
  std::size_t save_queue_bytes = 128u << 20;  ///< Of the staging memory for saves; 0: none.
  /// Of copies of hot blocks that the store is asked for; 0: none.
  std::uint64_t replication_bytes_per_second = std::uint64_t{64} << 20;
  Duration load_deadline = std::chrono::milliseconds(4000);
  Duration save_deadline = std::chrono::milliseconds(10000);  ///< Per batch; nobody waits for it.
  std::size_t batch_blocks = 64;                              ///< Objects per store call.
  std::size_t batch_bytes = 64u << 20;                        ///< Bytes per store call.
  /// Blocks can be ordered into staging ahead of their loads (stage_rank()), and what is loaded or
  /// saved is kept there as long as there is room. Only where blocks are stored whole.
  bool staged = false;
};

struct WorkerParts {
  std::shared_ptr<Store> store;
  std::shared_ptr<Executor> executor;  ///< Runs saves and prefetches of loads.
  std::shared_ptr<const Clock> clock;
  std::shared_ptr<Logger> logger;
  std::shared_ptr<PageCopier> copier;
};

/// A promised block that could not be put in place. Request 0 without a key stands for every load
/// of the plan, where it is not known, or there is no memory to say, which of them failed. Where
/// there is not even that much, load(), wait_for_layer() and save() throw std::bad_alloc, which
/// tells the same: nothing of the plan counts as loaded, and nothing of the pass is saved.
struct LoadFailure {
  RequestId request = 0;
  std::string key;
  Status status;  ///< kMissing, kRejected, kUnavailable or kTimedOut.
};

struct WorkerStats {
  std::uint64_t blocks_loaded = 0;
  std::uint64_t bytes_loaded = 0;
  std::uint64_t loads_missing = 0;
  std::uint64_t loads_asked_again = 0;
  std::uint64_t loads_unavailable = 0;
  std::uint64_t rejected_checksum = 0;
  std::uint64_t rejected_layout = 0;
  std::uint64_t rejected_header = 0;
  std::uint64_t rejected_size = 0;
  std::uint64_t blocks_saved = 0;
  std::uint64_t bytes_saved = 0;
  std::uint64_t save_nanoseconds = 0;
  std::uint64_t blocks_already_stored = 0;
  std::uint64_t blocks_committed = 0;
  std::uint64_t saves_dropped = 0;
  std::uint64_t saves_failed = 0;
  std::uint64_t blocks_replicated = 0;
  std::uint64_t replications_failed = 0;
  std::uint64_t replications_dropped = 0;
  std::uint64_t save_queue_bytes = 0;
  std::uint64_t pages_out_of_range = 0;
  std::uint64_t blocks_staged = 0;
  std::uint64_t bytes_staged = 0;
  std::uint64_t stage_short_missing = 0;
  std::uint64_t stage_short_rejected = 0;
  std::uint64_t stage_short_no_room = 0;
  std::uint64_t stage_short_unavailable = 0;
  std::uint64_t tier_hits = 0;
  std::uint64_t tier_misses = 0;
  std::uint64_t tier_evictions = 0;
  std::uint64_t tier_blocks = 0;
  std::uint64_t tier_blocks_held = 0;
  std::uint64_t holds_open = 0;
  std::uint64_t fetches_in_flight = 0;
  LatencyHistogram load_latency;
  LatencyHistogram put_latency;
  LatencyHistogram replication_latency;
};

inline constexpr StatField<WorkerStats> kWorkerStats[] = {
    {"blocks_loaded", "", &WorkerStats::blocks_loaded, StatKind::kCounter,
     "Blocks put into pages."},
    {"bytes_loaded", "", &WorkerStats::bytes_loaded, StatKind::kCounter, "Payload put into pages."},
    {"loads_missing", "", &WorkerStats::loads_missing, StatKind::kCounter,
     "Promised blocks that were not in the store."},
    {"loads_asked_again", "", &WorkerStats::loads_asked_again, StatKind::kCounter,
     "Objects of promised blocks that the store did not give at the first time of asking."},
    {"loads_unavailable", "", &WorkerStats::loads_unavailable, StatKind::kCounter,
     "Promised blocks not loaded: store down, deadline passed, no staging memory, given up since a "
     "layer of another block failed, or a layer that the pass did not wait for."},
    {"rejected", "checksum", &WorkerStats::rejected_checksum, StatKind::kCounter,
     "Stored bytes refused: altered."},
    {"rejected", "layout", &WorkerStats::rejected_layout, StatKind::kCounter,
     "Stored bytes refused: of another layout."},
    {"rejected", "header", &WorkerStats::rejected_header, StatKind::kCounter,
     "Stored bytes refused: magic, version or identity."},
    {"rejected", "size", &WorkerStats::rejected_size, StatKind::kCounter,
     "Stored bytes refused: size."},
    {"blocks_saved", "", &WorkerStats::blocks_saved, StatKind::kCounter,
     "Saves whose shard this rank put and the store kept; of a store that does not tell whether a "
     "put stored anything, every one that it kept."},
    {"bytes_saved", "", &WorkerStats::bytes_saved, StatKind::kCounter, "Payload of blocks_saved."},
    {"save_nanoseconds", "", &WorkerStats::save_nanoseconds, StatKind::kCounter,
     "Background time spent in batches of saves."},
    {"blocks_already_stored", "", &WorkerStats::blocks_already_stored, StatKind::kCounter,
     "Saves whose shard was stored before."},
    {"blocks_committed", "", &WorkerStats::blocks_committed, StatKind::kCounter,
     "Manifests seen published by this rank."},
    {"saves_dropped", "", &WorkerStats::saves_dropped, StatKind::kCounter,
     "Saves dropped: queue or staging full, store backing off, or load failed."},
    {"saves_failed", "", &WorkerStats::saves_failed, StatKind::kCounter,
     "Saves that the store refused, did not answer, or did not keep."},
    {"blocks_replicated", "", &WorkerStats::blocks_replicated, StatKind::kCounter,
     "Hot blocks whose objects of this rank were seen with all copies."},
    {"replications_failed", "", &WorkerStats::replications_failed, StatKind::kCounter,
     "Hot blocks without: no place or no room for a copy, gone, or not in time."},
    {"replications_dropped", "", &WorkerStats::replications_dropped, StatKind::kCounter,
     "Hot blocks put off: faster than the pace, store paused, or saves were waiting."},
    {"save_queue_bytes", "", &WorkerStats::save_queue_bytes, StatKind::kGauge,
     "Payload of saves that have not ended."},
    {"pages_out_of_range", "", &WorkerStats::pages_out_of_range, StatKind::kCounter,
     "Pages of a plan that the pool does not have; refused."},
    {"blocks_staged", "", &WorkerStats::blocks_staged, StatKind::kCounter,
     "Blocks fetched into the host tier and verified."},
    {"bytes_staged", "", &WorkerStats::bytes_staged, StatKind::kCounter,
     "Payload of blocks_staged."},
    {"stage_short", "missing", &WorkerStats::stage_short_missing, StatKind::kCounter,
     "Orders to stage that ended early: the next block is not in the store."},
    {"stage_short", "rejected", &WorkerStats::stage_short_rejected, StatKind::kCounter,
     "Orders to stage that ended early: the next block was refused."},
    {"stage_short", "no_room", &WorkerStats::stage_short_no_room, StatKind::kCounter,
     "Orders to stage that ended early: no staging memory is left, all of it is held or in use."},
    {"stage_short", "unavailable", &WorkerStats::stage_short_unavailable, StatKind::kCounter,
     "Orders to stage that ended early: the store does not answer, or not in time."},
    {"tier_hits", "", &WorkerStats::tier_hits, StatKind::kCounter,
     "Blocks put into pages from the host tier, without the store."},
    {"tier_misses", "", &WorkerStats::tier_misses, StatKind::kCounter,
     "Promised blocks in staged mode that had to be loaded from the store."},
    {"tier_evictions", "", &WorkerStats::tier_evictions, StatKind::kCounter,
     "Blocks evicted from the host tier to make room."},
    {"tier_blocks", "", &WorkerStats::tier_blocks, StatKind::kGauge, "Blocks in the host tier."},
    {"tier_blocks_held", "", &WorkerStats::tier_blocks_held, StatKind::kGauge,
     "Blocks in the host tier that are held for promises."},
    {"holds_open", "", &WorkerStats::holds_open, StatKind::kGauge,
     "Orders to stage whose blocks are held."},
    {"fetches_in_flight", "", &WorkerStats::fetches_in_flight, StatKind::kGauge,
     "Blocks being fetched into the host tier."},
};
inline constexpr LatencyField<WorkerStats> kWorkerLatencies[] = {
    {"load_latency", &WorkerStats::load_latency, "All loads of one step."},
    {"put_latency", &WorkerStats::put_latency, "One batched put of shards."},
    {"replication_latency", &WorkerStats::replication_latency,
     "Copies of one batch of hot blocks, until they are there."},
};
static_assert(covers_all(kWorkerStats, kWorkerLatencies));

class Worker {
 public:
  static Result<std::unique_ptr<Worker>> create(WorkerOptions options, WorkerParts parts);
  /// Like close() with a short deadline.
  ~Worker();

  /// Once, before the first step. kInvalid for a bad layout or one that does not fit the staging
  /// memory; kUnavailable if the store refuses the staging memory.
  Status register_layout(const Fingerprint& keyspace, const PagedLayout& layout);

  /// Replaces the plan of the step. Saves of a plan that never reached save() are dropped.
  void bind(StepPlan plan);

  /// Layers that are stored as objects of their own; 0 where blocks are stored whole, and without a
  /// pool. The scheduler of this instance needs the same (SchedulerOptions::layers).
  std::uint32_t layers_stored_apart() const;

  /// Performs the bound plan's loads, or begins them, once. Empty: every promised page holds
  /// verified bytes, or will hold them layer by layer as wait_for_layer() returns.
  std::vector<LoadFailure> load(StreamHandle stream);

  /// Before the pass reads a layer of the bound plan's pages, or writes to it. Empty: every
  /// promised page holds verified bytes of that layer and all before it. Else the loads have ended,
  /// and every later call for a layer that is not in place says so again. `layer`: global index;
  /// one that the pool does not have is ignored.
  std::vector<LoadFailure> wait_for_layer(std::uint32_t layer, StreamHandle stream);

  /// After the pass has written a layer; `stream` orders the snapshot after it.
  void layer_computed(std::uint32_t layer, StreamHandle stream);

  /// Takes a snapshot of the bound plan's saves, once. `stream` orders it after the forward pass.
  /// Not empty: the pass has not waited for these pages, so that what it computed is worthless;
  /// none of it is saved.
  std::vector<LoadFailure> save(StreamHandle stream);

  /// The pass is over, or was given up: no page of the bound plan is written from here on. A later
  /// wait for a layer that is not in place fails. Does nothing after save(), or if loads are
  /// complete.
  void end_loads();

  /// Waits until every save taken so far ended, at most until `deadline`. True if all did.
  bool drain(Deadline deadline);

  /// Takes the leader's orders. Null unless `staged`, before register_layout(), and where blocks
  /// are stored layer by layer. May be kept longer than the worker; refuses orders then.
  std::shared_ptr<StageRank> stage_rank() const;
  /// Leading blocks that a load would find in host memory; 0 unless `staged`.
  std::size_t resident_prefix(std::span<const BlockHash> blocks) const;

  /// Blocks that the loads of one step can be expected to move well before `load_deadline`, from
  /// what past loads moved; at least 1. 0 without a pool.
  std::size_t load_budget_blocks() const;

  WorkerStats stats() const;

  /// Drops queued saves, waits for running ones at most until `deadline`, unregisters memory. Later
  /// calls do nothing. Idempotent.
  void close(Deadline deadline);

 private:
  struct Impl;
  explicit Worker(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvc
