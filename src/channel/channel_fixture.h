// Both ends of a channel for tests, and callers that do not keep to the protocol.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <asio/generic/stream_protocol.hpp>
#include <asio/io_context.hpp>
#include <asio/read.hpp>
#include <asio/write.hpp>

#include "base/bytes.h"
#include "base/mutex.h"
#include "channel/end_point.h"
#include "channel/frame.h"
#include "channel/rendezvous.h"
#include "kvc/channel.h"
#include "kvc/clock.h"
#include "testing/collecting_logger.h"

namespace kvc {

/// What another thread changes, and how a test waits for it.
class Watched {
 public:
  /// False if `holds` was not true within a time that only a stuck program needs.
  bool wait(const std::function<bool()>& holds) const {
    const Deadline deadline = Deadline::after(*system_clock(), std::chrono::seconds(60));
    const MutexLock lock(mutex);
    while (!holds()) {
      if (deadline.passed(*system_clock())) return false;
      changed.wait_until(mutex, deadline.at);
    }
    return true;
  }

  mutable Mutex mutex;
  mutable CondVar changed;
};

/// For what has no notification of its own: asks again whenever a moment has passed.
inline bool eventually(const std::function<bool()>& holds) {
  const Deadline deadline = Deadline::after(*system_clock(), std::chrono::seconds(60));
  Mutex mutex;
  CondVar never;
  while (!holds()) {
    if (deadline.passed(*system_clock())) return false;
    const MutexLock lock(mutex);
    never.wait_until(mutex, system_clock()->now() + std::chrono::milliseconds(1));
  }
  return true;
}

/// The leader: keeps what ranks report.
class FakeSink final : public StageSink {
 public:
  void on_progress(std::uint32_t rank, const StageProgress& progress) override {
    const MutexLock lock(watched_.mutex);
    progress_.emplace_back(rank, progress);
    watched_.changed.notify_all();
  }
  void on_rank_lost(std::uint32_t rank) override {
    const MutexLock lock(watched_.mutex);
    lost_.push_back(rank);
    watched_.changed.notify_all();
    if (throws) throw std::bad_alloc();
  }

  bool throws = false;  ///< At the end of on_rank_lost(). Set before the first rank connects.

  bool wait_for_lost(std::size_t count) const {
    return watched_.wait([&] { return lost_.size() >= count; });
  }
  bool wait_for_progress(std::size_t count) const {
    return watched_.wait([&] { return progress_.size() >= count; });
  }
  std::vector<std::uint32_t> lost() const {
    const MutexLock lock(watched_.mutex);
    return lost_;
  }
  std::vector<std::pair<std::uint32_t, StageProgress>> progress() const {
    const MutexLock lock(watched_.mutex);
    return progress_;
  }

 private:
  Watched watched_;
  std::vector<std::pair<std::uint32_t, StageProgress>> progress_;
  std::vector<std::uint32_t> lost_;
};

/// A rank: keeps what it is told, and reports every order as done unless told otherwise.
class FakeRank final : public StageRank {
 public:
  void stage(StageOrder order, Report report) override {
    const auto staged = static_cast<std::uint32_t>(order.blocks.size());
    {
      const MutexLock lock(watched_.mutex);
      orders_.push_back(order);
      reports_.push_back(report);
      watched_.changed.notify_all();
      while (is_stuck_) watched_.changed.wait(watched_.mutex);
    }
    if (reports_at_once) report({.hold = order.hold, .staged = staged, .done = true});
  }
  void release(HoldRelease release) override {
    const MutexLock lock(watched_.mutex);
    releases_.push_back(release);
    watched_.changed.notify_all();
  }
  void keep_only(std::span<const HoldId> live, HoldId newest) override {
    const MutexLock lock(watched_.mutex);
    kept_.push_back({{live.begin(), live.end()}, newest});
    watched_.changed.notify_all();
  }

  /// From now on stage() does not return.
  void set_stuck(bool stuck) {
    const MutexLock lock(watched_.mutex);
    is_stuck_ = stuck;
    watched_.changed.notify_all();
  }

  bool wait_for_orders(std::size_t count) const {
    return watched_.wait([&] { return orders_.size() >= count; });
  }
  bool wait_for_releases(std::size_t count) const {
    return watched_.wait([&] { return releases_.size() >= count; });
  }
  bool wait_for_kept(std::size_t count) const {
    return watched_.wait([&] { return kept_.size() >= count; });
  }
  std::vector<StageOrder> orders() const {
    const MutexLock lock(watched_.mutex);
    return orders_;
  }
  std::vector<Report> reports() const {
    const MutexLock lock(watched_.mutex);
    return reports_;
  }
  std::vector<HoldRelease> releases() const {
    const MutexLock lock(watched_.mutex);
    return releases_;
  }
  std::vector<LiveHolds> kept() const {
    const MutexLock lock(watched_.mutex);
    return kept_;
  }

  bool reports_at_once = true;  ///< Set before the first order.

 private:
  Watched watched_;
  bool is_stuck_ = false;
  std::vector<StageOrder> orders_;
  std::vector<Report> reports_;
  std::vector<HoldRelease> releases_;
  std::vector<LiveHolds> kept_;
};

inline BlockHash block(std::uint64_t number) {
  BlockHash hash;
  put_le(hash.bytes.data(), number);
  return hash;
}

inline StageOrder order_of(HoldId hold, std::size_t blocks) {
  StageOrder order{.hold = hold, .blocks = {}, .fetch_budget = std::chrono::seconds(7)};
  for (std::size_t i = 0; i < blocks; ++i) order.blocks.push_back(block(1000 * hold + i));
  return order;
}

/// Beats so slow that a loaded machine loses nobody, and so fast that nobody waits for them.
inline constexpr ChannelHeartbeat kPatient{.interval = std::chrono::milliseconds(10),
                                           .missed = 2000};
/// For ends that never answer.
inline constexpr ChannelHeartbeat kImpatient{.interval = std::chrono::milliseconds(10),
                                             .missed = 30};
/// For ends that answer until the test stops them.
inline constexpr ChannelHeartbeat kWatchful{.interval = std::chrono::milliseconds(5),
                                            .missed = 400};

inline const Fingerprint kKeyspace = {std::byte{7}, std::byte{8}};

/// A leader that serves.
struct Leader {
  explicit Leader(ChannelServerOptions options, LiveHolds holds = {})
      : live(std::make_shared<LiveHolds>(std::move(holds))) {
    Result<std::unique_ptr<ChannelServer>> made =
        ChannelServer::create(std::move(options), kKeyspace, logger);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    if (!made.ok()) return;
    server = std::move(*made);
    server->serve(sink, [held = live] { return *held; });
  }

  Rendezvous rendezvous() const {
    Result<Rendezvous> parsed = parse_rendezvous(server->rendezvous());
    EXPECT_TRUE(parsed.ok());
    return parsed.ok() ? *parsed : Rendezvous{};
  }
  bool wait_for_all() const {
    for (std::uint32_t rank = 1; server->link(rank) != nullptr; ++rank) {
      if (!eventually([&] { return server->link(rank)->connected(); })) return false;
    }
    return true;
  }

  std::shared_ptr<testlib::CollectingLogger> logger = std::make_shared<testlib::CollectingLogger>();
  std::shared_ptr<FakeSink> sink = std::make_shared<FakeSink>();
  const std::shared_ptr<LiveHolds> live;  ///< Not to be changed while ranks connect.
  std::unique_ptr<ChannelServer> server;
};

/// A rank that connects.
struct Follower {
  explicit Follower(ChannelClientOptions options, const Fingerprint& keyspace = kKeyspace) {
    Result<std::unique_ptr<ChannelClient>> made =
        ChannelClient::create(options, keyspace, rank, logger);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    if (made.ok()) client = std::move(*made);
  }

  std::shared_ptr<testlib::CollectingLogger> logger = std::make_shared<testlib::CollectingLogger>();
  std::shared_ptr<FakeRank> rank = std::make_shared<FakeRank>();
  std::unique_ptr<ChannelClient> client;
};

/// One end of a connection that says whatever it is told to.
class RawPeer {
 public:
  explicit RawPeer(const Rendezvous& leader) : socket_(context_) {
    socket_.connect(*end_point_of(leader));
  }
  /// The next caller of a leader that is none.
  explicit RawPeer(Acceptor& acceptor) : socket_(acceptor.accept()) {}

  /// False if the other end has hung up.
  bool say(std::span<const std::byte> bytes) {
    std::error_code error;
    asio::write(socket_, asio::buffer(bytes.data(), bytes.size()), error);
    return !error;
  }
  bool say(const Message& message) { return say(encode_frame(message)); }

  /// Nothing once the other end has hung up.
  std::optional<Message> hear() {
    for (;;) {
      std::optional<Message> next;
      const Status status = reader_.next(&next);
      EXPECT_TRUE(status.ok()) << status.to_string();
      if (!status.ok() || next.has_value()) return next;
      std::array<std::byte, 4096> bytes{};
      std::error_code error;
      const std::size_t got = socket_.read_some(asio::buffer(bytes), error);
      if (error) return std::nullopt;
      reader_.feed(std::span(bytes).first(got));
    }
  }
  /// The next message that is no heartbeat.
  template <typename Kind>
  std::optional<Kind> hear_a() {
    for (;;) {
      std::optional<Message> message = hear();
      if (!message.has_value()) return std::nullopt;
      if (std::holds_alternative<Ping>(*message)) continue;
      EXPECT_TRUE(std::holds_alternative<Kind>(*message)) << message->index();
      if (!std::holds_alternative<Kind>(*message)) return std::nullopt;
      return std::get<Kind>(std::move(*message));
    }
  }
  bool hears_the_end() {
    while (hear().has_value()) continue;
    return true;
  }
  void hang_up() { socket_.close(); }

 private:
  asio::io_context context_;
  StreamProtocol::socket socket_;
  FrameReader reader_{kFrameBytesOfLeader};
};

inline Hello hello_for(const Rendezvous& leader, std::uint32_t rank) {
  return {.nonce = leader.nonce,
          .instance = leader.instance,
          .client = 77 + rank,
          .world_size = leader.world_size,
          .rank = rank,
          .keyspace = kKeyspace};
}

}  // namespace kvc
