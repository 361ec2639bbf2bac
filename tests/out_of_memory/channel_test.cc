// The way of orders to a rank elsewhere, whose leader runs out of memory.
#include "kvc/channel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "testing/collecting_logger.h"
#include "tests/out_of_memory/failing_new.h"

namespace kvc::testlib {
namespace {

constexpr Fingerprint kKeyspace{std::byte{3}};

/// Keeps what it was ordered.
class Rank final : public StageRank {
 public:
  void stage(StageOrder order, Report) override {
    const MutexLock lock(mutex_);
    holds_.push_back(order.hold);
    changed_.notify_all();
  }
  void release(HoldRelease) override {}
  void keep_only(std::span<const HoldId>, HoldId) override {}

  bool await(HoldId hold) {
    const Deadline deadline = Deadline::after(*system_clock(), std::chrono::seconds(30));
    const MutexLock lock(mutex_);
    while (std::ranges::find(holds_, hold) == holds_.end()) {
      if (deadline.passed(*system_clock())) return false;
      changed_.wait_until(mutex_, deadline.at);
    }
    return true;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<HoldId> holds_ KVC_GUARDED_BY(mutex_);
};

class Sink final : public StageSink {
 public:
  void on_progress(std::uint32_t, const StageProgress&) override {}
  void on_rank_lost(std::uint32_t) override {}
};

StageOrder order_of(HoldId hold) {
  return {
      .hold = hold, .blocks = std::vector<BlockHash>(40), .fetch_budget = std::chrono::seconds(1)};
}

void order_short_of_memory() {
  std::unique_ptr<ChannelServer> server;
  std::unique_ptr<ChannelClient> client;
  const auto rank = std::make_shared<Rank>();
  const auto logger = std::make_shared<CollectingLogger>();
  server = std::move(ChannelServer::create({.world_size = 2}, kKeyspace, logger)).value();
  server->serve(std::make_shared<Sink>(), [] { return LiveHolds{}; });
  client = std::move(ChannelClient::create({.rank = 1, .world_size = 2}, kKeyspace, rank, logger))
               .value();
  ASSERT_TRUE(client->meet(server->rendezvous()).ok());
  const std::shared_ptr<StageLink> link = server->link(1);
  for (HoldId hold = 1; !link->stage(order_of(hold)); ++hold) {
  }
  StageOrder order = order_of(1'000'000);
  bool taken = false;
  try {
    const Armed armed;
    link->release({.hold = 1, .from_block = 0});
    taken = link->stage(std::move(order));
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what();
  }
  if (taken) {
    EXPECT_TRUE(rank->await(1'000'000));
  }
  {
    const Spared spared;
    EXPECT_TRUE(link->stage(order_of(1'000'001)));
    EXPECT_TRUE(rank->await(1'000'001)) << "nothing goes out any more";
  }
  try {
    const Armed armed;
    server->close();
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what();
  }
}

TEST(OutOfMemoryOnAChannel, OrdersAreTakenOrNotAndLaterOnesGoOut) {
  for (const Shortage shortage : {Shortage::kOnce, Shortage::kFromThenOn}) {
    EXPECT_GE(at_every_allocation(shortage, order_short_of_memory), 2u);
  }
}

}  // namespace
}  // namespace kvc::testlib
