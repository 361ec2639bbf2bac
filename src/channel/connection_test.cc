// The end of a connection, with the turns of its loop made one by one.

#include "channel/connection.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <asio/post.hpp>

#include "channel/channel_fixture.h"

namespace kvc {
namespace {

/// Writes down what it hears, and takes a goodbye for what it is.
class Owner final : public ConnectionOwner {
 public:
  void on_message(Connection& from, Message message) override {
    if (std::holds_alternative<Bye>(message)) return from.close(Cut::kEnded, "it has ended");
    heard.push_back(std::move(message));
  }
  void on_closed(Connection& /*which*/, Cut cut, const std::string& /*why*/) override {
    ends.push_back(cut);
  }

  std::vector<Message> heard;
  std::vector<Cut> ends;
};

/// An open connection, nothing of which happens outside turn().
class OpenConnection {
 public:
  OpenConnection() {
    Result<SocketFolder> folder = SocketFolder::make(::testing::TempDir());
    EXPECT_TRUE(folder.ok());
    Rendezvous here;
    Result<Acceptor> acceptor = listen_on(*context, "", &*folder, &here);
    EXPECT_TRUE(acceptor.ok());
    peer.emplace(here);
    connection = std::make_shared<Connection>(
        context, acceptor->accept(), &owner,
        Connection::Limits{.queue_bytes = 1 << 16, .frame_bytes = kFrameBytesOfRank});
    connection->start();
    connection->open_with(Ping{});
    turn();
  }
  ~OpenConnection() {
    connection->close(Cut::kByOwner, "the test is over");
    turn();
  }
  OpenConnection(const OpenConnection&) = delete;
  OpenConnection& operator=(const OpenConnection&) = delete;

  /// Until there is nothing to do.
  void turn() {
    context->restart();
    context->poll();
  }

  const std::shared_ptr<asio::io_context> context = std::make_shared<asio::io_context>(1);
  Owner owner;
  std::shared_ptr<Connection> connection;
  std::optional<RawPeer> peer;
};

TEST(Connection, AGoodbyeCountsAlsoIfAWriteIsTheFirstToSeeTheEnd) {
  OpenConnection open;
  // When the loop has looked last whether there is something to read, and before it writes.
  asio::post(*open.context, [&] {
    EXPECT_TRUE(open.peer->say(StageProgress{.hold = 3, .staged = 1}));
    EXPECT_TRUE(open.peer->say(Bye{}));
    open.peer->hang_up();
  });
  EXPECT_TRUE(open.connection->send(Ping{}));
  open.turn();
  EXPECT_EQ(open.owner.heard.size(), 1u);
  EXPECT_EQ(open.owner.ends, std::vector<Cut>{Cut::kEnded});
}

TEST(Connection, AnEndWithoutAGoodbyeIsALoss) {
  OpenConnection open;
  asio::post(*open.context, [&] { open.peer->hang_up(); });
  EXPECT_TRUE(open.connection->send(Ping{}));
  open.turn();
  EXPECT_EQ(open.owner.ends, std::vector<Cut>{Cut::kByPeer});
}

TEST(Connection, TheGoodbyeFollowsWhatWasSaidAMomentAgo) {
  OpenConnection open;
  EXPECT_TRUE(open.connection->send(StageProgress{.hold = 3, .staged = 1}));
  asio::post(*open.context, [&] { open.connection->close_with(Bye{}, "the test is over"); });
  open.turn();
  EXPECT_EQ(open.owner.ends, std::vector<Cut>{Cut::kByOwner});
  const std::optional<StageProgress> said = open.peer->hear_a<StageProgress>();
  ASSERT_TRUE(said.has_value());
  EXPECT_EQ(said->hold, 3u);
  EXPECT_TRUE(open.peer->hear_a<Bye>().has_value());
}

}  // namespace
}  // namespace kvc
