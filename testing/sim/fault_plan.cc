#include "testing/sim/fault_plan.h"

namespace kvc::sim {
namespace {

constexpr std::array<std::string_view, kFaults> kNames{"request_lost",     "reply_lost",
                                                       "reply_late",       "stall",
                                                       "request_repeated", "wrong_length",
                                                       "back_off",         "stale_read",
                                                       "damaged_read",     "misdirected_read",
                                                       "eviction",         "damage_at_rest",
                                                       "truncation",       "wipe",
                                                       "outage",           "rank_crash",
                                                       "leader_crash",     "leader_replaced",
                                                       "connection_lost",  "message_repeated",
                                                       "message_late",     "plan_lost",
                                                       "plan_not_run",     "never_scheduled",
                                                       "queried_again",    "trimmed",
                                                       "cancelled",        "same_at_once"};

/// A crash or a wipe now and then leaves something to look at in between; a lost reply may be as
/// frequent as an answer.
std::uint32_t most(Fault fault) {
  switch (fault) {
    case Fault::kWipe:
    case Fault::kOutage:
    case Fault::kRankCrash:
    case Fault::kLeaderCrash:
    case Fault::kLeaderReplaced:
      return 60'000;
    case Fault::kConnectionLost:
    case Fault::kPlanLost:
    case Fault::kPlanNotRun:
      return 150'000;
    default:
      return 400'000;
  }
}

}  // namespace

std::string_view to_string(Fault fault) { return kNames[static_cast<std::size_t>(fault)]; }

FaultPlan FaultPlan::draw(Choice& choice) {
  FaultPlan plan;
  // Few kinds in some runs, many in others.
  const std::uint32_t in_ten = 1 + choice.below(6);
  for (std::size_t i = 0; i < kFaults; ++i) {
    if (choice.below(10) >= in_ten) continue;
    const std::uint32_t limit = most(static_cast<Fault>(i));
    plan.millionths[i] = limit >> choice.below(6);
  }
  return plan;
}

bool Faults::strikes(Fault fault) {
  if (!possible(fault)) return false;
  const bool struck = certain_ ? choice_.below(2) == 1 : choice_.below(1'000'000) < plan_[fault];
  if (!struck) return false;
  --budget_;
  ++total_;
  ++fired_[static_cast<std::size_t>(fault)];
  return true;
}

}  // namespace kvc::sim
