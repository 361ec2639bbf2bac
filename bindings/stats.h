// Figures of the core as Python sees them: dictionaries made by walking the tables of their
// structs.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "bindings/convert.h"
#include "kvc/stats.h"

namespace kvc::bindings {

/// Name -> number.
template <typename Stats, typename Value, std::size_t kRows>
nanobind::dict to_numbers(const Stats& stats, const StatField<Stats, Value> (&table)[kRows]) {
  nanobind::dict numbers;
  for (const StatField<Stats, Value>& row : table) {
    numbers[to_str(row.name())] = static_cast<std::uint64_t>(stats.*row.field);
  }
  return numbers;
}

/// Name -> (count of each bucket, sum in seconds).
template <typename Stats, std::size_t kRows>
nanobind::dict to_latencies(const Stats& stats, const LatencyField<Stats> (&table)[kRows]) {
  nanobind::dict latencies;
  for (const LatencyField<Stats>& row : table) {
    const LatencyHistogram& histogram = stats.*row.field;
    nanobind::list buckets;
    for (const std::uint64_t bucket : histogram.buckets()) buckets.append(bucket);
    latencies[to_str(row.name)] =
        nanobind::make_tuple(buckets, std::chrono::duration<double>(histogram.sum()).count());
  }
  return latencies;
}

inline constexpr const char* kNumbersType = "def stats(self) -> dict[str, int]";
inline constexpr const char* kLatenciesType =
    "def latencies(self) -> dict[str, tuple[list[int], float]]";

}  // namespace kvc::bindings
