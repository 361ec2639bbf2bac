// What one step of the engine may still wait for the store, and when the next step has begun.
//
// A plan ends a step. An engine may also ask and then run nothing, so that no plan comes. So a
// step is over, too, once the engine was silent for a while; and for one that is never silent, once
// its budget is a small part of the time since it began. What a query does besides waiting (naming
// a long prompt takes milliseconds) is no silence, and neither is a query without any time left.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>

#include "kvc/clock.h"

namespace kvc {

/// Not thread-safe.
class StepTime {
 public:
  /// Queries of one step follow each other sooner.
  static constexpr Duration kPause = std::chrono::milliseconds(100);
  /// Budgets from the begin of a step to the next one, without a plan or a pause.
  static constexpr int kBudgetsApart = 10;

  explicit StepTime(Duration budget) : budget_(budget) {}

  void begin(Instant now) {
    began_at_ = now;
    spent_ = Duration::zero();
  }
  /// True if the step before is over: then it has called begin().
  bool query_began(Instant now) {
    const bool was_silent = running_ == 0 && now - heard_at_ >= kPause;
    ++running_;
    if (!was_silent && now - began_at_ < budget_ * kBudgetsApart) return false;
    begin(now);
    return true;
  }
  void query_ended(Instant now) {
    --running_;
    heard(now);
  }
  /// The engine is still at the step's requests.
  void heard(Instant now) { heard_at_ = std::max(heard_at_, now); }

  void spend(Duration waited) { spent_ += waited; }
  /// Of a part of the budget that is spent first.
  Duration left(Duration part) const { return std::max(part - spent_, Duration::zero()); }

 private:
  Duration budget_;
  Instant began_at_{};
  Instant heard_at_{};
  Duration spent_{0};
  std::size_t running_ = 0;  // Queries.
};

}  // namespace kvc
