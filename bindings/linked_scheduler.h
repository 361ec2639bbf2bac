// A scheduler together with the leader of its staged promises and the way to the ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "bindings/gil.h"
#include "bindings/linked_worker.h"
#include "kvc/channel.h"
#include "kvc/scheduler.h"
#include "kvc/stage_leader.h"
#include "os/ticker.h"

namespace kvc::bindings {

struct SchedulerParts {
  Fingerprint keyspace{};
  std::shared_ptr<Store> store;
  std::shared_ptr<const Clock> clock;
  std::shared_ptr<Logger> logger;
  /// Rank 0's, for staged promises; null: leased ones.
  std::shared_ptr<LinkedWorker> worker;
  /// As ChannelServerOptions::address.
  std::string address;
  std::uint32_t ranks = 1;  ///< That take orders, with a worker.
};

class LinkedScheduler {
 public:
  static Result<std::shared_ptr<LinkedScheduler>> create(SchedulerOptions options,
                                                         SchedulerParts parts);
  ~LinkedScheduler();

  /// To be called without the GIL: calls wait for one another, and one that does so with the GIL
  /// holds up every thread of Python.
  Scheduler& core(const GilRelease& /*proof*/) const { return *scheduler_; }
  ChannelServerStats channel_stats(const GilRelease& proof) const;

 private:
  Status link_ranks(const SchedulerParts& parts, HoldId newest_before);
  /// What has to be done whether or not the engine calls: promises end in time.
  Status start_ticker();

  // The scheduler ends first, then whoever reports to the leader.
  std::shared_ptr<StageLeader> leader_;
  std::unique_ptr<ChannelServer> server_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<Ticker> ticker_;  // Null: there is nothing to be done in between.
};

}  // namespace kvc::bindings
