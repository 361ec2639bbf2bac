// Staging: how the scheduler's process, the leader, has blocks fetched and verified on every rank
// before it promises them. What is promised lies in each rank's memory already, so that no fault of
// the store can break a promise.
//
//   1. The leader picks a hold id and sends a StageOrder to every rank.
//   2. A rank fetches, verifies and holds the blocks in the order's order, and reports progress.
//   3. At its deadline the leader promises what every rank has reported, releases the rest of the
//      hold, and from then on ignores its progress.
//   4. The hold ends with a HoldRelease, or with the load that the leader names in a StepPlan.
//
// Ranks have no clock here: they never end a hold by themselves. A reply that is lost, late or
// repeated costs a hit at most. Releases go over the link for speed and in the next StepPlan, which
// every rank gets, so that both sides agree again after a lost one. A rank that has missed both is
// told now and then by a plan which holds are alive.
//
// Claims and their tests: docs/contract/connector.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kvc/block_hash.h"
#include "kvc/clock.h"

namespace kvc {

using HoldId = std::uint64_t;  // never reused by a leader; 0: none

/// Of one order: an order is one message, and the messages have a bound.
inline constexpr std::size_t kMaxOrderBlocks = std::size_t{1} << 16;

/// As many holds a rank takes at once; it answers a further order with kNoRoom.
inline constexpr std::size_t kHoldsMax = 4096;

enum class StageEnd : std::uint8_t {
  kAll,          ///< Every block of the order is staged.
  kMissing,      ///< The first block that is not staged is not in the store (or a shard of it).
  kRejected,     ///< ... was refused by its check.
  kNoRoom,       ///< ... found no staging page.
  kUnavailable,  ///< The store does not answer, the rank is closed or lost.
  kLate,         ///< (leader only) not staged by the deadline.
  kTooMany,      ///< (leader only) not ordered: as many promises are given as can be.
};

/// Asks a rank to fetch, verify and hold blocks, in this order.
struct StageOrder {
  HoldId hold = 0;
  std::vector<BlockHash> blocks;  ///< At most kMaxOrderBlocks.
  /// After that the rank gives up; longer than the promise's deadline, since what comes late serves
  /// the next request with this prefix. One call to the store ends sooner
  /// (WorkerOptions::load_deadline).
  Duration fetch_budget{0};
};

/// What a rank has. Sent whenever it grows by a batch, and once with `done`. `staged` never shrinks
/// while the hold lives.
struct StageProgress {
  HoldId hold = 0;
  std::uint32_t staged = 0;  ///< Leading blocks of the order that are verified, resident and held.
  bool done = false;         ///< Nothing more will be staged for this hold.
  StageEnd end = StageEnd::kAll;  ///< Meaningful with `done`.
};

/// Blocks of `hold` from `from_block` on are not needed any more; 0: the hold ends.
struct HoldRelease {
  HoldId hold = 0;
  std::uint32_t from_block = 0;

  friend bool operator==(const HoldRelease&, const HoldRelease&) = default;
};

/// What a rank keeps that may have missed what the leader said: of all holds up to `newest`, only
/// `live`.
struct LiveHolds {
  std::vector<HoldId> live;
  HoldId newest = 0;  ///< 0: nothing is said.

  friend bool operator==(const LiveHolds&, const LiveHolds&) = default;
};

/// The leader's way to one rank. From any thread. No call blocks or throws; what cannot be
/// delivered is dropped (a lost rank).
class StageLink {
 public:
  virtual ~StageLink() = default;
  virtual bool connected() const = 0;
  /// Whether a connection has taken the order. If so, either the rank gets it or its loss is told
  /// after this call began; if not, nobody is told, and the order will not be answered.
  virtual bool stage(StageOrder order) = 0;
  virtual void release(HoldRelease release) = 0;
};

/// Where a rank's progress goes (leader side). From any thread; never blocks.
class StageSink {
 public:
  virtual ~StageSink() = default;
  virtual void on_progress(std::uint32_t rank, const StageProgress& progress) = 0;
  virtual void on_rank_lost(std::uint32_t rank) = 0;
};

/// A rank, as whoever carries orders to it sees it (in process, or the channel's client). From any
/// thread; never blocks.
class StageRank {
 public:
  using Report = std::function<void(const StageProgress&)>;
  virtual ~StageRank() = default;
  /// `report` may be called from any thread, also before this returns.
  virtual void stage(StageOrder order, Report report) = 0;
  virtual void release(HoldRelease release) = 0;
  /// Of holds up to `newest`, only `live` are kept. The order of a live one may still come.
  virtual void keep_only(std::span<const HoldId> live, HoldId newest) = 0;
};

}  // namespace kvc
