// What a channel does when an end is gone, stuck, foreign or malicious.
#include <gtest/gtest.h>

#include <memory>
#include <new>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/random.h"
#include "channel/channel_fixture.h"
#include "testing/seed.h"

namespace kvc {
namespace {

ChannelServerOptions server_options(std::uint32_t world_size,
                                    ChannelHeartbeat heartbeat = kPatient) {
  return {.world_size = world_size, .folder = ::testing::TempDir(), .heartbeat = heartbeat};
}

ChannelClientOptions client_options(std::uint32_t rank, std::uint32_t world_size,
                                    ChannelHeartbeat heartbeat = kPatient) {
  return {.rank = rank,
          .world_size = world_size,
          .heartbeat = heartbeat,
          .first_retry = std::chrono::milliseconds(1),
          .longest_retry = std::chrono::milliseconds(5)};
}

/// The answer to an introduction, and that the caller is hung up on.
std::optional<Refusal> refusal_of(const Leader& leader, const Hello& hello) {
  RawPeer caller(leader.rendezvous());
  EXPECT_TRUE(caller.say(hello));
  const std::optional<Refusal> refusal = caller.hear_a<Refusal>();
  EXPECT_TRUE(caller.hears_the_end());
  return refusal;
}

/// A rank in the hand of the test.
std::unique_ptr<RawPeer> admitted(const Leader& leader, std::uint32_t rank) {
  auto peer = std::make_unique<RawPeer>(leader.rendezvous());
  EXPECT_TRUE(peer->say(hello_for(leader.rendezvous(), rank)));
  EXPECT_TRUE(peer->hear_a<Welcome>().has_value());
  return peer;
}

/// For lack of memory, say.
class BrokenLogger final : public Logger {
 public:
  void log(LogLevel /*level*/, std::string_view /*message*/) override { throw std::bad_alloc(); }
};

// ---- who is let in -------------------------------------------------------------------------

TEST(ChannelFaults, OnlyWhoKnowsTheNonceIsLetIn) {
  const Leader leader(server_options(3));
  const Hello good = hello_for(leader.rendezvous(), 1);
  for (std::size_t at = 0; at < good.nonce.size(); ++at) {
    Hello wrong = good;
    wrong.nonce[at] ^= std::byte{1};
    EXPECT_EQ(refusal_of(leader, wrong), Refusal::kNonce);
  }
  Hello other_instance = good;
  ++other_instance.instance;
  EXPECT_EQ(refusal_of(leader, other_instance), Refusal::kNonce);
  EXPECT_EQ(leader.server->stats().refused_nonce, good.nonce.size() + 1);
  EXPECT_FALSE(leader.server->link(1)->connected());
  EXPECT_EQ(leader.server->stats().ranks_connected, 0u);
}

TEST(ChannelFaults, RankAndWorldSizeMustFit) {
  const Leader leader(server_options(3));
  for (const std::uint32_t rank : {0u, 3u, ~0u}) {
    EXPECT_EQ(refusal_of(leader, hello_for(leader.rendezvous(), rank)), Refusal::kRank);
  }
  Hello other_world = hello_for(leader.rendezvous(), 1);
  other_world.world_size = 2;
  EXPECT_EQ(refusal_of(leader, other_world), Refusal::kRank);
  EXPECT_EQ(leader.server->stats().refused_rank, 4u);
}

TEST(ChannelFaults, AnotherKeyspaceIsRefusedForGood) {
  const Leader leader(server_options(2));
  Follower follower(client_options(1, 2), Fingerprint{});
  ASSERT_TRUE(follower.client->meet(leader.server->rendezvous()).ok());
  ASSERT_TRUE(eventually([&] { return follower.client->stats().refused == 1; }));
  EXPECT_TRUE(eventually([&] { return follower.logger->count("keyspace") == 1; }));
  ASSERT_TRUE(follower.client->meet(leader.server->rendezvous()).ok());
  // What is met next is met at once: the refused leader was not tried again before it.
  const Leader other(server_options(2));
  ASSERT_TRUE(follower.client->meet(other.server->rendezvous()).ok());
  ASSERT_TRUE(eventually([&] { return follower.client->stats().refused == 2; }));
  EXPECT_EQ(leader.server->stats().refused_keyspace, 1u);
  EXPECT_EQ(other.server->stats().refused_keyspace, 1u);
  EXPECT_EQ(leader.server->stats().ranks_connected, 0u);
}

TEST(ChannelFaults, ASecondProcessWithARankIsRefusedWhileTheFirstIsThere) {
  const Leader leader(server_options(2));
  Follower first(client_options(1, 2));
  ASSERT_TRUE(first.client->meet(leader.server->rendezvous()).ok());
  ASSERT_TRUE(leader.wait_for_all());
  EXPECT_EQ(refusal_of(leader, hello_for(leader.rendezvous(), 1)), Refusal::kDuplicate);
  EXPECT_EQ(leader.server->stats().refused_duplicate, 1u);
  leader.server->link(1)->stage(order_of(1, 1));
  EXPECT_TRUE(leader.sink->wait_for_progress(1)) << "the first is not disturbed";
  EXPECT_TRUE(leader.sink->lost().empty());
}

TEST(ChannelFaults, ADuplicateIsLetInOnceTheFirstHasGone) {
  const Leader leader(server_options(2));
  auto first = std::make_unique<Follower>(client_options(1, 2));
  ASSERT_TRUE(first->client->meet(leader.server->rendezvous()).ok());
  ASSERT_TRUE(leader.wait_for_all());
  ChannelClientOptions stubborn = client_options(1, 2);
  stubborn.attempts = 1'000'000;
  Follower second(stubborn);
  ASSERT_TRUE(second.client->meet(leader.server->rendezvous()).ok());
  ASSERT_TRUE(eventually([&] { return second.client->stats().refused > 0; }));
  first = nullptr;
  ASSERT_TRUE(second.rank->wait_for_kept(1));
  EXPECT_TRUE(leader.wait_for_all());
}

TEST(ChannelFaults, AClientMayReplaceItsOwnConnectionThatTheLeaderStillHolds) {
  const Leader leader(server_options(2));
  const std::unique_ptr<RawPeer> old = admitted(leader, 1);
  const std::unique_ptr<RawPeer> anew = admitted(leader, 1);
  EXPECT_TRUE(leader.sink->wait_for_lost(1));
  EXPECT_TRUE(old->hears_the_end());
  EXPECT_TRUE(leader.server->link(1)->connected());
  leader.server->link(1)->stage(order_of(3, 1));
  const std::optional<StageOrder> order = anew->hear_a<StageOrder>();
  ASSERT_TRUE(order.has_value());
  EXPECT_EQ(order->hold, 3u);
  EXPECT_EQ(leader.server->stats().ranks_connected, 1u);
}

// ---- callers that are no ranks ---------------------------------------------------------------

TEST(ChannelFaults, AnIntroductionByteByByteIsTakenAndHalfOfOneIsNot) {
  const Leader leader(server_options(2));
  const std::vector<std::byte> hello = encode_frame(hello_for(leader.rendezvous(), 1));
  RawPeer slow(leader.rendezvous());
  for (const std::byte& one : hello) ASSERT_TRUE(slow.say(std::span(&one, 1)));
  EXPECT_TRUE(slow.hear_a<Welcome>().has_value());
  {
    RawPeer half(leader.rendezvous());
    ASSERT_TRUE(half.say(std::span(hello).first(hello.size() / 2)));
  }
  EXPECT_TRUE(eventually([&] { return leader.server->stats().refused_silent == 1; }));
  EXPECT_TRUE(leader.server->link(1)->connected());
}

TEST(ChannelFaults, WhoDoesNotIntroduceItselfInTimeIsHungUpOn) {
  const Leader leader(server_options(2, kImpatient));
  RawPeer mute(leader.rendezvous());
  EXPECT_TRUE(mute.hears_the_end());
  RawPeer half(leader.rendezvous());
  const std::vector<std::byte> hello = encode_frame(hello_for(leader.rendezvous(), 1));
  ASSERT_TRUE(half.say(std::span(hello).first(hello.size() - 1)));
  EXPECT_TRUE(half.hears_the_end());
  EXPECT_TRUE(eventually([&] { return leader.server->stats().refused_silent == 2; }));
}

TEST(ChannelFaults, NoiseIsHungUpOnAndDisturbsNobody) {
  const Leader leader(server_options(2));
  Follower follower(client_options(1, 2));
  ASSERT_TRUE(follower.client->meet(leader.server->rendezvous()).ok());
  ASSERT_TRUE(leader.wait_for_all());
  Random random(testlib::test_seed(6));
  std::uint64_t noisy = 0;
  for (int i = 0; i < 60; ++i) {
    RawPeer caller(leader.rendezvous());
    std::vector<std::byte> noise(64 + random.below(4000));
    random.fill(noise);
    // A length that cannot be, or one that can with a version that is none.
    if (i % 2 == 0) put_le(noise.data(), std::uint32_t{20});
    noise[4] = std::byte{200};
    static_cast<void>(caller.say(noise));
    EXPECT_TRUE(caller.hears_the_end());
    ++noisy;
  }
  RawPeer impolite(leader.rendezvous());
  ASSERT_TRUE(impolite.say(StageProgress{.hold = 1, .staged = 9, .done = true}));
  EXPECT_TRUE(impolite.hears_the_end());
  EXPECT_TRUE(eventually([&] { return leader.server->stats().refused_malformed == noisy + 1; }));
  EXPECT_TRUE(leader.sink->progress().empty()) << "a stranger reports nothing";
  leader.server->link(1)->stage(order_of(1, 1));
  EXPECT_TRUE(leader.sink->wait_for_progress(1));
}

TEST(ChannelFaults, ACrowdOfMuteCallersLeavesRoomForRanks) {
  // The crowd stays for longer than the test: nobody is hung up on for being silent.
  constexpr ChannelHeartbeat kEndless{.interval = std::chrono::milliseconds(10),
                                      .missed = 1'000'000};
  constexpr std::size_t kRoom = 16 + 3;  // beside one per rank
  const Leader leader(server_options(3, kEndless));
  const std::vector<std::byte> hello = encode_frame(hello_for(leader.rendezvous(), 1));
  std::vector<std::unique_ptr<RawPeer>> crowd;
  for (std::size_t i = 0; i < 60; ++i) {
    crowd.push_back(std::make_unique<RawPeer>(leader.rendezvous()));
    // A part of an introduction is as good as none. Who is gone by now need not take it.
    if (i % 2 == 0) static_cast<void>(crowd.back()->say(std::span(hello).first(1 + i / 2)));
  }
  const std::size_t sent_away = crowd.size() - kRoom;
  ASSERT_TRUE(eventually([&] { return leader.server->stats().refused_crowd == sent_away; }));

  ChannelClientOptions options = client_options(1, 3, kEndless);
  options.attempts = 1;
  Follower follower(options);
  ASSERT_TRUE(follower.client->meet(leader.server->rendezvous()).ok());
  ASSERT_TRUE(eventually([&] { return leader.server->link(1)->connected(); }));
  EXPECT_EQ(leader.server->stats().refused_crowd, sent_away + 1);
  // Those that had been there longest.
  for (std::size_t i = 0; i <= sent_away; ++i) EXPECT_TRUE(crowd[i]->hears_the_end());

  ASSERT_TRUE(crowd.back()->say(hello_for(leader.rendezvous(), 2)));
  EXPECT_TRUE(crowd.back()->hear_a<Welcome>().has_value()) << "who came late may be a slow rank";
  EXPECT_EQ(leader.server->stats().refused_silent, 0u);
  EXPECT_EQ(leader.server->stats().refused_malformed, 0u);
}

TEST(ChannelFaults, ARankThatSpeaksAsALeaderIsCut) {
  const Leader leader(server_options(2));
  const std::unique_ptr<RawPeer> rank = admitted(leader, 1);
  ASSERT_TRUE(rank->say(HoldRelease{.hold = 1}));
  EXPECT_TRUE(leader.sink->wait_for_lost(1));
  EXPECT_TRUE(rank->hears_the_end());
}

TEST(ChannelFaults, ProgressOfAnyContentComesThroughAsItIs) {
  // Whether it makes sense is for the leader to judge.
  const Leader leader(server_options(2));
  const std::unique_ptr<RawPeer> rank = admitted(leader, 1);
  ASSERT_TRUE(rank->say(StageProgress{
      .hold = ~HoldId{0}, .staged = ~0u, .done = false, .end = StageEnd::kUnavailable}));
  ASSERT_TRUE(leader.sink->wait_for_progress(1));
  EXPECT_EQ(leader.sink->progress()[0].second.staged, ~0u);
  EXPECT_EQ(leader.sink->progress()[0].second.end, StageEnd::kUnavailable);
}

// ---- ranks that are stuck --------------------------------------------------------------------

TEST(ChannelFaults, ARankThatNeverReadsIsLostWithoutBlockingOrFillingMemory) {
  ChannelServerOptions options = server_options(3);
  options.queue_bytes = 1u << 20;
  const Leader leader(options);
  const std::unique_ptr<RawPeer> hung = admitted(leader, 1);
  Follower healthy(client_options(2, 3));
  ASSERT_TRUE(healthy.client->meet(leader.server->rendezvous()).ok());
  ASSERT_TRUE(leader.wait_for_all());
  const StageOrder order = order_of(1, 1024);
  const std::size_t frame_bytes = encode_frame(order).size();
  std::size_t taken = 0;
  while (leader.server->link(1)->connected()) {
    leader.server->link(1)->stage(order);
    leader.server->link(2)->stage(order);
    ++taken;
    // What the queue holds, and generously what the system holds for a socket.
    ASSERT_LT(taken * frame_bytes, options.queue_bytes + (std::size_t{16} << 20));
    ASSERT_TRUE(leader.sink->wait_for_progress(taken)) << "the other rank goes on";
  }
  EXPECT_GE(taken * frame_bytes, options.queue_bytes);
  EXPECT_TRUE(leader.sink->wait_for_lost(1));
  EXPECT_EQ(leader.sink->lost(), (std::vector<std::uint32_t>{1}));
  EXPECT_EQ(leader.server->stats().orders_dropped, 1u);
  leader.server->link(1)->stage(order);
  EXPECT_EQ(leader.server->stats().orders_dropped, 2u);
  EXPECT_TRUE(leader.server->link(2)->connected());
}

TEST(ChannelFaults, ARankThatAnswersNoHeartbeatIsLost) {
  const Leader leader(server_options(2, kImpatient));
  const std::unique_ptr<RawPeer> silent = admitted(leader, 1);
  EXPECT_TRUE(leader.sink->wait_for_lost(1));
  EXPECT_FALSE(leader.server->link(1)->connected());
  EXPECT_TRUE(silent->hears_the_end());
}

TEST(ChannelFaults, AHeartbeatThatBreaksOffIsNotTheLast) {
  const Leader leader(server_options(4, kImpatient));
  leader.sink->throws = true;
  for (const std::uint32_t rank : {1u, 2u, 3u}) {
    const std::unique_ptr<RawPeer> silent = admitted(leader, rank);
    EXPECT_TRUE(leader.sink->wait_for_lost(rank)) << "rank " << rank;
    EXPECT_TRUE(silent->hears_the_end());
  }
}

TEST(ChannelFaults, ARankThatAnswersHeartbeatsStays) {
  const Leader leader(server_options(2, kWatchful));
  const std::unique_ptr<RawPeer> alive = admitted(leader, 1);
  for (std::uint32_t beat = 0; beat < kWatchful.missed + 50; ++beat) {
    const std::optional<Message> message = alive->hear();
    ASSERT_TRUE(message.has_value() && std::holds_alternative<Ping>(*message));
    ASSERT_TRUE(alive->say(Pong{}));
  }
  EXPECT_TRUE(leader.server->link(1)->connected());
  EXPECT_TRUE(leader.sink->lost().empty());
}

TEST(ChannelFaults, ARankWhoseStagingHangsIsLostAndComesBack) {
  const Leader leader(server_options(2, kWatchful));
  ChannelClientOptions options = client_options(1, 2);
  options.attempts = 1'000'000;
  Follower follower(options);
  ASSERT_TRUE(follower.client->meet(leader.server->rendezvous()).ok());
  ASSERT_TRUE(leader.wait_for_all());
  follower.rank->set_stuck(true);
  leader.server->link(1)->stage(order_of(1, 1));
  EXPECT_TRUE(leader.sink->wait_for_lost(1));
  follower.rank->set_stuck(false);
  EXPECT_TRUE(follower.rank->wait_for_kept(2)) << "told anew what to keep";
  EXPECT_TRUE(leader.wait_for_all());
}

TEST(ChannelFaults, AnOrderThatFitsNoFrameCostsTheConnectionAndNothingElse) {
  const Leader leader(server_options(2));
  Follower follower(client_options(1, 2));
  ASSERT_TRUE(follower.client->meet(leader.server->rendezvous()).ok());
  ASSERT_TRUE(leader.wait_for_all());
  leader.server->link(1)->stage({.hold = 1, .blocks = std::vector<BlockHash>(1u << 18)});
  EXPECT_TRUE(leader.sink->wait_for_lost(1));
  EXPECT_EQ(leader.server->stats().orders_dropped, 1u);
  EXPECT_TRUE(leader.wait_for_all()) << "the rank connects again";
}

TEST(ChannelFaults, ClosingIsBoundedWhateverTheRanksDo) {
  Leader leader(server_options(4));
  const std::unique_ptr<RawPeer> never_reads = admitted(leader, 1);
  RawPeer mute(leader.rendezvous());
  Follower follower(client_options(2, 4));
  ASSERT_TRUE(follower.client->meet(leader.server->rendezvous()).ok());
  ASSERT_TRUE(eventually([&] { return leader.server->link(2)->connected(); }));
  for (int i = 0; i < 100; ++i) leader.server->link(1)->stage(order_of(1, 1024));
  const Instant before = system_clock()->now();
  leader.server->close();
  EXPECT_LT(system_clock()->now() - before, std::chrono::seconds(10));
  EXPECT_TRUE(leader.sink->lost().empty());
  EXPECT_TRUE(never_reads->hears_the_end());
  const Instant then = system_clock()->now();
  follower.client->close();
  EXPECT_LT(system_clock()->now() - then, std::chrono::seconds(10));
}

// ---- leaders that are gone, stuck or foreign -------------------------------------------------

/// A leader in the hand of the test.
struct RawLeader {
  RawLeader() : folder(SocketFolder::make(::testing::TempDir())) {
    rendezvous.world_size = 2;
    rendezvous.instance = 5;
    Result<Acceptor> made = listen_on(context, {}, &*folder, &rendezvous);
    EXPECT_TRUE(made.ok());
    acceptor = std::make_unique<Acceptor>(std::move(*made));
  }
  /// The next caller, which has introduced itself.
  std::unique_ptr<RawPeer> caller(Hello* hello = nullptr) {
    auto peer = std::make_unique<RawPeer>(*acceptor);
    const std::optional<Hello> said = peer->hear_a<Hello>();
    EXPECT_TRUE(said.has_value());
    if (said.has_value() && hello != nullptr) *hello = *said;
    return peer;
  }

  asio::io_context context;
  Result<SocketFolder> folder;
  Rendezvous rendezvous;
  std::unique_ptr<Acceptor> acceptor;
};

TEST(ChannelFaults, ABrokenConnectionIsMadeAnewAndTheRankToldWhatToKeep) {
  RawLeader leader;
  Follower follower(client_options(1, 2));
  ASSERT_TRUE(follower.client->meet(format_rendezvous(leader.rendezvous)).ok());
  Hello first;
  std::unique_ptr<RawPeer> caller = leader.caller(&first);
  ASSERT_TRUE(caller->say(Welcome{{.live = {1, 2}, .newest = 2}}));
  ASSERT_TRUE(follower.rank->wait_for_kept(1));
  caller->hang_up();
  Hello second;
  caller = leader.caller(&second);
  EXPECT_EQ(first, second) << "the same client by the same token";
  ASSERT_TRUE(caller->say(Welcome{{.live = {2}, .newest = 4}}));
  ASSERT_TRUE(follower.rank->wait_for_kept(2));
  EXPECT_EQ(follower.rank->kept()[1].live, (std::vector<HoldId>{2}));
  EXPECT_EQ(follower.rank->kept()[1].newest, 4u);
  // A report of an order of the first connection takes the second.
  ASSERT_TRUE(caller->say(order_of(6, 2)));
  const std::optional<StageProgress> progress = caller->hear_a<StageProgress>();
  ASSERT_TRUE(progress.has_value());
  EXPECT_EQ(progress->hold, 6u);
  EXPECT_EQ(follower.client->stats().connections, 2u);
}

TEST(ChannelFaults, AnOrderCutInHalfByTheEndOfTheLeaderIsNotObeyed) {
  RawLeader leader;
  Follower follower(client_options(1, 2));
  ASSERT_TRUE(follower.client->meet(format_rendezvous(leader.rendezvous)).ok());
  std::unique_ptr<RawPeer> caller = leader.caller();
  ASSERT_TRUE(caller->say(Welcome{}));
  const std::vector<std::byte> order = encode_frame(order_of(1, 100));
  ASSERT_TRUE(caller->say(std::span(order).first(order.size() - 32)));
  caller->hang_up();
  caller = leader.caller();
  ASSERT_TRUE(caller->say(Welcome{}));
  ASSERT_TRUE(caller->say(order_of(2, 1)));
  ASSERT_TRUE(follower.rank->wait_for_orders(1));
  EXPECT_EQ(follower.rank->orders()[0].hold, 2u);
}

TEST(ChannelFaults, ALeaderThatSpeaksAnotherProtocolIsLeftAndTriedAgain) {
  RawLeader leader;
  Follower follower(client_options(1, 2));
  ASSERT_TRUE(follower.client->meet(format_rendezvous(leader.rendezvous)).ok());
  const std::string noise = "HTTP/1.1 400 Bad Request\r\n\r\n";
  std::unique_ptr<RawPeer> caller = leader.caller();
  ASSERT_TRUE(caller->say(as_bytes(noise)));
  EXPECT_TRUE(caller->hears_the_end());
  caller = leader.caller();
  ASSERT_TRUE(caller->say(order_of(1, 1)));  // without a welcome
  EXPECT_TRUE(caller->hears_the_end());
  EXPECT_TRUE(follower.rank->orders().empty());
  caller = leader.caller();
  ASSERT_TRUE(caller->say(Welcome{}));
  ASSERT_TRUE(follower.rank->wait_for_kept(1));
  ASSERT_TRUE(caller->say(Pong{}));  // which only ranks send
  EXPECT_TRUE(caller->hears_the_end());
}

TEST(ChannelFaults, ALeaderThatIsSilentIsLeftAndTriedAgain) {
  RawLeader leader;
  ChannelClientOptions options = client_options(1, 2, kImpatient);
  options.attempts = 1'000'000;
  Follower follower(options);
  ASSERT_TRUE(follower.client->meet(format_rendezvous(leader.rendezvous)).ok());
  std::unique_ptr<RawPeer> caller = leader.caller();  // never answers
  EXPECT_TRUE(caller->hears_the_end());
  EXPECT_TRUE(follower.rank->kept().empty());
  // No word after a welcome. One that came too late is as good as none.
  while (follower.rank->kept().empty()) {
    caller = leader.caller();
    static_cast<void>(caller->say(Welcome{}));
    EXPECT_TRUE(caller->hears_the_end());
  }
}

TEST(ChannelFaults, ARankWhoseLinesCannotBeWrittenLooksForItsLeaderAllTheSame) {
  RawLeader leader;
  ChannelClientOptions options = client_options(1, 2, kImpatient);
  options.attempts = 1'000'000;
  const auto rank = std::make_shared<FakeRank>();
  Result<std::unique_ptr<ChannelClient>> client =
      ChannelClient::create(options, kKeyspace, rank, std::make_shared<BrokenLogger>());
  ASSERT_TRUE(client.ok());
  ASSERT_TRUE((*client)->meet(format_rendezvous(leader.rendezvous)).ok());
  for (std::size_t connection = 1; connection <= 3; ++connection) {
    std::unique_ptr<RawPeer> caller = leader.caller();
    ASSERT_TRUE(caller->say(Welcome{}));
    ASSERT_TRUE(rank->wait_for_kept(connection));
    // It hangs up, or says no word any more.
    if (connection % 2 == 0) {
      EXPECT_TRUE(caller->hears_the_end());
    }
  }
}

TEST(ChannelFaults, ALeaderThatNeverReadsCutsTheReportsNotTheRank) {
  RawLeader leader;
  ChannelClientOptions options = client_options(1, 2);
  options.queue_bytes = 64u << 10;
  Follower follower(options);
  follower.rank->reports_at_once = false;
  ASSERT_TRUE(follower.client->meet(format_rendezvous(leader.rendezvous)).ok());
  std::unique_ptr<RawPeer> caller = leader.caller();
  ASSERT_TRUE(caller->say(Welcome{}));
  ASSERT_TRUE(caller->say(order_of(1, 1)));
  ASSERT_TRUE(follower.rank->wait_for_orders(1));
  const StageRank::Report report = follower.rank->reports()[0];
  std::size_t reported = 0;
  while (follower.client->stats().progress_dropped == 0) {
    report({.hold = 1, .staged = 1});
    ASSERT_LT(++reported, 2'000'000u);
  }
  const std::unique_ptr<RawPeer> again = leader.caller();
  EXPECT_TRUE(again->say(Welcome{}));
  EXPECT_TRUE(follower.rank->wait_for_kept(2));
}

TEST(ChannelFaults, WhenTheLeaderIsGoneAttemptsEndAndAPlanStartsThemAnew) {
  auto leader = std::make_unique<RawLeader>();
  const std::string text = format_rendezvous(leader->rendezvous);
  leader = nullptr;
  ChannelClientOptions options = client_options(1, 2);
  options.attempts = 4;
  Follower follower(options);
  ASSERT_TRUE(follower.client->meet(text).ok());
  ASSERT_TRUE(eventually([&] { return follower.logger->count("gives up") == 1; }));
  EXPECT_EQ(follower.client->stats().attempts_failed, 4u);
  // At rest only a moment after it has said so.
  ASSERT_TRUE(eventually([&] {
    EXPECT_TRUE(follower.client->meet(text).ok());
    return follower.client->stats().attempts_failed > 4;
  }));
  EXPECT_TRUE(eventually([&] { return follower.logger->count("gives up") > 1; }));
  EXPECT_GE(follower.client->stats().attempts_failed, 8u);
}

TEST(ChannelFaults, ALeaderThatStartsAnewIsFoundByItsNewText) {
  auto first = std::make_unique<Leader>(server_options(2), LiveHolds{.live = {4}, .newest = 7});
  Follower follower(client_options(1, 2));
  ASSERT_TRUE(follower.client->meet(first->server->rendezvous()).ok());
  ASSERT_TRUE(first->wait_for_all());
  ASSERT_TRUE(follower.rank->wait_for_kept(1)) << "it knows that it is in";
  first = nullptr;
  ASSERT_TRUE(eventually([&] { return follower.client->stats().connected == 0; }));
  const Leader second(server_options(2));
  ASSERT_TRUE(follower.client->meet(second.server->rendezvous()).ok());
  EXPECT_TRUE(second.wait_for_all());
  EXPECT_TRUE(follower.rank->wait_for_kept(3));
  EXPECT_EQ(follower.rank->kept()[1].newest, 7u) << "the last that it has heard of";
  EXPECT_TRUE(follower.rank->kept()[1].live.empty());
}

}  // namespace
}  // namespace kvc
