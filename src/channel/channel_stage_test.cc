// Staging through a channel: a leader of promises on one end, a rank's worker on the other.
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "channel/channel_fixture.h"
#include "connector/worker_fixture.h"
#include "kvc/executor.h"
#include "kvc/stage_leader.h"

namespace kvc {
namespace {

constexpr std::uint64_t kBlocks = 3;

std::vector<BlockHash> staged_blocks() {
  std::vector<BlockHash> blocks;
  for (std::uint64_t number = 1; number <= kBlocks; ++number) blocks.push_back(make_hash(number));
  return blocks;
}

StagedBlocks stage_on(StageLeader& leader) {
  return leader.stage(staged_blocks(), Deadline::after(*system_clock(), std::chrono::seconds(20)));
}

/// A leader of two ranks. The first has every block.
class StagingLeader {
 public:
  explicit StagingLeader(HoldId newest_before)
      : leader_(std::make_shared<StageLeader>(
            StageLeaderOptions{.world_size = 2, .newest_before = newest_before}, system_clock())) {
    Result<std::unique_ptr<ChannelServer>> made = ChannelServer::create(
        {.world_size = 2, .folder = ::testing::TempDir(), .heartbeat = kPatient}, kTestKeyspace,
        make_null_logger());
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    server_ = std::move(*made);
    leader_->set_links({make_direct_link(0, std::make_shared<FakeRank>(), leader_, newest_before),
                        server_->link(1)});
    server_->serve(leader_, [leader = std::weak_ptr(leader_)] {
      const std::shared_ptr<StageLeader> alive = leader.lock();
      return alive == nullptr ? LiveHolds{} : alive->live_holds();
    });
  }
  ~StagingLeader() { server_->close(); }

  const std::string& rendezvous() const { return server_->rendezvous(); }
  bool wait_for_rank() const {
    return eventually([this] { return leader_->connected(); });
  }
  StagedBlocks stage() { return stage_on(*leader_); }

 private:
  const std::shared_ptr<StageLeader> leader_;
  std::unique_ptr<ChannelServer> server_;
};

/// A rank whose memory and fetches are the real ones, and the store has every block.
struct StagingWorker : WorkerWorld {
  StagingWorker(std::uint32_t rank, std::uint32_t world_size) {
    options.staged = true;
    options.rank = rank;
    options.world_size = world_size;
    executor_in_use = make_thread_pool({.name = "stage", .threads = 2});
    start();
    put_all(kBlocks);
  }
};

/// The second rank: its way to the leader is the real one too.
struct StagingRank : StagingWorker {
  StagingRank() : StagingWorker(1, 2) {
    Result<std::unique_ptr<ChannelClient>> made =
        ChannelClient::create({.rank = 1, .world_size = 2, .heartbeat = kPatient}, kTestKeyspace,
                              worker->stage_rank(), logger);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    client = std::move(*made);
  }

  std::unique_ptr<ChannelClient> client;
};

void expect_all_staged(StagingLeader& leader, StagingRank& rank) {
  ASSERT_TRUE(rank.client->meet(leader.rendezvous()).ok());
  ASSERT_TRUE(leader.wait_for_rank());
  for (int query = 0; query < 2; ++query) {
    const StagedBlocks staged = leader.stage();
    EXPECT_EQ(staged.blocks, kBlocks) << "ended by " << static_cast<int>(staged.end);
  }
}

TEST(ChannelStage, ARankTakesTheOrdersOfEveryLeaderThatItMeets) {
  StagingRank rank;
  // One ends in good order before the next is met; another is there still, and is left.
  HoldId newest_before = 0;
  std::vector<std::unique_ptr<StagingLeader>> still_there;
  for (const bool ends : {true, true, false, false, true}) {
    auto leader = std::make_unique<StagingLeader>(newest_before);
    expect_all_staged(*leader, rank);
    if (!ends) still_there.push_back(std::move(leader));
    leader.reset();
    EXPECT_TRUE(ends ? eventually([&] { return rank.client->stats().connected == 0; }) : true);
    newest_before += 1000;
  }
}

TEST(ChannelStage, NoHoldOfALeaderThatWasLeftStays) {
  StagingRank rank;
  StagingLeader first(0);
  expect_all_staged(first, rank);
  EXPECT_EQ(rank.worker->stats().holds_open, 2u);
  StagingLeader second(1000);
  expect_all_staged(second, rank);
  EXPECT_EQ(rank.worker->stats().holds_open, 2u) << "those of the second";
}

/// A leader of one rank, in the process of its worker.
std::shared_ptr<StageLeader> direct_leader(const StagingWorker& rank, HoldId newest_before) {
  auto leader = std::make_shared<StageLeader>(
      StageLeaderOptions{.world_size = 1, .newest_before = newest_before}, system_clock());
  leader->set_links({make_direct_link(0, rank.worker->stage_rank(), leader, newest_before)});
  return leader;
}

TEST(DirectStage, TheHoldOfAPlanThatNeverCameEndsWithTheNextLeader) {
  const StagingWorker rank(0, 1);
  std::shared_ptr<StageLeader> leader = direct_leader(rank, 1000);
  const StagedBlocks planned = stage_on(*leader);
  ASSERT_EQ(planned.blocks, kBlocks);
  ASSERT_TRUE(leader->allocated(planned.hold));
  StepPlan never_bound;
  leader->plan(std::vector{planned.hold}, &never_bound);
  ASSERT_EQ(never_bound.done_holds, std::vector{planned.hold});
  leader = nullptr;
  EXPECT_EQ(rank.worker->stats().holds_open, 1u) << "its load might still come";
  leader = direct_leader(rank, 2000);
  EXPECT_EQ(rank.worker->stats().holds_open, 0u);
  EXPECT_EQ(rank.worker->stats().tier_blocks_held, 0u);
  EXPECT_EQ(stage_on(*leader).blocks, kBlocks) << "its own orders are taken";
}

TEST(ChannelStage, AnOrderBesideAConnectionIsAnswered) {
  StagingRank rank;
  const auto sink = std::make_shared<FakeSink>();
  Result<std::unique_ptr<ChannelServer>> server = ChannelServer::create(
      {.world_size = 2, .folder = ::testing::TempDir(), .heartbeat = kPatient}, kTestKeyspace,
      make_null_logger());
  ASSERT_TRUE(server.ok());
  const std::shared_ptr<StageLink> link = (*server)->link(1);
  bool taken = false;
  // Begun and ordered when the link is connected already, and the list is not drawn up yet.
  (*server)->serve(sink, [&] {
    taken = link->stage(
        {.hold = 5, .blocks = staged_blocks(), .fetch_budget = std::chrono::seconds(30)});
    return LiveHolds{.live = {5}, .newest = 5};
  });
  ASSERT_TRUE(rank.client->meet((*server)->rendezvous()).ok());
  ASSERT_TRUE(sink->wait_for_progress(1));
  EXPECT_TRUE(eventually([&] { return sink->progress().back().second.done; }));
  EXPECT_EQ(sink->progress().back().second.staged, kBlocks);
  (*server)->close();
  EXPECT_TRUE(taken);
}

}  // namespace
}  // namespace kvc
