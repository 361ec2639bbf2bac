#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "bindings/bind.h"
#include "bindings/convert.h"
#include "bindings/gil.h"
#include "bindings/stats.h"
#include "bindings/status_error.h"
#include "bindings/store_object.h"
#include "kvc/clock.h"
#include "kvc/device.h"
#include "kvc/executor.h"
#include "kvc/linked_worker.h"
#include "kvc/log.h"

namespace kvc::bindings {
namespace {

namespace nb = nanobind;
using nb::literals::operator""_a;

using WorkerObject = Owned<LinkedWorker>;

WorkerObject make_worker(const StoreObject& store, std::uint32_t rank, std::uint32_t world_size,
                         std::uint32_t tokens_per_block, std::size_t staging_bytes,
                         std::size_t save_queue_bytes, double load_deadline_s,
                         double save_deadline_s, std::size_t threads, bool by_layer,
                         bool replicated, bool overlap_loads,
                         std::uint64_t replication_bytes_per_second, bool staged) {
  const WorkerOptions options{.rank = rank,
                              .world_size = world_size,
                              .replicated = replicated,
                              .tokens_per_block = tokens_per_block,
                              .granularity = by_layer ? Granularity::kLayer : Granularity::kBlock,
                              .overlap_loads = overlap_loads,
                              .staging_bytes = staging_bytes,
                              .save_queue_bytes = save_queue_bytes,
                              .replication_bytes_per_second = replication_bytes_per_second,
                              .load_deadline = to_duration(load_deadline_s),
                              .save_deadline = to_duration(save_deadline_s),
                              .staged = staged};
  // The worker alone owns its threads: they end with the last task that keeps it alive.
  WorkerParts parts{.store = store.shared(),
                    .executor = make_thread_pool({.name = "kvc-worker", .threads = threads}),
                    .clock = system_clock(),
                    .logger = make_stderr_logger(LogLevel::kWarning),
                    .copier = make_host_page_copier()};
  return WorkerObject(value_or_throw([&] {
    const GilRelease release;
    return LinkedWorker::create(options, std::move(parts));
  }()));
}

void register_layout(WorkerObject& worker, const nb::bytes& keyspace, const DenseLayout& layout) {
  const Fingerprint fingerprint = to_fingerprint(keyspace);
  throw_if_failed([&] {
    const GilRelease release;
    return worker->register_layout(fingerprint, layout.layout);
  }());
}

void bind_plan(WorkerObject& worker, const nb::bytes& plan) {
  StepPlan decoded;
  if (plan.size() > 0) decoded = value_or_throw(decode_step_plan(view(plan)));
  const GilRelease release;
  worker->bind(std::move(decoded));
}

nb::list to_list(const std::vector<LoadFailure>& failures) {
  nb::list list;
  for (const LoadFailure& failure : failures) {
    list.append(nb::make_tuple(failure.request, to_str(failure.key),
                               to_str(to_string(failure.status.code())),
                               to_str(failure.status.message())));
  }
  return list;
}

nb::list load(WorkerObject& worker, StreamHandle stream) {
  return to_list([&] {
    const GilRelease release;
    return worker->core().load(stream);
  }());
}

nb::list wait_for_layer(WorkerObject& worker, std::uint32_t layer, StreamHandle stream) {
  return to_list([&] {
    const GilRelease release;
    return worker->core().wait_for_layer(layer, stream);
  }());
}

void layer_computed(WorkerObject& worker, std::uint32_t layer, StreamHandle stream) {
  const GilRelease release;
  worker->core().layer_computed(layer, stream);
}

nb::list save(WorkerObject& worker, StreamHandle stream) {
  return to_list([&] {
    const GilRelease release;
    return worker->core().save(stream);
  }());
}

void end_loads(WorkerObject& worker) {
  const GilRelease release;
  worker->core().end_loads();
}

bool drain(WorkerObject& worker, double timeout_s) {
  const Deadline deadline = Deadline::after(*system_clock(), to_duration(timeout_s));
  const GilRelease release;
  return worker->core().drain(deadline);
}

void close(WorkerObject& worker, double timeout_s) {
  const Deadline deadline = Deadline::after(*system_clock(), to_duration(timeout_s));
  const GilRelease release;
  worker->close(deadline);
}

}  // namespace

void bind_worker(nb::module_& m) {
  nb::class_<WorkerObject>(m, "Worker")
      .def(nb::new_(&make_worker), "store"_a, nb::kw_only(), "rank"_a, "world_size"_a,
           "tokens_per_block"_a, "staging_bytes"_a, "save_queue_bytes"_a, "load_deadline_s"_a,
           "save_deadline_s"_a, "threads"_a, "by_layer"_a = false, "replicated"_a = false,
           "overlap_loads"_a = true,
           "replication_bytes_per_second"_a = WorkerOptions{}.replication_bytes_per_second,
           "staged"_a = false)
      .def("register_layout", &register_layout, "keyspace"_a, "layout"_a,
           "The pages must outlive this object.")
      .def("bind", &bind_plan, "plan"_a, "No bytes: nothing to do in this step.")
      .def("load", &load, "stream"_a,
           nb::sig("def load(self, stream: int) -> list[tuple[int, str, str, str]]"),
           "Failures as (request, key, code, message).")
      .def("wait_for_layer", &wait_for_layer, "layer"_a, "stream"_a,
           nb::sig("def wait_for_layer(self, layer: int, stream: int) -> "
                   "list[tuple[int, str, str, str]]"),
           "Failures as of load().")
      .def("layer_computed", &layer_computed, "layer"_a, "stream"_a)
      .def("save", &save, "stream"_a,
           nb::sig("def save(self, stream: int) -> list[tuple[int, str, str, str]]"),
           "Failures as of load(): pages that the pass did not wait for.")
      .def("end_loads", &end_loads)
      .def("layers_stored_apart",
           [](const WorkerObject& w) { return w->core().layers_stored_apart(); })
      .def("drain", &drain, "timeout_s"_a)
      .def("close", &close, "timeout_s"_a)
      .def("load_budget_blocks",
           [](const WorkerObject& w) { return w->core().load_budget_blocks(); })
      .def(
          "stats",
          [](const WorkerObject& w) {
            nb::dict numbers = to_numbers(w->core().stats(), kWorkerStats);
            numbers.update(to_numbers(w->channel_stats(), kChannelClientStats));
            return numbers;
          },
          nb::sig(kNumbersType))
      .def(
          "latencies",
          [](const WorkerObject& w) { return to_latencies(w->core().stats(), kWorkerLatencies); },
          nb::sig(kLatenciesType))
      .def("disown", &WorkerObject::disown,
           "Give up without cleaning up: after a fork, in the child.");
}

}  // namespace kvc::bindings
