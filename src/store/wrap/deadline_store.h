// A store whose calls return by their deadline, whatever the inner store does.
//
// Protocol of one call:
//   1. Deadline passed, or too many calls abandoned: every item is kDown, the inner store sees
//      nothing.
//   2. The call becomes a task of the executor; the caller waits until its deadline.
//   3. Answered in time: the inner store's results.
//   4. Not started in time: the task will do nothing; every item is kDown, a put has no effect.
//   5. Started and not back in time: abandoned. Every item is kDown, the effect of a put is not
//      known, and the task keeps `context.hold` until the inner call returns, since until then the
//      store may read or write the buffers.
#pragma once

#include <cstddef>
#include <memory>

#include "kvc/clock.h"
#include "kvc/executor.h"
#include "kvc/store.h"
#include "store/wrap/store_call_counters.h"

namespace kvc {

struct DeadlineStoreOptions {
  /// From this many abandoned calls on, every call is kDown at once until one has returned. Calls
  /// that are already waiting may still add to them. An abandoned call occupies a thread of the
  /// executor, so choose fewer than it has threads.
  std::size_t max_abandoned = 4;
  /// For register_memory and unregister_memory, which have no deadline of their own. Memory whose
  /// registration timed out must stay allocated until the store is gone.
  Duration registration_budget = std::chrono::seconds(5);
  /// replicate() that may be inside, since each waits for most of its time and the others need the
  /// threads; one more backs off at once.
  std::size_t max_replicating = 2;
  /// Where get, put and replicate run, which move bytes; null: where all calls do. An engine waits
  /// for the small calls, so that these may yield to them.
  std::shared_ptr<Executor> transfers = nullptr;
};

/// Safe to use from any thread but those of its executors. Abandoned calls keep `inner` alive, so
/// the decorator may be destroyed while they run. close() closes `inner` on the executor; if that
/// does not happen by the deadline, it does when `inner` is destroyed.
std::shared_ptr<Store> make_deadline_store(std::shared_ptr<Store> inner,
                                           std::shared_ptr<Executor> executor,
                                           std::shared_ptr<const Clock> clock,
                                           std::shared_ptr<StoreCallCounters> counters,
                                           DeadlineStoreOptions options = {});

/// Threads for deadline stores that share `counters`. Whoever drops the last reference does not
/// wait for those inside of abandoned calls, which may never come back: another thread does.
std::shared_ptr<Executor> make_call_threads(ThreadPoolOptions options,
                                            std::shared_ptr<StoreCallCounters> counters);

}  // namespace kvc
