// What the decorators of one store count. Shared by them and whoever shows the figures.
#pragma once

#include <atomic>
#include <cstdint>

namespace kvc {

/// Each field is exact; a reader sees no common instant of several fields.
struct StoreCallCounters {
  std::atomic<std::uint64_t> calls{0};          ///< Batched calls that were handed to the store.
  std::atomic<std::uint64_t> items{0};          ///< Their items.
  std::atomic<std::uint64_t> abandoned{0};      ///< Of the calls, given up at their deadline.
  std::atomic<std::uint64_t> abandoned_now{0};  ///< Of those, not returned yet; they hold buffers.
  /// Batched calls answered "down" without asking the store: too many abandoned, no free thread
  /// before the deadline, breaker open.
  std::atomic<std::uint64_t> refused{0};
  std::atomic<std::uint64_t> breaker_opened{0};  ///< Times that the store began to count as down.
};

}  // namespace kvc
