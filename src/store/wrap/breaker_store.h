// A store that is left alone while it is down.
//
//   closed     every call passes; `failures_to_open` failures in a row open the breaker
//   open       every call is kDown at once, until the pause is over
//   half open  one call passes as a probe, all others are kDown; a good answer closes the breaker,
//   a
//              failure opens it again for twice the pause
//
// A call fails if it answers kDown for any item: put the breaker around the deadline decorator, so
// that an expired deadline is a failure too. A call of kCallerBug alone says nothing about the
// store. Nor does replicate(), which takes its time and which nobody needs: it passes while the
// breaker is closed, and its answers do not count. Answers of calls that began before the breaker
// last changed its state do not count.
#pragma once

#include <cstdint>
#include <memory>

#include "kvc/clock.h"
#include "kvc/log.h"
#include "kvc/store.h"
#include "store/wrap/store_call_counters.h"

namespace kvc {

struct BreakerStoreOptions {
  std::uint32_t failures_to_open = 3;  ///< > 0
  Duration first_pause = std::chrono::milliseconds(500);
  Duration longest_pause = std::chrono::seconds(15);
};

/// Safe to use from any thread. Registration and close always pass. Says once that the store counts
/// as down and once that it is back, with the time between.
std::shared_ptr<Store> make_breaker_store(std::shared_ptr<Store> inner,
                                          std::shared_ptr<const Clock> clock,
                                          std::shared_ptr<Logger> logger,
                                          std::shared_ptr<StoreCallCounters> counters,
                                          BreakerStoreOptions options = {});

}  // namespace kvc
