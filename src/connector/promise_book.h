// What the leader of a staged promise knows of its holds: which blocks every rank has staged, what
// was promised of them, and when they may go. A state machine without threads, clock or I/O.
//
//   begin -> on_progress ... -> close -> allocated -> planned
//               staging          promised    firm      being loaded
//
// A hold ends with the last step, with release(..., 0), or by expiry, which is for promises alone:
// once pages were allocated the engine relies on them.
//
// Every end but the load's is told to the ranks twice: at once, over their links, and in the next
// plan. The load's end is told by plans alone, since what goes over a link might arrive before the
// copy: by the plan that asks for the load, and by a later one, should that never have arrived.
// Now and then a plan says which holds are alive, so that no rank keeps others for good, whatever
// it has missed. A rank takes plans in order: those before have been carried out there, or never
// will be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "kvc/clock.h"
#include "kvc/stage.h"

namespace kvc {

struct PromiseBookOptions {
  std::uint32_t ranks = 1;
  /// Holds that are alive, or whose end no plan has told yet. One more is not begun.
  std::size_t max_holds = kHoldsMax;
  /// Holds of different leaders must differ, since a rank may outlive one and meet another.
  HoldId newest_before = 0;
  /// From the promise to its allocation.
  Duration hold_for{0};
  /// Plans from one that says which holds are alive to the next; > 0.
  std::uint64_t plans_per_list = 32;
};

/// How many leading blocks all ranks have staged, and what ended them.
struct StagedPrefix {
  std::uint32_t blocks = 0;
  StageEnd end = StageEnd::kAll;
  std::uint32_t rank = 0;  ///< That has the fewest; meaningless with kAll.
};

/// Not thread-safe. Holds that it does not know are ignored, and so is what comes too late.
/// begin(), planned() and take_plan() throw std::bad_alloc and have changed nothing then; whatever
/// else ends a hold, or a part of it, needs no memory.
class PromiseBook {
 public:
  explicit PromiseBook(const PromiseBookOptions& options)
      : options_(options), newest_(options.newest_before) {}

  /// A new hold of so many blocks, to be ordered from every rank. 0: there is no room, or nothing
  /// to hold.
  HoldId begin(std::uint32_t blocks);
  /// Counts only until close(). Repeated and reordered reports change nothing.
  void on_progress(std::uint32_t rank, const StageProgress& progress);
  /// The rank counts as having staged nothing, in every hold that is still open.
  void on_rank_lost(std::uint32_t rank);
  /// Whether waiting longer could not make the promise longer; true for a hold that is not open.
  bool is_settled(HoldId id) const;

  /// The promise: what every rank has staged. The rest is released; nothing staged ends the hold.
  StagedPrefix close(HoldId id, Instant now);
  /// The same promise is given once more: its time begins anew. False if it is over.
  bool renew(HoldId id, Instant now);
  /// From here on the promise is firm. False if it is over.
  bool allocated(HoldId id);
  /// The next plan has its load. No release of it is told from here on.
  void planned(HoldId id);
  /// Blocks from `from_block` on are not needed; 0 ends the hold.
  void release(HoldId id, std::uint32_t from_block);
  /// Ends promises that were not allocated in time. How many. Looks at the holds only if one may be
  /// over, since it is asked in every callback.
  std::size_t expire(Instant now);

  /// Releases to send over the links now.
  std::vector<HoldRelease> take_releases();
  struct PlanEnds {
    std::vector<HoldRelease> released;  ///< Since the last plan, and of loads of some plans ago.
    std::vector<HoldId> done;           ///< To end once this plan's loads are in place.
    LiveHolds live;                     ///< With `done`; nothing in most plans.
  };
  /// What the plan that is being made has to tell.
  PlanEnds take_plan();

  /// Holds that a rank must keep which was away: also those whose load it may not have done yet.
  std::vector<HoldId> live() const;
  /// The newest hold that was ever begun; 0: none.
  HoldId newest() const { return newest_; }
  /// Holds that were begun and not ended, without those being loaded.
  std::size_t size() const { return holds_.size(); }

 private:
  enum class State : std::uint8_t { kStaging, kPromised, kFirm };
  struct Rank {
    std::uint32_t staged = 0;
    bool done = false;
    StageEnd end = StageEnd::kLate;
  };
  struct Hold {
    State state = State::kStaging;
    std::uint32_t blocks = 0;  // Ordered, later promised.
    Instant expires_at{};
    std::vector<Rank> ranks;  // While it is staging.
  };
  struct Loading {
    HoldId hold;
    std::uint64_t plan;
  };

  Hold* find(HoldId id);
  const Hold* find(HoldId id) const;
  StagedPrefix staged_by_all(const Hold& hold) const;
  bool lists_holds(std::uint64_t plan) const;
  std::vector<HoldId> not_loaded() const;
  Instant end_of_a_hold(Instant now) const;
  void tell(HoldRelease release) noexcept;

  PromiseBookOptions options_;
  std::map<HoldId, Hold> holds_;
  Instant next_expiry_ = Instant::max();  // No promise is over before.
  std::vector<HoldRelease> unsent_;
  std::map<HoldId, std::uint32_t> unplanned_;  // By hold, from which block on.
  std::map<HoldId, std::uint32_t> to_come_;    // Of holds in holds_, places in unplanned_.
  std::deque<Loading> loading_;                // In the order of plans, that of the next plan last.
  std::uint64_t plans_ = 0;
  HoldId newest_;
};

}  // namespace kvc
