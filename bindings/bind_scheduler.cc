#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bind.h"
#include "bindings/convert.h"
#include "bindings/gil.h"
#include "bindings/stats.h"
#include "bindings/status_error.h"
#include "bindings/store_object.h"
#include "kvc/clock.h"
#include "kvc/linked_scheduler.h"
#include "kvc/log.h"

namespace kvc::bindings {
namespace {

namespace nb = nanobind;
using nb::literals::operator""_a;

using WorkerObject = Owned<LinkedWorker>;
// Request, first report, new tokens, new pages, tokens computed before, tokens of this pass.
using StepTuple = std::tuple<RequestId, bool, nb::handle, nb::handle, std::size_t, std::size_t>;

/// A scheduler for Python, which has no way to it with the GIL: its calls wait for one another, and
/// one that does so with the GIL holds up every thread of Python.
class SchedulerObject {
 public:
  explicit SchedulerObject(std::shared_ptr<LinkedScheduler> scheduler)
      : scheduler_(std::move(scheduler)) {}

  Scheduler& core(const GilRelease& /*proof*/) const { return scheduler_->core(); }
  ChannelServerStats channel_stats(const GilRelease& /*proof*/) const {
    return scheduler_->channel_stats();
  }
  /// As Owned::disown().
  void disown() { scheduler_.disown(); }

 private:
  Owned<LinkedScheduler> scheduler_;
};

SchedulerObject make_scheduler(const StoreObject& store, const nb::bytes& keyspace,
                               std::uint32_t tokens_per_block, std::uint32_t world_size,
                               const nb::bytes& deployment_secret, double lookup_deadline_s,
                               bool exact_pages, std::uint32_t layers, std::uint32_t max_replicas,
                               double hot_at, double half_life_s, std::uint32_t ranks,
                               const WorkerObject* stage_worker, const std::string& stage_address,
                               std::uint64_t prefill_tokens_per_s, std::size_t min_hit_blocks) {
  SchedulerOptions options{
      .tokens_per_block = tokens_per_block,
      .world_size = world_size,
      .deployment_secret = std::string(deployment_secret.c_str(), deployment_secret.size()),
      .lookup_deadline = to_duration(lookup_deadline_s),
      .exact_pages = exact_pages,
      .layers = layers};
  options.replication.max_replicas = max_replicas;
  options.replication.hot_at = hot_at;
  options.replication.half_life = to_duration(half_life_s);
  options.prefill_tokens_per_s = prefill_tokens_per_s;
  options.min_hit_blocks = min_hit_blocks;
  LinkedSchedulerParts parts{.keyspace = to_fingerprint(keyspace),
                             .store = store.shared(),
                             .clock = system_clock(),
                             .logger = make_stderr_logger(LogLevel::kWarning),
                             .worker = stage_worker == nullptr ? nullptr : stage_worker->shared(),
                             .ranks = ranks,
                             .address = stage_address};
  return SchedulerObject(value_or_throw([&] {
    const GilRelease release;
    return LinkedScheduler::create(std::move(options), std::move(parts));
  }()));
}

std::size_t query(SchedulerObject& scheduler, RequestId id, nb::handle tokens,
                  std::size_t prompt_tokens, nb::handle cache_salt, nb::handle lora,
                  nb::handle media, std::size_t computed_tokens,
                  std::optional<std::size_t> load_budget) {
  const std::vector<Token> converted = to_tokens(tokens);
  RequestContent content{.tokens = converted,
                         .prompt_tokens = prompt_tokens,
                         .scope = to_scope(cache_salt, lora),
                         .media = to_media(media)};
  return value_or_throw([&] {
           const GilRelease release;
           if (load_budget.has_value()) scheduler.core(release).set_load_budget(*load_budget);
           return scheduler.core(release).query(id, content, computed_tokens);
         }())
      .tokens;
}

bool allocated(SchedulerObject& scheduler, RequestId id, nb::handle slots) {
  const std::vector<SlotIndex> converted = to_slots(slots);
  const GilRelease release;
  return scheduler.core(release).allocated(id, converted);
}

/// What a runtime reports of one step, read. Apart from the plan, so that a caller knows by which
/// of the two failed whether loads that are owed can still be planned.
class StepBatch {
 public:
  explicit StepBatch(const std::vector<StepTuple>& batch) : lists_(batch.size()) {
    requests_.reserve(batch.size());
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const auto& [id, is_new, tokens, slots, computed, scheduled] = batch[i];
      lists_[i] = {to_tokens(tokens), to_slots(slots)};
      requests_.push_back({.id = id,
                           .is_new = is_new,
                           .new_tokens = lists_[i].first,
                           .new_slots = lists_[i].second,
                           .computed_tokens = computed,
                           .scheduled_tokens = scheduled});
    }
  }
  StepBatch(StepBatch&&) noexcept = default;
  StepBatch& operator=(StepBatch&&) = delete;
  ~StepBatch() = default;

  std::span<const StepRequest> requests() const { return requests_; }

 private:
  std::vector<std::pair<std::vector<Token>, std::vector<SlotIndex>>> lists_;
  std::vector<StepRequest> requests_;  // Of the contents of `lists_`.
};

nb::bytes plan_step(SchedulerObject& scheduler, const StepBatch& batch) {
  std::string encoded;
  {
    const GilRelease release;
    encoded = encode_step_plan(scheduler.core(release).plan_step(batch.requests()));
  }
  return to_bytes(encoded);
}

void finished(SchedulerObject& scheduler, RequestId id) {
  const GilRelease release;
  scheduler.core(release).finished(id);
}

void cancel_load(SchedulerObject& scheduler, RequestId id, std::size_t start_tokens) {
  const GilRelease release;
  scheduler.core(release).cancel_load(id, start_tokens);
}

SchedulerStats stats_of(const SchedulerObject& scheduler) {
  const GilRelease release;
  return scheduler.core(release).stats();
}

nb::dict numbers(const SchedulerObject& scheduler) {
  const ChannelServerStats channel = [&] {
    const GilRelease release;
    return scheduler.channel_stats(release);
  }();
  nb::dict all = to_numbers(stats_of(scheduler), kSchedulerStats);
  all.update(to_numbers(channel, kChannelServerStats));
  return all;
}

nb::dict latencies(const SchedulerObject& scheduler) {
  return to_latencies(stats_of(scheduler), kSchedulerLatencies);
}

nb::list explain(const SchedulerObject& scheduler) {
  const std::vector<std::string> lines = [&] {
    const GilRelease release;
    return scheduler.core(release).explain();
  }();
  nb::list list;
  for (const std::string& line : lines) list.append(to_str(line));
  return list;
}

void note_opted_out(SchedulerObject& scheduler, RequestId id, std::string_view why) {
  const GilRelease release;
  scheduler.core(release).note_opted_out(id, why);
}

}  // namespace

void bind_scheduler(nb::module_& m) {
  nb::class_<StepBatch>(m, "StepBatch")
      .def(nb::init<const std::vector<StepTuple>&>(), "requests"_a,
           nb::sig("def __init__(self, requests: list[tuple[int, bool, "
                   "collections.abc.Sequence[int], collections.abc.Sequence[int], int, int]]) -> "
                   "None"),
           "Of (request, is_new, new tokens, new pages, computed, scheduled).");
  nb::class_<SchedulerObject>(m, "Scheduler")
      .def(nb::new_(&make_scheduler), "store"_a, "keyspace"_a, nb::kw_only(), "tokens_per_block"_a,
           "world_size"_a, "deployment_secret"_a, "lookup_deadline_s"_a, "exact_pages"_a,
           "layers"_a = 0, "max_replicas"_a = 1, "hot_at"_a = 8.0, "half_life_s"_a = 600.0,
           "ranks"_a = 1, "stage_worker"_a.none() = nb::none(), "stage_address"_a = "",
           "prefill_tokens_per_s"_a = 0, "min_hit_blocks"_a = 1,
           "`stage_worker`: rank 0's, with its pool, for staged promises.")
      .def("query", &query, "request"_a, "tokens"_a, nb::kw_only(), "prompt_tokens"_a,
           "cache_salt"_a.none(), "lora"_a.none(), "media"_a, "computed_tokens"_a,
           "load_budget"_a.none(),
           nb::sig("def query(self, request: int, tokens: collections.abc.Sequence[int], *, "
                   "prompt_tokens: int, cache_salt: str | int | None, lora: str | None, "
                   "media: list[tuple[bytes, int, int]], computed_tokens: int, "
                   "load_budget: int | None) -> int"),
           "Tokens promised; `load_budget` bounds the blocks of one step.")
      .def("allocated", &allocated, "request"_a, "slots"_a,
           nb::sig("def allocated(self, request: int, slots: collections.abc.Sequence[int]) -> "
                   "bool"),
           "False if the request is not known: its promise is lost.")
      .def("plan_step", &plan_step, "batch"_a,
           "An exception loses the loads that were to be planned.")
      .def("finished", &finished, "request"_a)
      .def("cancel_load", &cancel_load, "request"_a, "start_tokens"_a)
      .def("stats", &numbers, nb::sig(kNumbersType))
      .def("latencies", &latencies, nb::sig(kLatenciesType))
      .def("explain", &explain, nb::sig("def explain(self) -> list[str]"),
           "A line for each of the last requests asked about, oldest first.")
      .def("note_opted_out", &note_opted_out, "request"_a, "why"_a, "For explain() alone.")
      .def("disown", &SchedulerObject::disown,
           "Give up without cleaning up: after a fork, in the child.");
}

}  // namespace kvc::bindings
