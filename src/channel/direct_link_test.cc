#include <gtest/gtest.h>

#include "channel/channel_fixture.h"
#include "kvc/stage_leader.h"

namespace kvc {
namespace {

TEST(DirectLink, OrdersAndReportsTakeNoDetour) {
  const auto rank = std::make_shared<FakeRank>();
  const auto sink = std::make_shared<FakeSink>();
  const std::shared_ptr<StageLink> link = make_direct_link(0, rank, sink, 0);
  EXPECT_TRUE(link->connected());
  link->stage(order_of(3, 5));
  ASSERT_EQ(rank->orders().size(), 1u);
  EXPECT_EQ(rank->orders()[0].blocks, order_of(3, 5).blocks);
  ASSERT_EQ(sink->progress().size(), 1u) << "before stage() has returned";
  EXPECT_EQ(sink->progress()[0].first, 0u);
  EXPECT_EQ(sink->progress()[0].second.staged, 5u);
  link->release({.hold = 3, .from_block = 2});
  EXPECT_EQ(rank->releases(), (std::vector<HoldRelease>{{.hold = 3, .from_block = 2}}));
}

TEST(DirectLink, ThereIsNoneToARankThatIsClosed) {
  const auto leader =
      std::make_shared<StageLeader>(StageLeaderOptions{.world_size = 1}, system_clock());
  leader->set_links({make_direct_link(0, nullptr, leader, 0)});
  EXPECT_FALSE(leader->connected());
  const std::vector<BlockHash> blocks = order_of(1, 3).blocks;
  EXPECT_EQ(leader->stage(blocks, Deadline::never()).end, StageEnd::kUnavailable);
}

TEST(DirectLink, EndsTheHoldsOfLeadersBefore) {
  const auto rank = std::make_shared<FakeRank>();
  const auto sink = std::make_shared<FakeSink>();
  make_direct_link(0, rank, sink, 0);
  EXPECT_TRUE(rank->kept().empty()) << "there was none";
  make_direct_link(0, rank, sink, 7);
  EXPECT_EQ(rank->kept(), (std::vector<LiveHolds>{{.live = {}, .newest = 7}}));
}

TEST(DirectLink, AReportAfterTheEndOfTheLeaderGoesNowhere) {
  const auto rank = std::make_shared<FakeRank>();
  auto sink = std::make_shared<FakeSink>();
  make_direct_link(0, rank, sink, 0)->stage(order_of(1, 1));
  EXPECT_EQ(sink.use_count(), 1) << "neither link nor report keeps the leader";
  sink = nullptr;
  rank->reports()[0]({.hold = 1, .staged = 1, .done = true});
}

}  // namespace
}  // namespace kvc
