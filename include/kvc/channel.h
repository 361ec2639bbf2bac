// The way between a leader and the ranks that live elsewhere: orders go out, progress comes back.
// Elsewhere is another process, another host or another thread; for rank 0, which shares the
// leader's process, make_direct_link() does.
//
//   leader   ChannelServer listens and has one StageLink per rank. Its rendezvous, a line of text,
//            reaches the ranks by whatever way the engine broadcasts its plans.
//   rank     ChannelClient is told the rendezvous, connects in the background, hands orders to a
//            StageRank and sends what that reports.
//
// A rank proves with the rendezvous' nonce that it was told, and states rank, world size and
// keyspace; who does not fit is refused and counted. The text is a secret of the engine's ranks.
// Nothing is encrypted: use an address only in a network that may see block hashes.
//
// Nobody waits: calls put a frame into a bounded queue and return. A rank that does not take its
// frames, or does not answer heartbeats, counts as lost, and its connection is cut; its client
// connects again. What was on its way then is lost, which the protocol of kvc/stage.h allows for.
//
// Threads: every method may be called from any thread. Each server and each client that has a
// rendezvous owns one thread, on which StageSink, StageRank and the callback of serve() are called;
// they must not end the object that calls them. A forked child has no such thread: it must leave
// the objects of its parent alone, destructors included. Claims and their tests:
// docs/contract/channel.md.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "kvc/clock.h"
#include "kvc/identity.h"
#include "kvc/log.h"
#include "kvc/result.h"
#include "kvc/stage.h"
#include "kvc/stats.h"

namespace kvc {

/// Both sides need the same. The leader asks every `interval`; either side counts the other as lost
/// once more than `missed` intervals end without a word, and gives as many to whoever introduces
/// itself.
struct ChannelHeartbeat {
  Duration interval = std::chrono::seconds(1);  ///< > 0
  std::uint32_t missed = 5;                     ///< > 0
};

struct ChannelServerOptions {
  std::uint32_t world_size = 0;  ///< > 1
  /// Empty: a Unix socket, for ranks on this host. Else the numeric address of this host by which
  /// its ranks reach it, with or without a port: "10.0.0.1", "10.0.0.1:4000", "[fe80::1]:4000".
  std::string address = {};
  /// Where the private folder of the Unix socket is made.
  std::string folder = "/tmp";
  /// Of one rank, in bytes not taken yet; past it the rank is lost.
  std::size_t queue_bytes = std::size_t{8} << 20;
  ChannelHeartbeat heartbeat = {};
};

struct ChannelServerStats {
  std::uint64_t ranks_connected = 0;
  std::uint64_t ranks_lost = 0;
  std::uint64_t refused_nonce = 0;
  std::uint64_t refused_rank = 0;
  std::uint64_t refused_keyspace = 0;
  std::uint64_t refused_duplicate = 0;
  std::uint64_t refused_malformed = 0;
  std::uint64_t refused_silent = 0;
  std::uint64_t refused_crowd = 0;
  std::uint64_t orders_sent = 0;
  std::uint64_t orders_dropped = 0;
  std::uint64_t progress_received = 0;
};

inline constexpr StatField<ChannelServerStats> kChannelServerStats[] = {
    {"ranks_connected", "", &ChannelServerStats::ranks_connected, StatKind::kGauge,
     "Ranks of other processes that take orders now."},
    {"ranks_lost", "", &ChannelServerStats::ranks_lost, StatKind::kCounter,
     "Connections to ranks that broke, or were cut since the rank was stuck."},
    {"ranks_refused", "nonce", &ChannelServerStats::refused_nonce, StatKind::kCounter,
     "Callers that did not know the nonce."},
    {"ranks_refused", "rank", &ChannelServerStats::refused_rank, StatKind::kCounter,
     "Callers with an impossible rank or another world size."},
    {"ranks_refused", "keyspace", &ChannelServerStats::refused_keyspace, StatKind::kCounter,
     "Ranks of another keyspace."},
    {"ranks_refused", "duplicate", &ChannelServerStats::refused_duplicate, StatKind::kCounter,
     "Callers with the rank of another that is connected."},
    {"ranks_refused", "malformed", &ChannelServerStats::refused_malformed, StatKind::kCounter,
     "Callers that spoke another protocol or version."},
    {"ranks_refused", "silent", &ChannelServerStats::refused_silent, StatKind::kCounter,
     "Callers that hung up, or did not introduce themselves in time."},
    {"ranks_refused", "crowd", &ChannelServerStats::refused_crowd, StatKind::kCounter,
     "Callers that had not introduced themselves and made room for others, being there longest."},
    {"stage_orders_sent", "", &ChannelServerStats::orders_sent, StatKind::kCounter,
     "Orders taken into the queue of a rank."},
    {"stage_orders_dropped", "", &ChannelServerStats::orders_dropped, StatKind::kCounter,
     "Orders to a rank that was not connected, or was lost by them."},
    {"stage_progress_received", "", &ChannelServerStats::progress_received, StatKind::kCounter,
     "Reports of ranks."},
};
static_assert(covers_all(kChannelServerStats));

/// The way to a rank of the same process, which is always connected. Orders reach `stage`, and its
/// reports `sink` as long as that lives, on the threads of their callers. Null without `stage`: the
/// rank is closed, and a leader with no link to it promises nothing.
/// Holds up to `newest_before` (StageLeaderOptions) end: an earlier leader ends all of its own but
/// those that it has planned, and their plan may never come.
std::shared_ptr<StageLink> make_direct_link(std::uint32_t rank, std::shared_ptr<StageRank> stage,
                                            std::weak_ptr<StageSink> sink, HoldId newest_before);

class ChannelServer {
 public:
  /// Listens, and lets callers wait. kInvalid for options that cannot be meant, kUnavailable if the
  /// address or the folder cannot be had, kExhausted if the system gives no thread or randomness.
  static Result<std::unique_ptr<ChannelServer>> create(ChannelServerOptions options,
                                                       const Fingerprint& keyspace,
                                                       std::shared_ptr<Logger> logger);
  /// Like close().
  ~ChannelServer();

  /// Begins to take ranks in. `live` is asked, without any lock held, when a rank has connected and
  /// `connected()` of its link is true already. Once; later calls do nothing.
  void serve(std::shared_ptr<StageSink> sink, std::function<LiveHolds()> live);

  /// The way to rank 1 to world_size - 1; nullptr for others. It may outlive the server; it is then
  /// not connected.
  std::shared_ptr<StageLink> link(std::uint32_t rank) const;

  /// For ChannelClient::meet(): printable, less than 512 characters, contains a secret.
  const std::string& rendezvous() const;

  ChannelServerStats stats() const;

  /// Hangs up on all and joins the thread; no callback runs after it. Idempotent.
  void close();

 private:
  class Core;
  explicit ChannelServer(std::unique_ptr<Core> core);
  std::unique_ptr<Core> core_;
};

struct ChannelClientOptions {
  std::uint32_t rank = 0;        ///< 1 to world_size - 1
  std::uint32_t world_size = 0;  ///< > 1
  /// Of reports that the leader has not taken yet; past it the connection is cut.
  std::size_t queue_bytes = std::size_t{1} << 20;
  ChannelHeartbeat heartbeat = {};
  Duration first_retry = std::chrono::milliseconds(10);  ///< > 0; doubled with every attempt.
  Duration longest_retry = std::chrono::seconds(1);
  std::uint32_t attempts = 16;  ///< > 0. In a row; then the client rests until the next meet().
};

struct ChannelClientStats {
  std::uint64_t connected = 0;
  std::uint64_t connections = 0;
  std::uint64_t attempts_failed = 0;
  std::uint64_t refused = 0;
  std::uint64_t orders_received = 0;
  std::uint64_t progress_dropped = 0;
};

inline constexpr StatField<ChannelClientStats> kChannelClientStats[] = {
    {"leader_connected", "", &ChannelClientStats::connected, StatKind::kGauge,
     "1 while this rank takes orders of its leader."},
    {"leader_connections", "", &ChannelClientStats::connections, StatKind::kCounter,
     "Times that this rank was taken in by its leader."},
    {"leader_attempts_failed", "", &ChannelClientStats::attempts_failed, StatKind::kCounter,
     "Attempts to connect that failed, and connections that broke."},
    {"leader_refused", "", &ChannelClientStats::refused, StatKind::kCounter,
     "Times that the leader refused this rank."},
    {"stage_orders_received", "", &ChannelClientStats::orders_received, StatKind::kCounter,
     "Orders handed on to the staging of this rank."},
    {"stage_progress_dropped", "", &ChannelClientStats::progress_dropped, StatKind::kCounter,
     "Reports that had no way to the leader."},
};
static_assert(covers_all(kChannelClientStats));

class ChannelClient {
 public:
  /// kInvalid for options that cannot be meant.
  static Result<std::unique_ptr<ChannelClient>> create(ChannelClientOptions options,
                                                       const Fingerprint& keyspace,
                                                       std::shared_ptr<StageRank> rank,
                                                       std::shared_ptr<Logger> logger);
  /// Like close().
  ~ChannelClient();

  /// Connects in the background to the leader that `rendezvous` names; hangs up on any other, whose
  /// holds end. Does nothing while that is under way, stands, or was refused for good, so that it
  /// may be called at every step; after `attempts` failures it begins anew.
  /// kInvalid for a text that is none, of another version or another world size; kExhausted if the
  /// system gives no thread.
  Status meet(std::string_view rendezvous);

  ChannelClientStats stats() const;

  /// Hangs up and joins the thread; no call of the StageRank begins after it, and reports go
  /// nowhere. Idempotent.
  void close();

 private:
  class Core;
  explicit ChannelClient(std::unique_ptr<Core> core);
  std::unique_ptr<Core> core_;
};

}  // namespace kvc
