#include "kvc/scheduler.h"

#include <algorithm>
#include <exception>
#include <string>
#include <unordered_set>
#include <utility>

#include "connector/quiet_log.h"
#include "connector/scheduler_impl.h"

namespace kvc {
namespace {

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
  if (options.lookup_deadline <= Duration::zero() || options.lookup_deadline > kLookupDeadlineMax) {
    return invalid("lookup_deadline is " + std::to_string(options.lookup_deadline.count()) +
                   " ns: must be above 0, and at most an hour");
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

}  // namespace

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

void Scheduler::Impl::forget(RequestId id) {
  const MutexLock lock(mutex);
  drop(id);
}

bool Scheduler::Impl::allocated(RequestId id, std::span<const SlotIndex> slots) {
  const Instant now = clock->now();
  const MutexLock lock(mutex);
  step_time.heard(now);
  TrackedRequest* request = tracker.find(id);
  if (request == nullptr) return false;
  // Once per request, whatever became of its lookups.
  if (replication.enabled() && !request->has_pages()) {
    replication.requested(request->blocks(), now);
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
  if (owing_loads.empty()) return;
  std::unordered_set<RequestId> computing;  // For the first time.
  for (const StepRequest& step : batch) {
    if (step.is_new && step.scheduled_tokens > 0) computing.insert(step.id);
  }
  loaded_holds.reserve(loaded_holds.size() + owing_loads.size());
  for (const RequestId id : owing_loads) {
    leases.over(id);
    TrackedRequest* request = tracker.find(id);
    if (request == nullptr) continue;
    plan->loads_in_batch = plan->loads_in_batch && computing.contains(id);
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
    if (request == nullptr) continue;
    const std::size_t before = plan->saves.size();
    request->report(step, &plan->saves);
    note_absent(*request, std::span(plan->saves).subspan(before));
  }
}

void Scheduler::Impl::note_absent(const TrackedRequest& request, std::span<PageTask> saves) {
  const Instant asked_at = request.promise().probed_at;
  for (PageTask& task : saves) {
    // Else every one of many writers of one prefix, who all asked before the first of them wrote,
    // would write it.
    task.absent = task.absent && !handed_out.seen_after(task.block, asked_at);
    handed_out.saw(task.block);
  }
}

void Scheduler::Impl::plan_copies(StepPlan* plan) {
  if (!replication.enabled()) return;
  plan->hot = replication.choose(plan->loads, plan->saves, clock->now());
  stats.blocks_hot += plan->hot.size();
}

/// Whatever became of the rest of the plan: ranks must hear of the ends of holds. If not now, then
/// by the next plan.
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

void Scheduler::renew_leases(const std::stop_token& stop) {
  const Deadline deadline = Deadline::after(*impl_->clock, impl_->options.lookup_deadline);
  try {
    for (const Impl::Renewal& renewal : impl_->due_renewals()) {
      if (stop.stop_requested() || !impl_->renew(renewal, deadline)) return;
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
  stats.decodes_running = impl_->running_decodes;
  if (impl_->leader == nullptr) return stats;
  stats.promises_held = impl_->leader->holds();
  stats.ranks_awaited = impl_->leader->awaited();
  stats.fetch_blocks_per_s =
      static_cast<std::uint64_t>(impl_->fetch_speed.blocks_per_second(impl_->clock->now()));
  return stats;
}

void Scheduler::note_opted_out(RequestId id, std::string_view why) {
  try {
    Decision decision{.request = id, .end = PrefixEnd::kOptedOut, .why = std::string(why)};
    const MutexLock lock(impl_->mutex);
    impl_->decisions.add(std::move(decision));
  } catch (const std::exception& error) {
    log_quietly(*impl_->logger, LogLevel::kError, error.what());
  }
}

std::vector<std::string> Scheduler::explain() const {
  std::deque<Decision> entries;
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
