#include <openssl/crypto.h>

#include <algorithm>
#include <map>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include <asio/error.hpp>
#include <asio/steady_timer.hpp>

#include "base/bytes.h"
#include "base/counters.h"
#include "base/mutex.h"
#include "channel/connection.h"
#include "channel/end_point.h"
#include "channel/io_loop.h"
#include "channel/rendezvous.h"
#include "kvc/channel.h"
#include "os/random.h"

namespace kvc {
namespace {

/// Callers that have not introduced themselves, beside one per rank.
constexpr std::size_t kStrangersMax = 16;

using ServerCounters = kvc::Counters<ChannelServerStats>;

class RankLink final : public StageLink {
 public:
  explicit RankLink(std::shared_ptr<ServerCounters> counters) : counters_(std::move(counters)) {}

  bool connected() const override { return line_.connected(); }
  bool stage(StageOrder order) override {
    const bool sent = order.hold != 0 && line_.send(std::move(order));
    counters_->add(sent ? &ChannelServerStats::orders_sent : &ChannelServerStats::orders_dropped);
    return sent;
  }
  void release(HoldRelease release) override {
    if (release.hold != 0) static_cast<void>(line_.send(release));
  }

  Line& line() { return line_; }

 private:
  const std::shared_ptr<ServerCounters> counters_;
  Line line_;
};

std::uint64_t ChannelServerStats::*counter_of(Refusal refusal) {
  switch (refusal) {
    case Refusal::kNonce:
      return &ChannelServerStats::refused_nonce;
    case Refusal::kRank:
      return &ChannelServerStats::refused_rank;
    case Refusal::kKeyspace:
      return &ChannelServerStats::refused_keyspace;
    case Refusal::kDuplicate:
      return &ChannelServerStats::refused_duplicate;
  }
  return &ChannelServerStats::refused_malformed;
}

std::string_view reason_of(Refusal refusal) {
  switch (refusal) {
    case Refusal::kNonce:
      return "it does not know the nonce";
    case Refusal::kRank:
      return "its rank or world size is not one of this instance";
    case Refusal::kKeyspace:
      return "its keyspace is another one";
    case Refusal::kDuplicate:
      return "its rank is connected already";
  }
  return "it is not known why";
}

}  // namespace

// Everything but what is marked belongs to the loop's thread, once serve() was called.
class ChannelServer::Core final : public ConnectionOwner {
 public:
  Core(ChannelServerOptions options, const Fingerprint& keyspace, std::shared_ptr<Logger> logger,
       Rendezvous rendezvous)
      : options_(std::move(options)),
        keyspace_(keyspace),
        lines_(std::move(logger)),
        rendezvous_(std::move(rendezvous)),
        counters_(std::make_shared<ServerCounters>()),
        ranks_(options_.world_size) {
    links_.resize(options_.world_size);
    for (std::size_t rank = 1; rank < links_.size(); ++rank) {
      links_[rank] = std::make_shared<RankLink>(counters_);
    }
  }

  /// Before everything else.
  Status listen(std::shared_ptr<Logger> logger);

  // From any thread.
  void serve(std::shared_ptr<StageSink> sink, std::function<LiveHolds()> live);
  void close();
  std::shared_ptr<StageLink> link(std::uint32_t rank) const {
    return rank < links_.size() ? links_[rank] : nullptr;
  }
  const std::string& rendezvous() const { return text_; }
  ChannelServerStats stats() const { return counters_->read(); }

 private:
  struct Rank {
    std::shared_ptr<Connection> connection;
    std::uint64_t client = 0;
  };
  struct Stranger {
    std::shared_ptr<Connection> connection;
    std::uint64_t number = 0;  ///< The later it came, the larger.
    std::uint32_t beats = 0;   ///< That it has been here.
    bool is_refused = false;
  };

  void on_message(Connection& from, Message message) override;
  void on_closed(Connection& which, Cut cut, const std::string& why) override;

  void accept();
  void take_in(StreamProtocol::socket socket);
  void make_room();
  void introduce(Connection& from, const Hello& hello);
  std::optional<Refusal> objection_to(const Hello& hello) const;
  void admit(Connection& from, const Hello& hello);
  void on_stranger_gone(const Stranger& stranger, Cut cut);
  void beat();
  void beat_once();
  void shut_down();

  const ChannelServerOptions options_;
  const Fingerprint keyspace_;
  LineLimit lines_;
  Rendezvous rendezvous_;
  std::string text_;
  const std::shared_ptr<ServerCounters> counters_;
  std::vector<std::shared_ptr<RankLink>> links_;  // by rank; none for 0

  Mutex mutex_;
  bool serving_ KVC_GUARDED_BY(mutex_) = false;
  bool closed_ KVC_GUARDED_BY(mutex_) = false;

  std::shared_ptr<StageSink> sink_;
  std::function<LiveHolds()> live_;
  bool closing_ = false;
  bool accept_rests_ = false;  ///< Until the next beat.
  std::vector<Rank> ranks_;
  std::map<Connection*, Stranger> strangers_;
  std::uint64_t newest_stranger_ = 0;

  std::optional<SocketFolder> folder_;
  std::unique_ptr<IoLoop> loop_;
  std::optional<Acceptor> acceptor_;
  std::optional<asio::steady_timer> timer_;
};

// ---- life ----------------------------------------------------------------------------------

Status ChannelServer::Core::listen(std::shared_ptr<Logger> logger) {
  // No thread for what will not be.
  if (options_.address.empty()) {
    Result<SocketFolder> folder = SocketFolder::make(options_.folder);
    if (!folder.ok()) return folder.status();
    folder_.emplace(std::move(*folder));
  } else if (Status status = check_address(options_.address); !status.ok()) {
    return status;
  }
  Result<std::unique_ptr<IoLoop>> loop = IoLoop::start("kvc-stage-lead", std::move(logger));
  if (!loop.ok()) return loop.status();
  loop_ = std::move(*loop);
  Result<Acceptor> acceptor = listen_on(*loop_->context(), options_.address,
                                        folder_.has_value() ? &*folder_ : nullptr, &rendezvous_);
  if (!acceptor.ok()) return acceptor.status();
  acceptor_.emplace(std::move(*acceptor));
  timer_.emplace(*loop_->context());
  text_ = format_rendezvous(rendezvous_);
  return {};
}

void ChannelServer::Core::serve(std::shared_ptr<StageSink> sink, std::function<LiveHolds()> live) {
  const MutexLock lock(mutex_);
  if (serving_ || closed_) return;
  serving_ = true;
  loop_->run([this, sink = std::move(sink), live = std::move(live)]() mutable {
    sink_ = std::move(sink);
    live_ = std::move(live);
    beat();
    accept();
    lines_.log(LogLevel::kInfo, describe(rendezvous_) + " awaits " +
                                    std::to_string(options_.world_size - 1) + " rank(s)");
  });
}

void ChannelServer::Core::close() {
  {
    const MutexLock lock(mutex_);
    if (closed_) return;
    closed_ = true;
  }
  if (loop_ == nullptr) return;
  loop_->finish([this] { shut_down(); });
  sink_ = nullptr;
  live_ = nullptr;
  folder_.reset();
}

void ChannelServer::Core::shut_down() {
  closing_ = true;
  std::error_code ignored;
  if (acceptor_.has_value()) acceptor_->close(ignored);
  if (timer_.has_value()) timer_->cancel();
  while (!strangers_.empty()) {
    const std::shared_ptr<Connection> one = strangers_.begin()->second.connection;
    one->close(Cut::kByOwner, "the leader ends");
  }
  for (const Rank& rank : ranks_) {
    const std::shared_ptr<Connection> one = rank.connection;
    if (one != nullptr) one->close_with(Bye{}, "the leader ends");
  }
}

// ---- callers -------------------------------------------------------------------------------

void ChannelServer::Core::accept() {
  acceptor_->async_accept([this](const std::error_code& error, StreamProtocol::socket socket) {
    if (closing_) return;
    // Until the next beat if the system has too many open files, for example (trying again at once
    // would spin), or if there is no memory now.
    accept_rests_ = true;
    if (error) return;
    accept();
    take_in(std::move(socket));
  });
  accept_rests_ = false;
}

void ChannelServer::Core::take_in(StreamProtocol::socket socket) {
  if (strangers_.size() >= kStrangersMax + options_.world_size) make_room();
  prepare_socket(socket);
  auto connection = std::make_shared<Connection>(
      loop_->context(), std::move(socket), this,
      Connection::Limits{.queue_bytes = options_.queue_bytes, .frame_bytes = kFrameBytesOfRank});
  Stranger& stranger = strangers_[connection.get()];
  stranger.connection = connection;
  stranger.number = ++newest_stranger_;
  connection->start();
}

/// A rank introduces itself at once: who has been here longest without is the least likely to be
/// one. The newcomer must not be turned away, or a crowd could keep every rank out by staying.
void ChannelServer::Core::make_room() {
  const auto oldest = std::ranges::min_element(
      strangers_, {}, [](const auto& entry) { return entry.second.number; });
  counters_->add(&ChannelServerStats::refused_crowd);
  oldest->second.is_refused = true;
  const std::shared_ptr<Connection> one = oldest->second.connection;
  one->close(Cut::kByOwner, "there is no room for it");
}

void ChannelServer::Core::on_message(Connection& from, Message message) {
  if (!from.rank.has_value()) {
    if (const auto* hello = std::get_if<Hello>(&message)) {
      introduce(from, *hello);
    } else {
      from.close(Cut::kMalformed, "it did not introduce itself");
    }
    return;
  }
  if (const auto* progress = std::get_if<StageProgress>(&message)) {
    counters_->add(&ChannelServerStats::progress_received);
    sink_->on_progress(*from.rank, *progress);
  } else if (std::holds_alternative<Bye>(message)) {
    from.close(Cut::kEnded, "it has ended");
  } else if (!std::holds_alternative<Pong>(message)) {
    from.close(Cut::kMalformed, "it sent what only a leader sends");
  }
}

void ChannelServer::Core::introduce(Connection& from, const Hello& hello) {
  const std::optional<Refusal> objection = objection_to(hello);
  if (!objection.has_value()) {
    admit(from, hello);
    return;
  }
  counters_->add(counter_of(*objection));
  lines_.log(LogLevel::kWarning, "a caller that says to be rank " + std::to_string(hello.rank) +
                                     " of " + std::to_string(hello.world_size) +
                                     " was refused: " + std::string(reason_of(*objection)));
  strangers_[&from].is_refused = true;
  from.end_with(*objection);
}

std::optional<Refusal> ChannelServer::Core::objection_to(const Hello& hello) const {
  // In constant time: how long it takes must not tell how much of a guess was right.
  const bool knows_nonce =
      CRYPTO_memcmp(hello.nonce.data(), rendezvous_.nonce.data(), hello.nonce.size()) == 0;
  if (!knows_nonce || hello.instance != rendezvous_.instance) return Refusal::kNonce;
  if (hello.world_size != options_.world_size || hello.rank == 0 ||
      hello.rank >= options_.world_size) {
    return Refusal::kRank;
  }
  if (hello.keyspace != keyspace_) return Refusal::kKeyspace;
  const Rank& known = ranks_[hello.rank];
  if (known.connection != nullptr && known.client != hello.client) return Refusal::kDuplicate;
  return std::nullopt;
}

void ChannelServer::Core::admit(Connection& from, const Hello& hello) {
  Rank& rank = ranks_[hello.rank];
  if (const std::shared_ptr<Connection> before = rank.connection; before != nullptr) {
    before->close(Cut::kByPeer, "it has connected anew");
  }
  const auto stranger = strangers_.extract(&from);
  from.rank = hello.rank;
  rank = {stranger.mapped().connection, hello.client};
  counters_->add(&ChannelServerStats::ranks_connected);
  lines_.log(LogLevel::kInfo, "rank " + std::to_string(hello.rank) + " is connected");
  // In this order: what is ordered or released from now on goes out after the welcome, what was
  // before is in `live`.
  links_[hello.rank]->line().attach(rank.connection);
  from.open_with(Welcome{live_ ? live_() : LiveHolds{}});
}

void ChannelServer::Core::on_closed(Connection& which, Cut cut, const std::string& why) {
  if (const auto found = strangers_.find(&which); found != strangers_.end()) {
    const Stranger gone = std::move(found->second);
    strangers_.erase(found);
    on_stranger_gone(gone, cut);
    return;
  }
  if (!which.rank.has_value()) return;
  const std::uint32_t number = *which.rank;
  Rank& rank = ranks_[number];
  if (rank.connection.get() != &which) return;
  links_[number]->line().detach();
  rank.connection = nullptr;
  counters_->update([](ChannelServerStats& stats) { --stats.ranks_connected; });
  if (closing_) return;
  if (cut != Cut::kEnded) counters_->add(&ChannelServerStats::ranks_lost);
  sink_->on_rank_lost(number);
  if (cut == Cut::kEnded) {
    lines_.log(LogLevel::kInfo, "rank " + std::to_string(number) + " has ended");
  } else {
    lines_.log(LogLevel::kWarning, "rank " + std::to_string(number) + " is lost: " + why +
                                       ". Nothing is promised until it is back");
  }
}

void ChannelServer::Core::on_stranger_gone(const Stranger& stranger, Cut cut) {
  if (closing_ || stranger.is_refused) return;
  counters_->add(cut == Cut::kMalformed ? &ChannelServerStats::refused_malformed
                                        : &ChannelServerStats::refused_silent);
}

// ---- time ----------------------------------------------------------------------------------

void ChannelServer::Core::beat() {
  timer_->expires_after(options_.heartbeat.interval);
  timer_->async_wait([this](const std::error_code& error) {
    if (error || closing_) return;
    beat();  // First: what comes after may throw, and the heart must go on.
    if (accept_rests_) accept();
    beat_once();
  });
}

void ChannelServer::Core::beat_once() {
  // Beats are counted, not time: after this process was stopped for a while nobody is blamed.
  std::vector<std::shared_ptr<Connection>> stuck;
  for (auto& [connection, stranger] : strangers_) {
    if (++stranger.beats > options_.heartbeat.missed) stuck.push_back(stranger.connection);
  }
  for (const Rank& rank : ranks_) {
    if (rank.connection == nullptr) continue;
    if (++rank.connection->quiet_beats > options_.heartbeat.missed) {
      stuck.push_back(rank.connection);
    } else {
      static_cast<void>(rank.connection->send(Ping{}));
    }
  }
  for (const std::shared_ptr<Connection>& one : stuck) {
    one->close(Cut::kStuck, "it does not answer");
  }
}

// ---- the public face -------------------------------------------------------------------------

ChannelServer::ChannelServer(std::unique_ptr<Core> core) : core_(std::move(core)) {}
ChannelServer::~ChannelServer() { close(); }

Result<std::unique_ptr<ChannelServer>> ChannelServer::create(ChannelServerOptions options,
                                                             const Fingerprint& keyspace,
                                                             std::shared_ptr<Logger> logger) {
  constexpr std::uint32_t kWorldSizeMax = 1u << 16;
  if (options.world_size < 2 || options.world_size > kWorldSizeMax) {
    return invalid("a world of " + std::to_string(options.world_size) +
                   " rank(s) has no use for a channel");
  }
  if (options.heartbeat.interval <= Duration::zero() || options.heartbeat.missed == 0 ||
      options.queue_bytes == 0) {
    return invalid("heartbeat and queue of a channel must not be empty");
  }
  Rendezvous rendezvous;
  rendezvous.world_size = options.world_size;
  std::array<std::byte, sizeof(rendezvous.instance)> instance{};
  if (!fill_with_secret(rendezvous.nonce) || !fill_with_secret(instance)) {
    return Status(Code::kExhausted, "the system gives no randomness");
  }
  rendezvous.instance = get_le<std::uint64_t>(instance.data());
  auto core = std::make_unique<Core>(std::move(options), keyspace, logger, std::move(rendezvous));
  Status listening = core->listen(std::move(logger));
  std::unique_ptr<ChannelServer> server(new ChannelServer(std::move(core)));
  if (!listening.ok()) return listening;
  return server;
}

void ChannelServer::serve(std::shared_ptr<StageSink> sink, std::function<LiveHolds()> live) {
  core_->serve(std::move(sink), std::move(live));
}
std::shared_ptr<StageLink> ChannelServer::link(std::uint32_t rank) const {
  return core_->link(rank);
}
const std::string& ChannelServer::rendezvous() const { return core_->rendezvous(); }
ChannelServerStats ChannelServer::stats() const { return core_->stats(); }
void ChannelServer::close() { core_->close(); }

}  // namespace kvc
