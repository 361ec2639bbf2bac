#include <algorithm>
#include <array>
#include <optional>
#include <system_error>
#include <utility>

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

using ClientCounters = kvc::Counters<ChannelClientStats>;

/// What reports hold on to. One per leader: those about orders of another one lead nowhere.
struct WayBack {
  explicit WayBack(std::shared_ptr<ClientCounters> its_counters)
      : counters(std::move(its_counters)) {}

  void report(const StageProgress& progress) {
    if (!line.send(progress)) counters->add(&ChannelClientStats::progress_dropped);
  }

  Line line;
  const std::shared_ptr<ClientCounters> counters;
};

std::string_view reason_of(Refusal refusal) {
  switch (refusal) {
    case Refusal::kNonce:
      return "it is another leader than the one that plans name. It stays without this rank";
    case Refusal::kRank:
      return "rank or world size do not fit it. Remedy: start as many ranks as it knows";
    case Refusal::kKeyspace:
      return "its keyspace is another one. Remedy: the same model, settings and build on all ranks";
    case Refusal::kDuplicate:
      return "another process with this rank is connected";
  }
  return "it is not known why";
}

}  // namespace

// Everything but what is marked belongs to the loop's thread.
class ChannelClient::Core final : public ConnectionOwner {
 public:
  Core(ChannelClientOptions options, const Fingerprint& keyspace, std::uint64_t client,
       std::shared_ptr<StageRank> rank, std::shared_ptr<Logger> logger)
      : options_(options),
        keyspace_(keyspace),
        client_(client),
        rank_(std::move(rank)),
        logger_(std::move(logger)),
        lines_(logger_),
        counters_(std::make_shared<ClientCounters>()) {}

  // From any thread.
  Status meet(std::string_view text);
  ChannelClientStats stats() const { return counters_->read(); }
  void close();

 private:
  /// Of the leader that was met last.
  enum class Phase {
    kResting,  ///< Nothing is under way.
    kTrying,   ///< Connecting, connected, or waiting to try again.
    kRefused,  ///< For good.
  };

  void on_message(Connection& from, Message message) override;
  void on_closed(Connection& which, Cut cut, const std::string& why) override;

  void set_phase(Phase phase);
  void begin(const Rendezvous& leader);
  void hang_up();
  void connect();
  void on_connected(std::uint64_t attempt, const std::error_code& error);
  void introduce();
  void obey(Message message);
  void on_welcome(const Welcome& welcome);
  void on_refusal(Refusal refusal);
  void on_bye();
  void end_holds();
  void failed(const std::string& why);
  void beat();
  void beat_once();
  void shut_down();

  const ChannelClientOptions options_;
  const Fingerprint keyspace_;
  const std::uint64_t client_;
  const std::shared_ptr<StageRank> rank_;
  const std::shared_ptr<Logger> logger_;
  LineLimit lines_;
  const std::shared_ptr<ClientCounters> counters_;

  Mutex mutex_;
  bool closed_ KVC_GUARDED_BY(mutex_) = false;
  Phase phase_ KVC_GUARDED_BY(mutex_) = Phase::kResting;
  std::string text_ KVC_GUARDED_BY(mutex_);
  std::unique_ptr<IoLoop> loop_;  // set once, under the mutex

  bool closing_ = false;
  std::optional<Rendezvous> leader_;
  std::optional<StreamProtocol::endpoint> end_point_;
  std::shared_ptr<WayBack> way_back_;
  std::uint64_t attempt_ = 0;   ///< Tells what belongs to an attempt that was given up.
  std::uint32_t failures_ = 0;  ///< In a row.
  std::uint32_t beats_ = 0;     ///< Since the attempt began.
  bool is_in_ = false;          ///< Welcomed on the present connection.
  HoldId newest_hold_ = 0;      ///< Of which the leader spoke.
  std::unique_ptr<StreamProtocol::socket> connecting_;
  std::shared_ptr<Connection> connection_;
  std::optional<asio::steady_timer> retry_;
  std::optional<asio::steady_timer> timer_;
};

// ---- life ----------------------------------------------------------------------------------

Status ChannelClient::Core::meet(std::string_view text) {
  const MutexLock lock(mutex_);
  if (closed_ || (text == text_ && phase_ != Phase::kResting)) return {};
  Result<Rendezvous> leader = parse_rendezvous(text);
  if (!leader.ok()) return leader.status();
  if (leader->world_size != options_.world_size) {
    return invalid(describe(*leader) + " has " + std::to_string(leader->world_size) +
                   " rank(s), this one is of " + std::to_string(options_.world_size));
  }
  if (Result<StreamProtocol::endpoint> known = end_point_of(*leader); !known.ok()) {
    return known.status();
  }
  if (loop_ == nullptr) {
    Result<std::unique_ptr<IoLoop>> loop = IoLoop::start("kvc-stage-rank", logger_);
    if (!loop.ok()) return loop.status();
    loop_ = std::move(*loop);
    loop_->run([this] {
      retry_.emplace(*loop_->context());
      timer_.emplace(*loop_->context());
      beat();
    });
  }
  text_ = text;
  phase_ = Phase::kTrying;
  loop_->run([this, found = std::move(*leader)] { begin(found); });
  return {};
}

void ChannelClient::Core::close() {
  IoLoop* loop = nullptr;
  {
    const MutexLock lock(mutex_);
    if (closed_) return;
    closed_ = true;
    loop = loop_.get();
  }
  if (loop != nullptr) loop->finish([this] { shut_down(); });
}

void ChannelClient::Core::shut_down() {
  closing_ = true;
  hang_up();
  timer_->cancel();
}

void ChannelClient::Core::set_phase(Phase phase) {
  const MutexLock lock(mutex_);
  phase_ = phase;
}

// ---- connecting ------------------------------------------------------------------------------

void ChannelClient::Core::begin(const Rendezvous& leader) {
  if (closing_) return;
  hang_up();
  if (leader_.has_value() && leader_->instance != leader.instance) {
    end_holds();
  }
  if (way_back_ == nullptr) way_back_ = std::make_shared<WayBack>(counters_);
  leader_ = leader;
  end_point_.emplace(*end_point_of(leader));
  failures_ = 0;
  connect();
}

/// Without a try to come back.
void ChannelClient::Core::hang_up() {
  ++attempt_;
  retry_->cancel();
  connecting_ = nullptr;
  const std::shared_ptr<Connection> last = std::exchange(connection_, nullptr);
  if (way_back_ != nullptr) way_back_->line.detach();
  counters_->update([](ChannelClientStats& stats) { stats.connected = 0; });
  const bool was_in = std::exchange(is_in_, false);
  if (last == nullptr) return;
  if (was_in) {
    last->close_with(Bye{}, "this rank hangs up");
  } else {
    last->close(Cut::kByOwner, "this rank hangs up");
  }
}

void ChannelClient::Core::connect() {
  beats_ = 0;
  const std::uint64_t attempt = ++attempt_;
  connecting_ = std::make_unique<StreamProtocol::socket>(*loop_->context());
  connecting_->async_connect(
      *end_point_, [this, attempt](const std::error_code& error) { on_connected(attempt, error); });
}

void ChannelClient::Core::on_connected(std::uint64_t attempt, const std::error_code& error) {
  if (attempt != attempt_ || closing_) return;
  if (error) {
    failed(error.message());
    return;
  }
  prepare_socket(*connecting_);
  // May throw; then `connecting_` is still there, and given up after some beats.
  connection_ = std::make_shared<Connection>(
      loop_->context(), std::move(*connecting_), this,
      Connection::Limits{.queue_bytes = options_.queue_bytes, .frame_bytes = kFrameBytesOfLeader});
  connecting_ = nullptr;
  connection_->start();
  introduce();
}

void ChannelClient::Core::introduce() {
  connection_->open_with(Hello{.nonce = leader_->nonce,
                               .instance = leader_->instance,
                               .client = client_,
                               .world_size = options_.world_size,
                               .rank = options_.rank,
                               .keyspace = keyspace_});
}

/// Tries again later, unless there were enough attempts.
void ChannelClient::Core::failed(const std::string& why) {
  counters_->add(&ChannelClientStats::attempts_failed);
  const std::uint64_t attempt = ++attempt_;
  connecting_ = nullptr;
  if (++failures_ >= options_.attempts) {
    set_phase(Phase::kResting);
    lines_.log(LogLevel::kWarning,
               "rank " + std::to_string(options_.rank) + " gives up on " + describe(*leader_) +
                   " after " + std::to_string(failures_) + " attempts: " + why +
                   ". It tries again when a plan names it. A leader that is on another host needs "
                   "an address by which its ranks reach it");
    return;
  }
  Duration delay = options_.first_retry;
  for (std::uint32_t i = 1; i < failures_ && delay < options_.longest_retry; ++i) delay *= 2;
  retry_->expires_after(std::min(delay, options_.longest_retry));
  retry_->async_wait([this, attempt](const std::error_code& error) {
    if (!error && attempt == attempt_ && !closing_) connect();
  });
}

// ---- messages --------------------------------------------------------------------------------

void ChannelClient::Core::on_message(Connection& from, Message message) {
  if (&from != connection_.get()) return;
  if (is_in_) {
    obey(std::move(message));
  } else if (const auto* welcome = std::get_if<Welcome>(&message)) {
    on_welcome(*welcome);
  } else if (const auto* refusal = std::get_if<Refusal>(&message)) {
    on_refusal(*refusal);
  } else {
    from.close(Cut::kMalformed, "it did not answer to the introduction");
  }
}

void ChannelClient::Core::obey(Message message) {
  if (auto* order = std::get_if<StageOrder>(&message)) {
    counters_->add(&ChannelClientStats::orders_received);
    newest_hold_ = std::max(newest_hold_, order->hold);
    rank_->stage(std::move(*order),
                 [way = way_back_](const StageProgress& progress) { way->report(progress); });
  } else if (const auto* release = std::get_if<HoldRelease>(&message)) {
    rank_->release(*release);
  } else if (std::holds_alternative<Ping>(message)) {
    static_cast<void>(connection_->send(Pong{}));
  } else if (std::holds_alternative<Bye>(message)) {
    on_bye();
  } else {
    connection_->close(Cut::kMalformed, "it sent what only a rank sends");
  }
}

void ChannelClient::Core::on_welcome(const Welcome& welcome) {
  is_in_ = true;
  failures_ = 0;
  counters_->add(&ChannelClientStats::connections);
  counters_->update([](ChannelClientStats& stats) { stats.connected = 1; });
  newest_hold_ = std::max(newest_hold_, welcome.holds.newest);
  rank_->keep_only(welcome.holds.live, welcome.holds.newest);
  way_back_->line.attach(connection_);
  lines_.log(LogLevel::kInfo,
             "rank " + std::to_string(options_.rank) + " is connected with " + describe(*leader_));
}

void ChannelClient::Core::on_refusal(Refusal refusal) {
  counters_->add(&ChannelClientStats::refused);
  const std::string why =
      "refused by " + describe(*leader_) + ": " + std::string(reason_of(refusal));
  if (refusal == Refusal::kDuplicate) {
    // The other one may be about to end.
    connection_->close(Cut::kByPeer, why);
    return;
  }
  hang_up();
  set_phase(Phase::kRefused);
  lines_.log(LogLevel::kError, "rank " + std::to_string(options_.rank) + " was " + why);
}

void ChannelClient::Core::on_bye() {
  hang_up();
  lines_.log(LogLevel::kInfo,
             "rank " + std::to_string(options_.rank) + ": " + describe(*leader_) + " has ended");
  end_holds();
  set_phase(Phase::kResting);
}

/// All of the leader that was met last. None past what it spoke of: the holds of the next leader
/// are newer, and the rank takes no order of a hold that has ended.
void ChannelClient::Core::end_holds() {
  rank_->keep_only({}, std::exchange(newest_hold_, 0));
  way_back_ = nullptr;
}

void ChannelClient::Core::on_closed(Connection& which, Cut /*cut*/, const std::string& why) {
  if (&which != connection_.get()) return;
  const std::shared_ptr<Connection> last = std::exchange(connection_, nullptr);
  way_back_->line.detach();
  counters_->update([](ChannelClientStats& stats) { stats.connected = 0; });
  const bool was_in = std::exchange(is_in_, false);
  failed(why);
  if (was_in) {
    lines_.log(LogLevel::kWarning, "rank " + std::to_string(options_.rank) + " has lost " +
                                       describe(*leader_) + ": " + why);
  }
}

// ---- time ----------------------------------------------------------------------------------

void ChannelClient::Core::beat() {
  timer_->expires_after(options_.heartbeat.interval);
  timer_->async_wait([this](const std::error_code& error) {
    if (error || closing_) return;
    beat();  // First: what comes after may throw, and the heart must go on.
    beat_once();
  });
}

void ChannelClient::Core::beat_once() {
  if (connecting_ != nullptr) {
    if (++beats_ > options_.heartbeat.missed) failed("it does not answer");
  } else if (connection_ != nullptr) {
    const bool is_late = is_in_ ? ++connection_->quiet_beats > options_.heartbeat.missed
                                : ++beats_ > options_.heartbeat.missed;
    const std::shared_ptr<Connection> held = connection_;
    if (is_late) held->close(Cut::kStuck, "it does not answer");
  }
}

// ---- the public face -------------------------------------------------------------------------

ChannelClient::ChannelClient(std::unique_ptr<Core> core) : core_(std::move(core)) {}
ChannelClient::~ChannelClient() { close(); }

Result<std::unique_ptr<ChannelClient>> ChannelClient::create(ChannelClientOptions options,
                                                             const Fingerprint& keyspace,
                                                             std::shared_ptr<StageRank> rank,
                                                             std::shared_ptr<Logger> logger) {
  if (options.world_size < 2 || options.rank == 0 || options.rank >= options.world_size) {
    return invalid("rank " + std::to_string(options.rank) + " of " +
                   std::to_string(options.world_size) + " has no use for a channel");
  }
  if (options.heartbeat.interval <= Duration::zero() || options.heartbeat.missed == 0 ||
      options.queue_bytes == 0 || options.attempts == 0 ||
      options.first_retry <= Duration::zero() || options.longest_retry <= Duration::zero()) {
    return invalid("heartbeat, queue and retries of a channel must not be empty");
  }
  std::array<std::byte, sizeof(std::uint64_t)> client{};
  if (!fill_with_secret(client)) {
    return Status(Code::kExhausted, "the system gives no randomness");
  }
  return std::unique_ptr<ChannelClient>(new ChannelClient(
      std::make_unique<Core>(options, keyspace, get_le<std::uint64_t>(client.data()),
                             std::move(rank), std::move(logger))));
}

Status ChannelClient::meet(std::string_view rendezvous) { return core_->meet(rendezvous); }
ChannelClientStats ChannelClient::stats() const { return core_->stats(); }
void ChannelClient::close() { core_->close(); }

}  // namespace kvc
