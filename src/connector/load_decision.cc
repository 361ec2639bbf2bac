#include "connector/load_decision.h"

#include <algorithm>
#include <chrono>

namespace kvc {
namespace {

/// Of the prefill time, what a running decode loses.
constexpr double kShareOfPrefill = 0.5;
/// Of the newest measurement in the average.
constexpr double kWeight = 0.25;
/// A fetch of which nothing arrived.
constexpr double kPartOfABlock = 0.25;

bool is_recompute_cheaper(const LoadQuestion& question) {
  if (question.to_fetch == 0 || question.blocks_per_second <= 0 ||
      question.prefill_tokens_per_s <= 0) {
    return false;
  }
  const auto blocks = static_cast<double>(question.to_fetch);
  const auto decodes = static_cast<double>(question.running_decodes);
  const double fetch_s = blocks / question.blocks_per_second;
  const double prefill_s = blocks * question.tokens_per_block / question.prefill_tokens_per_s;
  return fetch_s * (1 + decodes) > prefill_s * (1 + kShareOfPrefill * decodes);
}

}  // namespace

LoadDecision decide_load(const LoadQuestion& question) {
  const std::size_t all = question.resident + question.to_fetch;
  if (all < question.min_blocks) return {.blocks = 0, .reason = LoadReason::kBelowMinimum};
  if (!is_recompute_cheaper(question)) return {.blocks = all, .reason = LoadReason::kLoad};
  const bool worth_it = question.resident >= question.min_blocks;
  return {.blocks = worth_it ? question.resident : 0, .reason = LoadReason::kRecomputeCheaper};
}

void FetchSpeed::fetched(std::size_t blocks, Duration took, Instant now) {
  if (took <= Duration::zero()) return;
  const double seconds = std::chrono::duration<double>(took).count();
  const double moved = blocks == 0 ? kPartOfABlock : static_cast<double>(blocks);
  const double before = FetchSpeed::blocks_per_second(now);
  const double measured = moved / seconds;
  if (blocks == 0 && (before > 0 ? measured >= before : took < kTellingWait)) return;
  blocks_per_second_ = before <= 0 ? measured : before + kWeight * (measured - before);
  measured_at_ = now;
}

double FetchSpeed::blocks_per_second(Instant now) const {
  return now - measured_at_ < kFreshFor ? blocks_per_second_ : 0;
}

}  // namespace kvc
