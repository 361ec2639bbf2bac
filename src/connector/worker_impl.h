// What a Worker is made of. What it does in a pass is in worker_pass.cc, its beginning and its end
// in worker.cc.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "connector/layer_hooks.h"
#include "connector/load_pipeline.h"
#include "connector/pipeline_parts.h"
#include "connector/replica_raiser.h"
#include "connector/save_pipeline.h"
#include "connector/stager.h"
#include "connector/staging_plan.h"
#include "kvc/worker.h"

namespace kvc {

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
  std::vector<LoadFailure> fail_each(const StepPlan& bound, const Ready* with,
                                     const Status& status) const;
  static Status broke_off(const char* what, const std::exception& error) noexcept;
  std::vector<PageTask> loadable(const StepPlan& bound, const Ready& with,
                                 std::vector<LoadFailure>* failures);
  void end_holds(const Ready& with);
  void raise_hot(const StepPlan& bound, const Ready& with,
                 const std::vector<LoadFailure>& failures);
  void note_failures(const StepPlan& bound, const std::vector<LoadFailure>& failures) noexcept;
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

}  // namespace kvc
