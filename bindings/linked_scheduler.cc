#include "bindings/linked_scheduler.h"

#include <chrono>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvc::bindings {
namespace {

/// A promise that nobody takes up is held so much longer than it needs to be, on an idle engine.
constexpr Duration kExpiryCheckInterval = std::chrono::seconds(1);

/// Grows from leader to leader, faster than any of them begins holds.
HoldId nanoseconds_so_far(const Clock& clock) {
  return static_cast<HoldId>(clock.now().time_since_epoch().count());
}

}  // namespace

Result<std::shared_ptr<LinkedScheduler>> LinkedScheduler::create(SchedulerOptions options,
                                                                 SchedulerParts parts) {
  auto linked = std::make_shared<LinkedScheduler>();
  if (parts.worker != nullptr) {
    const HoldId newest_before = nanoseconds_so_far(*parts.clock);
    linked->leader_ = std::make_shared<StageLeader>(
        StageLeaderOptions{.world_size = parts.ranks, .newest_before = newest_before}, parts.clock);
    if (Status status = linked->link_ranks(parts, newest_before); !status.ok()) return status;
    options.stage_leader = linked->leader_;
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
  linked->scheduler_ = std::move(made).value();
  if (Status status = linked->start_ticker(); !status.ok()) return status;
  return linked;
}

Status LinkedScheduler::start_ticker() {
  Scheduler& core = *scheduler_;
  std::string name = "kvc-leases";
  Duration interval = core.lease_check_interval();
  std::function<void(const std::stop_token&)> work = [&core](const std::stop_token& stop) {
    core.renew_leases(stop);
  };
  if (leader_ != nullptr) {  // Staged promises have no leases.
    name = "kvc-holds";
    interval = kExpiryCheckInterval;
    work = [&leader = *leader_](const std::stop_token&) { leader.expire(); };
  }
  if (interval <= Duration::zero()) return {};
  Result<std::unique_ptr<Ticker>> ticker = Ticker::start(name, interval, std::move(work));
  if (!ticker.ok()) return ticker.status();
  ticker_ = std::move(ticker).value();
  return {};
}

Status LinkedScheduler::link_ranks(const SchedulerParts& parts, HoldId newest_before) {
  std::vector<std::shared_ptr<StageLink>> links;
  links.push_back(make_direct_link(0, parts.worker->core().stage_rank(), leader_, newest_before));
  if (parts.ranks > 1) {
    Result<std::unique_ptr<ChannelServer>> made = ChannelServer::create(
        {.world_size = parts.ranks, .address = parts.address}, parts.keyspace, parts.logger);
    if (!made.ok()) return made.status();
    server_ = std::move(made).value();
    for (std::uint32_t rank = 1; rank < parts.ranks; ++rank) links.push_back(server_->link(rank));
    leader_->set_rendezvous(server_->rendezvous());
  }
  leader_->set_links(std::move(links));
  if (server_ != nullptr) {
    server_->serve(leader_, [leader = std::weak_ptr(leader_)] {
      const std::shared_ptr<StageLeader> alive = leader.lock();
      return alive == nullptr ? LiveHolds{} : alive->live_holds();
    });
  }
  return {};
}

LinkedScheduler::~LinkedScheduler() {
  ticker_.reset();
  scheduler_.reset();
  if (server_ != nullptr) server_->close();
}

ChannelServerStats LinkedScheduler::channel_stats(const GilRelease& /*proof*/) const {
  return server_ == nullptr ? ChannelServerStats{} : server_->stats();
}

}  // namespace kvc::bindings
