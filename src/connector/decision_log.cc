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
    case PrefixEnd::kUnavailable:
      return "rank " + rank + " or its store does not answer";
    case PrefixEnd::kRecomputeCheaper:
      return "recompute cheaper (fetch " + rounded(decision.blocks_per_second) +
             " blocks/s, prefill " + rounded(decision.prefill_tokens_per_s) + " tokens/s, " +
             std::to_string(decision.running_decodes) + " decodes running)";
    case PrefixEnd::kBelowMinimum:
      return "below the minimum hit";
    case PrefixEnd::kOptedOut:
      return decision.why.empty() ? "opted out" : "opted out: " + decision.why;
  }
  return "";
}

}  // namespace

void Decision::cut(std::size_t keep, PrefixEnd why_not, std::uint32_t at_rank) {
  if (keep >= offered) return;
  missed[static_cast<std::size_t>(why_not)] += offered - keep;
  offered = keep;
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
  const auto same = [&](const Decision& one) { return one.request == decision.request; };
  const auto known = std::ranges::find_if(ring_, same);
  if (known != ring_.end()) {
    if (decision.repeated) {
      ++known->repeats;
      return;
    }
    *known = std::move(decision);
  } else if (ring_.size() < limit_) {
    ring_.push_back(std::move(decision));
  } else if (limit_ > 0) {
    ring_[next_] = std::move(decision);
    next_ = (next_ + 1) % limit_;
  }
}

std::vector<Decision> DecisionLog::entries() const {
  std::vector<Decision> entries = ring_;
  std::rotate(entries.begin(), entries.begin() + static_cast<std::ptrdiff_t>(next_), entries.end());
  return entries;
}

}  // namespace kvc
