// A channel between two processes: the rank is killed and stopped for real.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "channel/channel_fixture.h"

namespace kvc {
namespace {

/// The program channel_rank. Ends it at the end of its life, if it did not end by itself.
class RankProcess {
 public:
  RankProcess(const std::string& rendezvous, std::uint32_t rank, std::uint32_t world_size) {
    const std::string command = "exec '" KVC_CHANNEL_RANK "' '" + rendezvous + "' " +
                                std::to_string(rank) + " " + std::to_string(world_size);
    output_ = ::popen(command.c_str(), "r");
    const std::string first = line();
    EXPECT_EQ(first.substr(0, 4), "pid ") << first;
    pid_ = first.size() > 4 ? first.substr(4) : "";
  }
  ~RankProcess() {
    if (output_ == nullptr) return;
    signal("KILL");
    ::pclose(output_);
  }
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  /// Empty at its end.
  std::string line() {
    std::array<char, 4096> text{};
    if (output_ == nullptr || std::fgets(text.data(), text.size(), output_) == nullptr) return {};
    std::string found = text.data();
    if (!found.empty() && found.back() == '\n') found.pop_back();
    return found;
  }
  void signal(const std::string& name) const {
    if (pid_.empty()) return;
    static_cast<void>(std::system(("kill -" + name + " " + pid_ + " 2>/dev/null").c_str()));
  }
  /// Waits for its end.
  int status() { return ::pclose(std::exchange(output_, nullptr)); }

 private:
  FILE* output_ = nullptr;
  std::string pid_;
};

ChannelServerOptions options_of(ChannelHeartbeat heartbeat = kPatient) {
  return {.world_size = 3, .folder = ::testing::TempDir(), .heartbeat = heartbeat};
}

/// A leader of the keyspace that the program has.
struct ProcessLeader {
  explicit ProcessLeader(ChannelServerOptions options)
      : server(std::move(
            *ChannelServer::create(std::move(options), Fingerprint{}, make_null_logger()))) {
    server->serve(sink, [] { return LiveHolds{.live = {2, 3}, .newest = 8}; });
  }
  bool wait_for(std::uint32_t rank) const {
    return eventually([&] { return server->link(rank)->connected(); });
  }

  std::shared_ptr<FakeSink> sink = std::make_shared<FakeSink>();
  std::unique_ptr<ChannelServer> server;
};

TEST(ChannelProcess, TwoRanksInTheirOwnProcessesTakeOrdersAndEnd) {
  const ProcessLeader leader(options_of());
  RankProcess one(leader.server->rendezvous(), 1, 3);
  RankProcess two(leader.server->rendezvous(), 2, 3);
  ASSERT_TRUE(leader.wait_for(1) && leader.wait_for(2));
  EXPECT_EQ(one.line(), "keep 8 2 3");
  EXPECT_EQ(two.line(), "keep 8 2 3");
  leader.server->link(1)->stage(order_of(9, 5));
  leader.server->link(2)->stage(order_of(9, 5));
  EXPECT_EQ(one.line(), "order 9 5");
  EXPECT_EQ(two.line(), "order 9 5");
  EXPECT_TRUE(leader.sink->wait_for_progress(2));
  leader.server->link(1)->release({.hold = 1});
  leader.server->link(2)->release({.hold = 1});
  EXPECT_EQ(one.line(), "release 1 0");
  EXPECT_EQ(one.status(), 0);
  EXPECT_EQ(two.line(), "release 1 0");
  EXPECT_EQ(two.status(), 0);
  EXPECT_TRUE(leader.sink->wait_for_lost(2));
}

TEST(ChannelProcess, AKilledRankIsLostAtOnceAndItsSuccessorIsTakenIn) {
  const ProcessLeader leader(options_of());
  RankProcess first(leader.server->rendezvous(), 1, 3);
  ASSERT_TRUE(leader.wait_for(1));
  first.signal("KILL");
  ASSERT_TRUE(leader.sink->wait_for_lost(1));
  EXPECT_FALSE(leader.server->link(1)->connected());
  RankProcess second(leader.server->rendezvous(), 1, 3);
  ASSERT_TRUE(leader.wait_for(1));
  leader.server->link(1)->stage(order_of(10, 2));
  EXPECT_TRUE(leader.sink->wait_for_progress(1));
}

TEST(ChannelProcess, AStoppedRankIsLostAndComesBackWhenItGoesOn) {
  const ProcessLeader leader(options_of(kWatchful));
  RankProcess rank(leader.server->rendezvous(), 1, 3);
  ASSERT_TRUE(leader.wait_for(1));
  EXPECT_EQ(rank.line(), "keep 8 2 3");
  rank.signal("STOP");
  ASSERT_TRUE(leader.sink->wait_for_lost(1)) << "no heartbeat is answered";
  leader.server->link(1)->stage(order_of(10, 2));
  EXPECT_EQ(leader.server->stats().orders_dropped, 1u);
  rank.signal("CONT");
  ASSERT_TRUE(leader.wait_for(1));
  EXPECT_EQ(rank.line(), "keep 8 2 3") << "told anew what to keep";
  leader.server->link(1)->stage(order_of(11, 2));
  EXPECT_TRUE(leader.sink->wait_for_progress(1));
}

}  // namespace
}  // namespace kvc
