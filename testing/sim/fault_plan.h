// What goes wrong in a simulated world, and how often. Each seed first draws which faults exist in
// its run at all (swarm): a bug that needs one fault to be frequent and another to be absent is
// then found too. Every fault is one that the contracts claim to survive, so that no failure is
// excused.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "testing/sim/choice.h"

namespace kvc::sim {

enum class Fault : std::uint8_t {
  // Of one call to the store.
  kRequestLost,      ///< Never arrives; answered "down" at the deadline.
  kReplyLost,        ///< Done, but answered "down" at the deadline.
  kReplyLate,        ///< Done, answered after the deadline, to nobody.
  kStall,            ///< Begins only after its deadline: an abandoned transfer.
  kRequestRepeated,  ///< A put is carried out once more, later.
  kWrongLength,      ///< One answer too few.
  kBackOff,          ///< A put or a read of one object is refused.
  kStaleRead,        ///< An object that is said to be there cannot be read.
  kDamagedRead,      ///< A bit of what is read is wrong.
  kMisdirectedRead,  ///< Another object is read.
  // Of the store as a whole.
  kEviction,      ///< An object is evicted.
  kDamageAtRest,  ///< A bit of a stored object changes.
  kTruncation,    ///< A stored object loses its end.
  kWipe,          ///< Everything is gone.
  kOutage,        ///< For a while every call fails.
  // Of processes and their connections.
  kRankCrash,
  kLeaderCrash,     ///< With its whole job.
  kLeaderReplaced,  ///< The ranks live on: all, or all but that of its process.
  kConnectionLost,  ///< With everything that is under way.
  kMessageRepeated,
  kMessageLate,
  kPlanLost,    ///< On its way to one rank: the step fails.
  kPlanNotRun,  ///< A rank gets it, and its pass ends before the loads.
  // What an engine does.
  kNeverScheduled,  ///< A query that nothing follows.
  kQueriedAgain,    ///< A query is repeated before its allocation.
  kTrimmed,         ///< Allocated, but not part of the next batch.
  kCancelled,       ///< At any point.
  kSameAtOnce,      ///< Another request with the same prefix at the same time.
  kCount,
};
inline constexpr std::size_t kFaults = static_cast<std::size_t>(Fault::kCount);

std::string_view to_string(Fault fault);

struct FaultPlan {
  /// Chance of each fault, each time that it could strike. Of faults of the store as a whole and of
  /// processes: each time that the nemesis looks.
  std::array<std::uint32_t, kFaults> millionths{};

  std::uint32_t& operator[](Fault fault) { return millionths[static_cast<std::size_t>(fault)]; }
  std::uint32_t operator[](Fault fault) const {
    return millionths[static_cast<std::size_t>(fault)];
  }
  static FaultPlan draw(Choice& choice);
};

/// Decides whether a fault strikes, and counts.
class Faults {
 public:
  /// `budget` bounds how many strike. `certain`: by choice of two instead of by chance, for worlds
  /// that are tried in full.
  Faults(const FaultPlan& plan, Choice& choice, std::uint32_t budget, bool certain)
      : plan_(plan), choice_(choice), budget_(budget), certain_(certain) {}

  bool strikes(Fault fault);
  /// No fault from here on.
  void stop() { stopped_ = true; }
  bool stopped() const { return stopped_; }
  bool possible(Fault fault) const { return !stopped_ && budget_ > 0 && plan_[fault] > 0; }

  std::uint64_t total() const { return total_; }
  const std::array<std::uint32_t, kFaults>& fired() const { return fired_; }
  std::uint32_t budget() const { return budget_; }

 private:
  const FaultPlan plan_;
  Choice& choice_;
  std::uint32_t budget_;
  const bool certain_;
  bool stopped_ = false;
  std::uint64_t total_ = 0;
  std::array<std::uint32_t, kFaults> fired_{};
};

}  // namespace kvc::sim
