#include "testing/sim/choice.h"

#include "base/check.h"

namespace kvc::sim {

std::uint32_t CountingChoice::below(std::uint32_t bound) {
  if (position_ == digits_.size()) digits_.push_back({0, bound});
  Digit& digit = digits_[position_++];
  if (digit.bound == 0) digit.bound = bound;  // Replayed: the bound was not told.
  KVC_CHECK(digit.bound == bound && digit.value < bound,
            "the program asked for other choices than in its last run");
  return digit.value;
}

bool CountingChoice::next() {
  // What was not asked for in this run is no choice of it.
  digits_.resize(position_ < cut_at_ ? position_ : cut_at_);
  position_ = 0;
  cut_at_ = SIZE_MAX;
  while (!digits_.empty() && digits_.back().value + 1 == digits_.back().bound) digits_.pop_back();
  if (digits_.empty()) return false;
  ++digits_.back().value;
  return true;
}

void CountingChoice::replay(const std::vector<std::uint32_t>& values) {
  digits_.clear();
  for (const std::uint32_t value : values) digits_.push_back({value, 0});
  position_ = 0;
}

std::vector<std::uint32_t> CountingChoice::values() const {
  std::vector<std::uint32_t> values;
  values.reserve(digits_.size());
  for (const Digit& digit : digits_) values.push_back(digit.value);
  return values;
}

}  // namespace kvc::sim
