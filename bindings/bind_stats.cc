#include <nanobind/nanobind.h>

#include <chrono>
#include <cstddef>
#include <string_view>

#include "bindings/bind.h"
#include "bindings/convert.h"
#include "kvc/channel.h"
#include "kvc/scheduler.h"
#include "kvc/stats.h"
#include "kvc/worker.h"
#include "store/file/file_store.h"
#include "store/wrap/store_call_counters.h"

namespace kvc::bindings {
namespace {

namespace nb = nanobind;

template <typename Stats, typename Value, std::size_t kRows>
nb::list describe(const StatField<Stats, Value> (&table)[kRows]) {
  nb::list rows;
  for (const StatField<Stats, Value>& row : table) {
    const bool grows = row.kind == StatKind::kCounter;
    rows.append(nb::make_tuple(to_str(row.family), to_str(row.reason), grows ? "counter" : "gauge",
                               to_str(row.help)));
  }
  return rows;
}

template <typename Stats, std::size_t kRows>
nb::list describe(const LatencyField<Stats> (&table)[kRows]) {
  nb::list rows;
  for (const LatencyField<Stats>& row : table) {
    rows.append(nb::make_tuple(to_str(row.name), "", "histogram", to_str(row.help)));
  }
  return rows;
}

nb::dict table() {
  nb::dict tables;
  tables["scheduler"] =
      describe(kSchedulerStats) + describe(kChannelServerStats) + describe(kSchedulerLatencies);
  tables["worker"] =
      describe(kWorkerStats) + describe(kChannelClientStats) + describe(kWorkerLatencies);
  tables["store"] = describe(kStoreCallStats) + describe(kFileStoreStats);
  return tables;
}

nb::list bounds() {
  nb::list seconds;
  for (const std::chrono::microseconds bound : LatencyHistogram::kBounds) {
    seconds.append(std::chrono::duration<double>(bound).count());
  }
  return seconds;
}

}  // namespace

void bind_stats(nb::module_& m) {
  m.def("stat_table", &table,
        nb::sig("def stat_table() -> dict[str, list[tuple[str, str, str, str]]]"),
        "By owner: (family, reason, kind, help) of each figure.");
  m.def("latency_bounds", &bounds, nb::sig("def latency_bounds() -> list[float]"),
        "Upper bounds of all buckets but the last, in seconds.");
}

}  // namespace kvc::bindings
