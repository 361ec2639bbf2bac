// What a channel does when both ends keep to the protocol.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <set>
#include <string>

#include "base/bytes.h"
#include "channel/channel_fixture.h"
#include "os/file.h"
#include "os/folder.h"
#include "os/socket.h"
#include "os/thread.h"

namespace kvc {
namespace {

ChannelServerOptions server_options(std::uint32_t world_size, const std::string& address = {}) {
  return {.world_size = world_size,
          .address = address,
          .folder = ::testing::TempDir(),
          .heartbeat = kPatient};
}

ChannelClientOptions client_options(std::uint32_t rank, std::uint32_t world_size) {
  return {.rank = rank, .world_size = world_size, .heartbeat = kPatient};
}

/// Unix socket and TCP.
class ChannelOnBothKinds : public ::testing::TestWithParam<const char*> {
 protected:
  ChannelServerOptions server_options(std::uint32_t world_size) const {
    return kvc::server_options(world_size, GetParam());
  }
};
INSTANTIATE_TEST_SUITE_P(Kinds, ChannelOnBothKinds, ::testing::Values("", "127.0.0.1"),
                         [](const auto& kind) {
                           return std::string(kind.param).empty() ? "Unix" : "Tcp";
                         });

TEST_P(ChannelOnBothKinds, OrdersGoOutAndProgressComesBack) {
  const Leader leader(server_options(4));
  std::vector<std::unique_ptr<Follower>> followers;
  for (std::uint32_t rank = 1; rank < 4; ++rank) {
    followers.push_back(std::make_unique<Follower>(client_options(rank, 4)));
    EXPECT_TRUE(followers.back()->client->meet(leader.server->rendezvous()).ok());
  }
  ASSERT_TRUE(leader.wait_for_all());
  EXPECT_EQ(leader.server->link(0), nullptr);
  EXPECT_EQ(leader.server->link(4), nullptr);
  const StageOrder order = order_of(11, 4096);
  for (std::uint32_t rank = 1; rank < 4; ++rank) {
    leader.server->link(rank)->stage(order);
    leader.server->link(rank)->release({.hold = 11, .from_block = 9});
  }
  ASSERT_TRUE(leader.sink->wait_for_progress(3));
  std::set<std::uint32_t> ranks;
  for (const auto& [rank, progress] : leader.sink->progress()) {
    ranks.insert(rank);
    EXPECT_EQ(progress.hold, 11u);
    EXPECT_EQ(progress.staged, 4096u);
    EXPECT_TRUE(progress.done);
    EXPECT_EQ(progress.end, StageEnd::kAll);
  }
  EXPECT_EQ(ranks, (std::set<std::uint32_t>{1, 2, 3}));
  for (const auto& follower : followers) {
    ASSERT_TRUE(follower->rank->wait_for_releases(1));
    EXPECT_EQ(follower->rank->releases()[0], (HoldRelease{.hold = 11, .from_block = 9}));
    const std::vector<StageOrder> got = follower->rank->orders();
    ASSERT_EQ(got.size(), 1u);
    EXPECT_EQ(got[0].hold, order.hold);
    EXPECT_EQ(got[0].blocks, order.blocks);
    EXPECT_EQ(got[0].fetch_budget, order.fetch_budget);
    EXPECT_EQ(follower->client->stats().connected, 1u);
    EXPECT_EQ(follower->client->stats().orders_received, 1u);
  }
  const ChannelServerStats stats = leader.server->stats();
  EXPECT_EQ(stats.ranks_connected, 3u);
  EXPECT_EQ(stats.orders_sent, 3u);
  EXPECT_EQ(stats.progress_received, 3u);
  EXPECT_EQ(stats.orders_dropped + stats.ranks_lost, 0u);
}

TEST_P(ChannelOnBothKinds, OrdersKeepTheirOrderWhoeverSends) {
  const Leader leader(server_options(2));
  Follower follower(client_options(1, 2));
  ASSERT_TRUE(follower.client->meet(leader.server->rendezvous()).ok());
  ASSERT_TRUE(leader.wait_for_all());
  constexpr HoldId kPerThread = 500;
  {
    std::vector<Thread> threads;
    for (HoldId base = 0; base < 3; ++base) {
      Result<Thread> thread = Thread::start("sender", [&leader, base] {
        for (HoldId i = 1; i <= kPerThread; ++i) {
          leader.server->link(1)->stage(order_of(base * kPerThread + i, 3));
        }
      });
      ASSERT_TRUE(thread.ok());
      threads.push_back(std::move(*thread));
    }
  }
  ASSERT_TRUE(leader.sink->wait_for_progress(3 * kPerThread));
  std::map<HoldId, HoldId> last;
  for (const StageOrder& order : follower.rank->orders()) {
    const HoldId base = (order.hold - 1) / kPerThread;
    EXPECT_LT(last[base], order.hold);
    last[base] = order.hold;
  }
}

TEST_P(ChannelOnBothKinds, ARankThatIsNotThereCountsAsLostAndTakesNoOrders) {
  const Leader leader(server_options(3));
  EXPECT_FALSE(leader.server->link(1)->connected());
  EXPECT_FALSE(leader.server->link(1)->stage(order_of(1, 5)));
  leader.server->link(1)->release({.hold = 1});
  EXPECT_EQ(leader.server->stats().orders_dropped, 1u);
  Follower follower(client_options(1, 3));
  ASSERT_TRUE(follower.client->meet(leader.server->rendezvous()).ok());
  EXPECT_TRUE(eventually([&] { return leader.server->link(1)->connected(); }));
  EXPECT_FALSE(leader.server->link(2)->connected()) << "rank 2 is not there";
  EXPECT_TRUE(leader.server->link(1)->stage(order_of(2, 1)));
  ASSERT_TRUE(follower.rank->wait_for_orders(1));
  EXPECT_EQ(follower.rank->orders()[0].hold, 2u) << "what was dropped stays dropped";
}

TEST_P(ChannelOnBothKinds, ARankThatConnectsLearnsWhatToKeepBeforeAnythingElse) {
  const Leader leader(server_options(2), {.live = {3, 5}, .newest = 6});
  Follower follower(client_options(1, 2));
  ASSERT_TRUE(follower.client->meet(leader.server->rendezvous()).ok());
  ASSERT_TRUE(leader.wait_for_all());
  leader.server->link(1)->stage(order_of(7, 1));
  ASSERT_TRUE(follower.rank->wait_for_orders(1));
  const std::vector<LiveHolds> kept = follower.rank->kept();
  ASSERT_EQ(kept.size(), 1u);
  EXPECT_EQ(kept[0].live, (std::vector<HoldId>{3, 5}));
  EXPECT_EQ(kept[0].newest, 6u);
}

TEST_P(ChannelOnBothKinds, ARankThatEndsIsMissedAndItsSuccessorTakenIn) {
  ChannelServerOptions options = server_options(2);
  options.heartbeat = {.interval = std::chrono::seconds(20), .missed = 9};
  const Leader leader(options, {.live = {4}, .newest = 9});
  {
    Follower follower(client_options(1, 2));
    ASSERT_TRUE(follower.client->meet(leader.server->rendezvous()).ok());
    ASSERT_TRUE(leader.wait_for_all());
    ASSERT_TRUE(follower.rank->wait_for_kept(1)) << "it knows that it is in";
  }
  ASSERT_TRUE(leader.sink->wait_for_lost(1));
  EXPECT_FALSE(leader.server->link(1)->connected());
  Follower successor(client_options(1, 2));
  ASSERT_TRUE(successor.client->meet(leader.server->rendezvous()).ok());
  ASSERT_TRUE(leader.wait_for_all());
  ASSERT_TRUE(successor.rank->wait_for_kept(1));
  EXPECT_EQ(successor.rank->kept()[0].live, (std::vector<HoldId>{4}));
  leader.server->link(1)->stage(order_of(10, 2));
  ASSERT_TRUE(leader.sink->wait_for_progress(1));
  EXPECT_EQ(leader.sink->lost(), (std::vector<std::uint32_t>{1}));
  EXPECT_EQ(leader.server->stats().ranks_lost, 0u) << "it went in good order";
  EXPECT_EQ(leader.logger->count("has ended"), 1u);
  EXPECT_EQ(leader.server->stats().ranks_connected, 1u);
}

TEST_P(ChannelOnBothKinds, ManyInstancesFindTheirOwn) {
  constexpr std::uint32_t kWorld = 3;
  std::vector<std::unique_ptr<Leader>> leaders;
  std::vector<std::unique_ptr<Follower>> followers;
  for (HoldId i = 0; i < 5; ++i)
    leaders.push_back(std::make_unique<Leader>(server_options(kWorld)));
  for (const auto& leader : leaders) {
    for (std::uint32_t rank = 1; rank < kWorld; ++rank) {
      followers.push_back(std::make_unique<Follower>(client_options(rank, kWorld)));
      ASSERT_TRUE(followers.back()->client->meet(leader->server->rendezvous()).ok());
    }
  }
  for (std::size_t i = 0; i < leaders.size(); ++i) {
    ASSERT_TRUE(leaders[i]->wait_for_all());
    for (std::uint32_t rank = 1; rank < kWorld; ++rank) {
      leaders[i]->server->link(rank)->stage(order_of(100 + i, i));
    }
  }
  for (std::size_t i = 0; i < leaders.size(); ++i) {
    ASSERT_TRUE(leaders[i]->sink->wait_for_progress(kWorld - 1));
    for (const auto& [rank, progress] : leaders[i]->sink->progress()) {
      EXPECT_EQ(progress.hold, 100 + i);
    }
    EXPECT_EQ(leaders[i]->server->stats().refused_nonce, 0u);
  }
  for (std::size_t i = 0; i < followers.size(); ++i) {
    const std::vector<StageOrder> orders = followers[i]->rank->orders();
    ASSERT_EQ(orders.size(), 1u);
    EXPECT_EQ(orders[0].hold, 100 + i / (kWorld - 1));
  }
}

TEST_P(ChannelOnBothKinds, AnotherLeaderEndsTheHoldsOfTheFirstAndHearsNothingOfThem) {
  const Leader first(server_options(2));
  const Leader second(server_options(2));
  Follower follower(client_options(1, 2));
  follower.rank->reports_at_once = false;
  ASSERT_TRUE(follower.client->meet(first.server->rendezvous()).ok());
  ASSERT_TRUE(first.wait_for_all());
  first.server->link(1)->stage(order_of(1, 3));
  ASSERT_TRUE(follower.rank->wait_for_orders(1));
  ASSERT_TRUE(follower.client->meet(second.server->rendezvous()).ok());
  ASSERT_TRUE(second.wait_for_all());
  ASSERT_TRUE(first.sink->wait_for_lost(1));
  ASSERT_TRUE(follower.rank->wait_for_kept(3));
  const LiveHolds between = follower.rank->kept()[1];
  EXPECT_TRUE(between.live.empty());
  EXPECT_EQ(between.newest, 1u) << "the holds of the next leader are not over";
  follower.rank->reports()[0]({.hold = 1, .staged = 3, .done = true});
  EXPECT_EQ(follower.client->stats().progress_dropped, 1u);
  second.server->link(1)->stage(order_of(1, 2));
  ASSERT_TRUE(follower.rank->wait_for_orders(2));
  follower.rank->reports()[1]({.hold = 1, .staged = 2, .done = true});
  ASSERT_TRUE(second.sink->wait_for_progress(1));
  EXPECT_EQ(second.sink->progress()[0].second.staged, 2u);
  EXPECT_TRUE(first.sink->progress().empty());
}

TEST_P(ChannelOnBothKinds, ALeaderThatEndsEndsItsHoldsAndIsNotLookedFor) {
  // Between two beats of the heart nothing else is on its way.
  ChannelServerOptions options = server_options(2);
  options.heartbeat = {.interval = std::chrono::seconds(20), .missed = 9};
  Leader leader(options);
  Follower follower(client_options(1, 2));
  ASSERT_TRUE(follower.client->meet(leader.server->rendezvous()).ok());
  ASSERT_TRUE(leader.wait_for_all());
  leader.server->link(1)->stage(order_of(1, 1));
  ASSERT_TRUE(leader.sink->wait_for_progress(1));
  leader.server->close();
  ASSERT_TRUE(follower.rank->wait_for_kept(2));
  EXPECT_TRUE(follower.rank->kept()[1].live.empty());
  EXPECT_EQ(follower.rank->kept()[1].newest, 1u);
  EXPECT_TRUE(leader.sink->lost().empty());
  EXPECT_EQ(follower.logger->count("has ended"), 1u);
  EXPECT_EQ(follower.client->stats().attempts_failed, 0u);
}

TEST(Channel, MeetingTheSameLeaderAgainDoesNothing) {
  const Leader leader(server_options(2));
  Follower follower(client_options(1, 2));
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(follower.client->meet(leader.server->rendezvous()).ok());
  }
  ASSERT_TRUE(leader.wait_for_all());
  ASSERT_TRUE(follower.client->meet(leader.server->rendezvous()).ok());
  leader.server->link(1)->stage(order_of(1, 1));
  ASSERT_TRUE(leader.sink->wait_for_progress(1));
  EXPECT_EQ(follower.client->stats().connections, 1u);
  EXPECT_TRUE(leader.sink->lost().empty());
}

TEST(Channel, CallersWaitUntilTheLeaderServes) {
  Result<std::unique_ptr<ChannelServer>> server =
      ChannelServer::create(server_options(2), kKeyspace, make_null_logger());
  ASSERT_TRUE(server.ok());
  Follower follower(client_options(1, 2));
  ASSERT_TRUE(follower.client->meet((*server)->rendezvous()).ok());
  EXPECT_FALSE((*server)->link(1)->connected());
  const auto sink = std::make_shared<FakeSink>();
  (*server)->serve(sink, [] { return LiveHolds{}; });
  EXPECT_TRUE(eventually([&] { return (*server)->link(1)->connected(); }));
  (*server)->close();
  EXPECT_EQ(sink.use_count(), 1) << "a closed server keeps nobody alive";
}

TEST(Channel, TheSocketLiesInAFolderOfThisUserAloneAndGoesWithTheLeader) {
  std::filesystem::path folder;
  {
    const Leader leader(server_options(2));
    const std::filesystem::path socket = leader.rendezvous().unix_path;
    folder = socket.parent_path();
    EXPECT_TRUE(path_exists(socket));
    FileInfo info;
    ASSERT_TRUE(ok(Folder::info_of_path(folder.string(), &info)));
    EXPECT_EQ(info.permissions, 0700u);
    EXPECT_EQ(info.owner, effective_user());
  }
  EXPECT_FALSE(path_exists(folder));
}

TEST(Channel, LeadersDifferInEverySecret) {
  std::set<Nonce> nonces;
  std::set<std::uint64_t> instances;
  for (int i = 0; i < 8; ++i) {
    const Leader leader(server_options(2));
    nonces.insert(leader.rendezvous().nonce);
    instances.insert(leader.rendezvous().instance);
    for (const std::string& line : leader.logger->lines()) {
      EXPECT_EQ(line.find(hex_encode(leader.rendezvous().nonce)), std::string::npos);
    }
  }
  EXPECT_EQ(nonces.size(), 8u);
  EXPECT_EQ(instances.size(), 8u);
}

TEST(Channel, AStatedPortIsTakenAndGivenBack) {
  const Result<std::uint16_t> port = free_tcp_port("127.0.0.1");
  ASSERT_TRUE(port.ok());
  for (int i = 0; i < 2; ++i) {
    // The second leader gets it although connections of the first have just ended.
    const Leader leader(server_options(2, "127.0.0.1:" + std::to_string(*port)));
    ASSERT_NE(leader.server, nullptr);
    EXPECT_EQ(leader.rendezvous().port, *port);
    Follower follower(client_options(1, 2));
    ASSERT_TRUE(follower.client->meet(leader.server->rendezvous()).ok());
    ASSERT_TRUE(leader.wait_for_all());
  }
}

TEST(Channel, OptionsThatCannotBeMeantAreRefusedByName) {
  const auto refused = [](ChannelServerOptions options) {
    return ChannelServer::create(std::move(options), kKeyspace, make_null_logger()).status();
  };
  EXPECT_EQ(refused(server_options(1)).code(), Code::kInvalid);
  for (const char* address : {"0.0.0.0", "[::]:4000", "host.example", "10.0.0.1:x", "239.1.1.1"}) {
    const Status status = refused(server_options(2, address));
    EXPECT_EQ(status.code(), Code::kInvalid) << address;
    EXPECT_NE(status.message().find("'" + std::string(address) + "'"), std::string::npos);
  }
  // An address of the documentation range is nobody's.
  EXPECT_EQ(refused(server_options(2, "192.0.2.1")).code(), Code::kUnavailable);
  ChannelServerOptions elsewhere = server_options(2);
  elsewhere.folder = "/no/such/folder";
  EXPECT_NE(refused(elsewhere).message().find("/no/such/folder"), std::string::npos);
  ChannelServerOptions deep = server_options(2);
  deep.folder = ::testing::TempDir() + std::string(90, 'd');
  std::filesystem::create_directory(deep.folder);
  EXPECT_EQ(refused(deep).code(), Code::kInvalid);
  std::filesystem::remove(deep.folder);
  const auto refused_client = [](ChannelClientOptions options) {
    return ChannelClient::create(options, kKeyspace, std::make_shared<FakeRank>(),
                                 make_null_logger())
        .status()
        .code();
  };
  EXPECT_EQ(refused_client(client_options(0, 2)), Code::kInvalid);
  EXPECT_EQ(refused_client(client_options(2, 2)), Code::kInvalid);
  EXPECT_EQ(refused_client(client_options(1, 1)), Code::kInvalid);
}

TEST(Channel, ATextThatIsNoneOrOfAnotherWorldIsToldAtOnce) {
  const Leader leader(server_options(3));
  Follower follower(client_options(1, 2));
  EXPECT_EQ(follower.client->meet("").code(), Code::kInvalid);
  EXPECT_EQ(follower.client->meet("kvc-stage/2 x").code(), Code::kInvalid);
  const Status status = follower.client->meet(leader.server->rendezvous());
  EXPECT_EQ(status.code(), Code::kInvalid);
  EXPECT_NE(status.message().find("3 rank(s)"), std::string::npos);
  EXPECT_EQ(status.message().find(hex_encode(leader.rendezvous().nonce)), std::string::npos);
}

TEST(Channel, LinksAndReportsOutliveTheirEnds) {
  std::shared_ptr<StageLink> link;
  StageRank::Report report;
  {
    const Leader leader(server_options(2));
    Follower follower(client_options(1, 2));
    ASSERT_TRUE(follower.client->meet(leader.server->rendezvous()).ok());
    ASSERT_TRUE(leader.wait_for_all());
    link = leader.server->link(1);
    link->stage(order_of(1, 1));
    ASSERT_TRUE(leader.sink->wait_for_progress(1));
    report = follower.rank->reports()[0];
    leader.server->close();
    leader.server->close();
    EXPECT_FALSE(link->connected());
    EXPECT_TRUE(leader.sink->lost().empty()) << "an end is no loss";
    follower.client->close();
    EXPECT_TRUE(follower.client->meet(leader.server->rendezvous()).ok()) << "does nothing";
  }
  link->stage(order_of(2, 1));
  link->release({.hold = 1});
  report({.hold = 1, .staged = 1, .done = true});
  EXPECT_FALSE(link->connected());
}

}  // namespace
}  // namespace kvc
