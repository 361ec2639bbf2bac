// The leader of staged promises: orders blocks from every rank, waits until all have them or the
// deadline is there, and keeps what was promised until it is loaded. One per engine instance, in
// the scheduler's process; a Scheduler that has one promises only what it was told is staged.
//
//   auto leader = std::make_shared<StageLeader>(options, system_clock());
//   leader->set_links(links);  // One to each rank; they report to *leader.
//   SchedulerOptions scheduling{..., .stage_leader = leader};
//
// Until each rank has a link and it is connected, nothing is promised.
//
// Threads: every method may be called from any thread. Only stage() waits, and never past its
// deadline. Links are called without a lock held, so that they may report before they return.
// Lifetime: whoever reports (links, a channel) must not do so after the leader is gone; a link that
// may must hold it weakly.
// Claims and their tests: docs/contract/connector.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvc/clock.h"
#include "kvc/stage.h"
#include "kvc/step_plan.h"

namespace kvc {

struct StageLeaderOptions {
  /// Ranks that load, also where blocks are stored once for all of them.
  std::uint32_t world_size = 1;
  /// Promises that may be open or firm at once, without those whose load is planned; past it
  /// nothing is promised. At most kHoldsMax.
  std::size_t max_holds = kHoldsMax;
  /// Its holds are numbered from the next one on. A rank that meets another leader knows the
  /// numbers of the one before: they must be smaller. 0 will do for a leader whose ranks end with
  /// it.
  HoldId newest_before = 0;
  /// Time from a promise to its allocation; without one by then it is taken back. An engine that
  /// allocates later all the same gets a load that depends on the store.
  Duration hold_for = std::chrono::seconds(10);
  /// For a rank to fetch what was ordered, past the time that a query waits: it serves later
  /// requests.
  Duration fetch_budget = std::chrono::seconds(30);
};

/// What may be promised of an order.
struct StagedBlocks {
  HoldId hold = 0;  ///< Keeps them staged on every rank; 0 if there are none.
  std::uint32_t blocks = 0;
  StageEnd end = StageEnd::kAll;  ///< Why not more.
  std::uint32_t rank = 0;         ///< Which rank has the fewest; none with kAll and kTooMany.
};

class StageLeader final : public StageSink {
 public:
  StageLeader(const StageLeaderOptions& options, std::shared_ptr<const Clock> clock);
  /// Releases every hold that is not being loaded.
  ~StageLeader() override;
  StageLeader(const StageLeader&) = delete;
  StageLeader& operator=(const StageLeader&) = delete;

  std::uint32_t world_size() const;

  /// One link for each rank, in their order; replaces earlier ones. Any other number: no rank can
  /// be reached.
  void set_links(std::vector<std::shared_ptr<StageLink>> links);
  /// What plans carry to the ranks as long as one of them is not connected, so that it can connect.
  void set_rendezvous(std::string rendezvous);
  /// Whether all ranks are connected.
  bool connected() const { return awaited() == 0; }
  /// Ranks that are not connected.
  std::uint32_t awaited() const;

  /// Has the blocks fetched by every rank, the first kMaxOrderBlocks at most; returns once waiting
  /// could not help, at `deadline` at the latest.
  StagedBlocks stage(std::span<const BlockHash> blocks, Deadline deadline);
  /// The promise is given once more. False if it is over.
  bool renew(HoldId hold);
  /// The promise is firm from now on. False if it is over: its load will have to fetch, and may
  /// fail.
  bool allocated(HoldId hold);
  /// Takes back promises whose time is over, as every other call does on its way: for when none
  /// comes. Waits for nothing.
  void expire() noexcept;
  /// The blocks of the hold from `from_block` on are not needed any more; 0: all.
  void release(HoldId hold, std::uint32_t from_block) noexcept;
  /// Completes a plan that is about to be sent: `loaded` are the holds of its loads. May throw
  /// std::bad_alloc: then the plan tells nothing, and `loaded` belong to the next one too.
  void plan(std::span<const HoldId> loaded, StepPlan* plan);

  /// For ranks that connect again.
  LiveHolds live_holds() const;
  /// Promises that are open or firm, without those that are planned.
  std::size_t holds() const;

  // StageSink
  void on_progress(std::uint32_t rank, const StageProgress& progress) override;
  void on_rank_lost(std::uint32_t rank) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvc
