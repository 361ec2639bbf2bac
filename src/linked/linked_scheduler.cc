#include "kvc/linked_scheduler.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "kvc/stage_leader.h"
#include "os/ticker.h"

namespace kvc {
namespace {

/// A promise that nobody takes up is held so much longer than it needs to be, on an idle engine.
constexpr Duration kExpiryCheckInterval = std::chrono::seconds(1);

/// Grows from leader to leader, faster than any of them begins holds.
HoldId nanoseconds_so_far(const Clock& clock) {
  return static_cast<HoldId>(clock.now().time_since_epoch().count());
}

StageLeaderOptions leading(std::uint32_t ranks, HoldId newest_before, Duration lookup_deadline) {
  StageLeaderOptions options{.world_size = ranks, .newest_before = newest_before};
  // The scheduler refuses what is not within its bounds.
  lookup_deadline = std::clamp(lookup_deadline, Duration::zero(), kLookupDeadlineMax);
  // The other queries of the step may use up the whole deadline before the engine allocates.
  options.hold_for += lookup_deadline;
  options.fetch_budget += lookup_deadline;
  return options;
}

}  // namespace

struct LinkedScheduler::Impl {
  ~Impl();

  Status lead(const LinkedSchedulerParts& parts, Duration lookup_deadline);
  Status link_ranks(const LinkedSchedulerParts& parts, HoldId newest_before);
  /// What has to be done whether or not the engine calls: promises end in time.
  Status start_ticker();

  // The scheduler ends first, then whoever reports to the leader.
  std::shared_ptr<StageLeader> leader;
  std::unique_ptr<ChannelServer> server;
  std::unique_ptr<Scheduler> scheduler;
  std::unique_ptr<Ticker> ticker;  // Null: there is nothing to be done in between.
};

LinkedScheduler::Impl::~Impl() {
  ticker.reset();
  scheduler.reset();
  if (server != nullptr) server->close();
}

Status LinkedScheduler::Impl::lead(const LinkedSchedulerParts& parts, Duration lookup_deadline) {
  const HoldId newest_before = nanoseconds_so_far(*parts.clock);
  leader = std::make_shared<StageLeader>(leading(parts.ranks, newest_before, lookup_deadline),
                                         parts.clock);
  return link_ranks(parts, newest_before);
}

Status LinkedScheduler::Impl::link_ranks(const LinkedSchedulerParts& parts, HoldId newest_before) {
  std::vector<std::shared_ptr<StageLink>> links;
  links.push_back(make_direct_link(0, parts.worker->core().stage_rank(), leader, newest_before));
  if (parts.ranks > 1) {
    Result<std::unique_ptr<ChannelServer>> made = ChannelServer::create(
        {.world_size = parts.ranks, .address = parts.address, .heartbeat = parts.heartbeat},
        parts.keyspace, parts.logger);
    if (!made.ok()) return made.status();
    server = std::move(made).value();
    for (std::uint32_t rank = 1; rank < parts.ranks; ++rank) links.push_back(server->link(rank));
    leader->set_rendezvous(server->rendezvous());
  }
  leader->set_links(std::move(links));
  if (server != nullptr) {
    server->serve(leader, [weak = std::weak_ptr(leader)] {
      const std::shared_ptr<StageLeader> alive = weak.lock();
      return alive == nullptr ? LiveHolds{} : alive->live_holds();
    });
  }
  return {};
}

Status LinkedScheduler::Impl::start_ticker() {
  std::string name = "kvc-leases";
  Duration interval = scheduler->lease_check_interval();
  std::function<void(const std::stop_token&)> work =
      [&core = *scheduler](const std::stop_token& stop) { core.renew_leases(stop); };
  if (leader != nullptr) {  // Staged promises have no leases.
    name = "kvc-holds";
    interval = kExpiryCheckInterval;
    work = [&of = *leader](const std::stop_token&) { of.expire(); };
  }
  if (interval <= Duration::zero()) return {};
  Result<std::unique_ptr<Ticker>> started = Ticker::start(name, interval, std::move(work));
  if (!started.ok()) return started.status();
  ticker = std::move(started).value();
  return {};
}

Result<std::unique_ptr<LinkedScheduler>> LinkedScheduler::create(SchedulerOptions options,
                                                                 LinkedSchedulerParts parts) {
  auto impl = std::make_unique<Impl>();
  if (parts.worker != nullptr) {
    const Status status = impl->lead(parts, options.lookup_deadline);
    if (!status.ok()) return status;
    options.stage_leader = impl->leader;
    options.resident_prefix =
        [rank0 = std::weak_ptr(parts.worker)](std::span<const BlockHash> blocks) -> std::size_t {
      const std::shared_ptr<LinkedWorker> worker = rank0.lock();
      return worker == nullptr ? 0 : worker->core().resident_prefix(blocks);
    };
  }
  Result<std::unique_ptr<Scheduler>> made =
      Scheduler::create(std::move(options), parts.keyspace, std::move(parts.store),
                        std::move(parts.clock), std::move(parts.logger));
  if (!made.ok()) return made.status();
  impl->scheduler = std::move(made).value();
  if (Status status = impl->start_ticker(); !status.ok()) return status;
  return std::unique_ptr<LinkedScheduler>(new LinkedScheduler(std::move(impl)));
}

LinkedScheduler::LinkedScheduler(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

LinkedScheduler::~LinkedScheduler() = default;

Scheduler& LinkedScheduler::core() const { return *impl_->scheduler; }

ChannelServerStats LinkedScheduler::channel_stats() const {
  return impl_->server == nullptr ? ChannelServerStats{} : impl_->server->stats();
}

}  // namespace kvc
