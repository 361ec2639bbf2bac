#include "connector/decision_log.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace kvc {
namespace {

std::string reason_of(const Decision& decision) {
  const std::string rank = std::to_string(decision.rank);
  const auto rounded = [](double value) { return std::to_string(std::llround(value)); };
  switch (decision.end) {
    case PrefixEnd::kAll:
      return "the end of the prompt";
    case PrefixEnd::kNoManifest:
      return "no manifest";
    case PrefixEnd::kShardLost:
      return "shard lost on rank " + rank;
    case PrefixEnd::kStoreFailed:
      return "no answer of the store in time";
    case PrefixEnd::kOverBudget:
      return "more than one step can look up and load in time";
    case PrefixEnd::kUnaligned:
      return "unaligned local match";
    case PrefixEnd::kUntracked:
      return "too many requests tracked";
    case PrefixEnd::kRejected:
      return "rejected on rank " + rank;
    case PrefixEnd::kLate:
      return "late on rank " + rank;
    case PrefixEnd::kNoRoom:
      return "no room for staging on rank " + rank;
    case PrefixEnd::kTooManyPromises:
      return "too many promises that are not loaded yet";
    case PrefixEnd::kUnavailable:
      return "rank " + rank + " or its store does not answer";
    case PrefixEnd::kRecomputeCheaper:
      return "recompute cheaper (fetch " + rounded(decision.blocks_per_second) +
             " blocks/s, prefill " + rounded(decision.prefill_tokens_per_s) + " tokens/s, " +
             std::to_string(decision.running_decodes) + " decodes running)";
    case PrefixEnd::kBelowMinimum:
      return "below the minimum hit";
    case PrefixEnd::kCancelled:
      return "a part that was cancelled";
    case PrefixEnd::kOptedOut:
      return decision.why.empty() ? "opted out" : "opted out: " + decision.why;
  }
  return "";
}

bool is_absence(PrefixEnd end) {
  return end == PrefixEnd::kNoManifest || end == PrefixEnd::kShardLost ||
         end == PrefixEnd::kRejected;
}

}  // namespace

void Decision::cut(std::size_t keep, PrefixEnd why_not, std::uint32_t at_rank) {
  if (keep >= offered) return;
  missed[static_cast<std::size_t>(why_not)] += offered - keep;
  offered = keep;
  if (is_absence(why_not)) absent_from = keep;
  end = why_not;
  rank = at_rank;
}

std::string to_line(const Decision& decision) {
  std::string line = "request " + std::to_string(decision.request) + ": matched " +
                     std::to_string(decision.matched) + ", offered " +
                     std::to_string(decision.offered) + " of " + std::to_string(decision.wanted);
  if (decision.resident > 0) line += " (" + std::to_string(decision.resident) + " resident)";
  if (decision.repeats > 0) line += ", asked " + std::to_string(decision.repeats + 1) + " times";
  return line + ", ended by: " + reason_of(decision);
}

void DecisionLog::add(Decision decision) {
  if (limit_ == 0) return;
  const auto same = [&](const Decision& one) { return one.request == decision.request; };
  const auto known = std::ranges::find_if(entries_, same);
  if (known != entries_.end()) {
    entries_.erase(known);
  } else if (entries_.size() >= limit_) {
    entries_.pop_front();
  }
  entries_.push_back(std::move(decision));
}

}  // namespace kvc
