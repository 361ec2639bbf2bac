// A scheduler together with what makes its promises, and keeps them between the engine's calls: for
// staged promises the leader, the way to every rank and a thread that takes back what nobody has
// allocated; for leased ones a thread that renews leases.
//
//   auto scheduler = LinkedScheduler::create(
//       options, {.keyspace = keyspace, .store = store, .clock = system_clock(),
//                 .logger = logger, .worker = rank0, .ranks = 8});
//   (*scheduler)->core().query(...)
//
// With LinkedSchedulerParts::worker, rank 0's LinkedWorker of this process, promises are staged.
// The other ranks find the leader by the plans that plan_step() makes, if each is bound on every
// rank (LinkedWorker::bind()): as long as a rank is not connected plans say how to reach the
// leader, and nothing is promised.
//
// One scheduler at a time may have a worker: the next one ends all holds of the one before, whose
// loads, should they still come, have to fetch. Holds are numbered from the time at which their
// scheduler was made: the clock must not be set back between schedulers that have the same ranks.
//
// Threads: every method may be called from any thread. Calls of core() wait as kvc/scheduler.h says
// for one another, the store and the ranks; the destructor waits for what its own threads have
// under way. After a fork the child must leave the object alone, its destructor included.
// Lifetime: store, clock and logger live as long as they are needed. The worker is not kept alive;
// without it nothing is promised any more.
// Claims and their tests: docs/contract/channel.md.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kvc/channel.h"
#include "kvc/linked_worker.h"
#include "kvc/scheduler.h"

namespace kvc {

struct LinkedSchedulerParts {
  Fingerprint keyspace{};  ///< Of the workers of this instance.
  std::shared_ptr<Store> store;
  std::shared_ptr<const Clock> clock;
  std::shared_ptr<Logger> logger;
  /// Rank 0's, after register_layout(), for staged promises; null: leased ones.
  std::shared_ptr<LinkedWorker> worker = nullptr;
  std::uint32_t ranks = 1;          ///< That take orders, with a worker.
  std::string address = {};         ///< As ChannelServerOptions::address, for more ranks than one.
  ChannelHeartbeat heartbeat = {};  ///< That of the workers.
};

class LinkedScheduler {
 public:
  /// With a worker, `stage_leader` and `resident_prefix` of the options are replaced, and promises
  /// are held for `lookup_deadline` and 10 s more until their pages are allocated. Fails as
  /// Scheduler::create() and ChannelServer::create() do; kExhausted if the system gives no thread.
  static Result<std::unique_ptr<LinkedScheduler>> create(SchedulerOptions options,
                                                         LinkedSchedulerParts parts);
  /// Releases what is promised and not being loaded, and hangs up on the ranks.
  ~LinkedScheduler();
  LinkedScheduler(const LinkedScheduler&) = delete;
  LinkedScheduler& operator=(const LinkedScheduler&) = delete;

  Scheduler& core() const;
  /// Zeros without ranks in other processes.
  ChannelServerStats channel_stats() const;

 private:
  struct Impl;
  explicit LinkedScheduler(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvc
