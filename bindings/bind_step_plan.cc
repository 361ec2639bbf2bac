#include <nanobind/nanobind.h>

#include <vector>

#include "bindings/bind.h"
#include "bindings/convert.h"
#include "bindings/status_error.h"
#include "kvc/step_plan.h"

namespace kvc::bindings {
namespace {

namespace nb = nanobind;
using nb::literals::operator""_a;

nb::list to_list(const std::vector<PageTask>& tasks) {
  nb::list list;
  for (const PageTask& task : tasks) {
    list.append(nb::make_tuple(task.request, to_bytes(task.block.bytes), task.slot));
  }
  return list;
}

nb::bytes without_saves(const nb::bytes& bytes) {
  StepPlan plan = value_or_throw(decode_step_plan(view(bytes)));
  plan.saves.clear();
  plan.hot.clear();
  return to_bytes(encode_step_plan(plan));
}

}  // namespace

void bind_step_plan(nb::module_& m) {
  nb::class_<StepPlan>(m, "StepPlan")
      .def_prop_ro("keyspace", [](const StepPlan& plan) { return to_bytes(plan.keyspace); })
      .def_ro("loads_in_batch", &StepPlan::loads_in_batch)
      .def_ro("loads_lost", &StepPlan::loads_lost)
      .def_prop_ro(
          "loads", [](const StepPlan& plan) { return to_list(plan.loads); },
          nb::sig("def loads(self) -> list[tuple[int, bytes, int]]"))
      .def_prop_ro(
          "saves", [](const StepPlan& plan) { return to_list(plan.saves); },
          nb::sig("def saves(self) -> list[tuple[int, bytes, int]]"))
      .def_prop_ro(
          "hot",
          [](const StepPlan& plan) {
            nb::list list;
            for (const HotBlock& hot : plan.hot) {
              list.append(nb::make_tuple(to_bytes(hot.block.bytes), hot.replicas));
            }
            return list;
          },
          nb::sig("def hot(self) -> list[tuple[bytes, int]]"));
  m.def(
      "decode_step_plan",
      [](const nb::bytes& bytes) { return value_or_throw(decode_step_plan(view(bytes))); },
      "plan"_a, "Tasks are (request, block, page).");
  m.def("without_saves", &without_saves, "plan"_a,
        "The same plan with its loads only: nothing that changes the store.");
}

}  // namespace kvc::bindings
