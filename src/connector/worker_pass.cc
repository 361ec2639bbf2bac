// What a Worker does between bind() and the end of the pass: loads, layers, saves.
#include <algorithm>
#include <exception>
#include <new>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/planted.h"
#include "connector/quiet_log.h"
#include "connector/tier_loads.h"
#include "connector/worker_impl.h"

namespace kvc {

std::vector<LoadFailure> Worker::Impl::fail_all(const StepPlan& bound, const Ready* with,
                                                const Status& status) const {
  try {
    return fail_each(bound, with, status);
  } catch (const std::bad_alloc&) {
    // One for all of them takes little memory, none of it for a text that is longer than this.
    std::vector<LoadFailure> all(1);
    all.front().status = {status.code(), "out of memory"};
    return all;
  }
}

std::vector<LoadFailure> Worker::Impl::fail_each(const StepPlan& bound, const Ready* with,
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
    // How far it came is not known, so nothing counts as loaded, nor is anything written later.
    with->loads->end();
    return fail_all(bound, with, broke_off("the load", error));
  }
}

Status Worker::Impl::broke_off(const char* what, const std::exception& error) noexcept {
  try {
    return {Code::kUnavailable, std::string(what) + " broke off: " + error.what()};
  } catch (const std::bad_alloc&) {
    return {Code::kUnavailable, "it broke off"};
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
  const auto& [live, newest] = plan.live_holds;
  if (newest != 0) with.stager->keep_only(live, newest);
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

/// Never throws: what rests on pages that were not filled must not be saved.
void Worker::Impl::note_failures(const StepPlan& bound,
                                 const std::vector<LoadFailure>& failures) noexcept {
  if (failures.empty() || KVC_PLANTED("save_after_failed_load")) return;
  try {
    for (const LoadFailure& failure : failures) failed_requests.insert(failure.request);
    // Which of a request's pages failed is not told apart: none of them is trusted.
    for (const PageTask& task : bound.loads) {
      if (failed_requests.contains(task.request)) failed_slots.insert(task.slot);
    }
  } catch (const std::bad_alloc&) {
    saves_due = false;
  }
  // One that stands for loads of requests that it does not name.
  if (std::ranges::any_of(failures, [](const LoadFailure& one) { return one.key.empty(); })) {
    saves_due = false;
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

}  // namespace kvc
