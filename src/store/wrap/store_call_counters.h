// What the decorators of one store count. Shared by them and whoever shows the figures.
#pragma once

#include <atomic>
#include <cstdint>

#include "kvc/stats.h"

namespace kvc {

/// Each field is exact; a reader sees no common instant of several fields.
struct StoreCallCounters {
  std::atomic<std::uint64_t> calls{0};
  std::atomic<std::uint64_t> items{0};
  std::atomic<std::uint64_t> abandoned{0};
  std::atomic<std::uint64_t> abandoned_now{0};
  std::atomic<std::uint64_t> refused{0};
  std::atomic<std::uint64_t> breaker_opened{0};
};

inline constexpr StatField<StoreCallCounters, std::atomic<std::uint64_t>> kStoreCallStats[] = {
    {"store_calls", "", &StoreCallCounters::calls, StatKind::kCounter,
     "Batched calls that were handed to the store."},
    {"store_items", "", &StoreCallCounters::items, StatKind::kCounter, "Items of those calls."},
    {"store_calls_abandoned", "", &StoreCallCounters::abandoned, StatKind::kCounter,
     "Calls given up at their deadline."},
    {"store_calls_abandoned_now", "", &StoreCallCounters::abandoned_now, StatKind::kGauge,
     "Calls given up that have not returned yet; they hold buffers."},
    {"store_calls_refused", "", &StoreCallCounters::refused, StatKind::kCounter,
     "Calls answered down without asking: too many given up, no free thread before the deadline, "
     "breaker open."},
    {"store_breaker_opened", "", &StoreCallCounters::breaker_opened, StatKind::kCounter,
     "Times that the store began to count as down."},
};
static_assert(covers_all(kStoreCallStats));

}  // namespace kvc
