// Staging through a channel, with a rank's worker at the other end.
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "channel/channel_fixture.h"
#include "connector/worker_fixture.h"
#include "kvc/executor.h"
#include "kvc/linked_worker.h"

namespace kvc {
namespace {

constexpr std::uint64_t kBlocks = 3;

std::vector<BlockHash> staged_blocks() {
  std::vector<BlockHash> blocks;
  for (std::uint64_t number = 1; number <= kBlocks; ++number) blocks.push_back(make_hash(number));
  return blocks;
}

/// The second rank: its memory, its fetches and its way to the leader are the real ones.
struct StagingRank : WorkerWorld {
  StagingRank() {
    options.staged = true;
    options.rank = 1;
    options.world_size = 2;
    executor_in_use = make_thread_pool({.name = "stage", .threads = 2});
    put_all(kBlocks);
    Result<std::shared_ptr<LinkedWorker>> made = LinkedWorker::create(options, parts(), kPatient);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    linked = std::move(made).value();
    EXPECT_TRUE(linked->register_layout(kTestKeyspace, pool.layout).ok());
  }

  std::shared_ptr<LinkedWorker> linked;
};

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
  StepPlan plan{.keyspace = kTestKeyspace, .loads = {}, .saves = {}};
  plan.rendezvous = (*server)->rendezvous();
  rank.linked->bind(plan);
  ASSERT_TRUE(sink->wait_for_progress(1));
  EXPECT_TRUE(eventually([&] { return sink->progress().back().second.done; }));
  EXPECT_EQ(sink->progress().back().second.staged, kBlocks);
  (*server)->close();
  EXPECT_TRUE(taken);
}

}  // namespace
}  // namespace kvc
