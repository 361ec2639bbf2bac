// Figures of the connector: each is a field of a plain struct, and one row of a table beside it
// gives its name and meaning. Whoever shows figures walks the table, so that a name is written in
// one place; `covers_all` makes the compiler refuse a field without a row.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "kvc/clock.h"

namespace kvc {

enum class StatKind {
  kCounter,  ///< Only grows.
  kGauge,    ///< How it is now.
};

/// The row of one number. Figures of a family differ by their reason alone.
template <typename Stats, typename Value = std::uint64_t>
struct StatField {
  std::string_view family;
  std::string_view reason;  ///< Empty for a figure without a family.
  Value Stats::*field = nullptr;
  StatKind kind = StatKind::kCounter;
  std::string_view help;

  std::string name() const {
    std::string text(family);
    return reason.empty() ? text : text.append("_").append(reason);
  }
};

/// How long something took, in fixed buckets. Not thread-safe.
class LatencyHistogram {
 public:
  /// Inclusive upper bounds, ascending. A last bucket takes what is above all of them.
  static constexpr std::array<std::chrono::microseconds, 16> kBounds = {
      std::chrono::microseconds(100),
      std::chrono::microseconds(250),
      std::chrono::microseconds(500),
      std::chrono::microseconds(1'000),
      std::chrono::microseconds(2'500),
      std::chrono::microseconds(5'000),
      std::chrono::microseconds(10'000),
      std::chrono::microseconds(25'000),
      std::chrono::microseconds(50'000),
      std::chrono::microseconds(100'000),
      std::chrono::microseconds(250'000),
      std::chrono::microseconds(500'000),
      std::chrono::seconds(1),
      std::chrono::microseconds(2'500'000),
      std::chrono::seconds(5),
      std::chrono::seconds(10)};

  void add(Duration took) {
    const auto bucket = std::lower_bound(kBounds.begin(), kBounds.end(), took);
    ++buckets_[static_cast<std::size_t>(bucket - kBounds.begin())];
    sum_ += took;
  }

  /// Each on its own, not added up. One more than kBounds.
  std::span<const std::uint64_t> buckets() const { return buckets_; }
  Duration sum() const { return sum_; }
  std::uint64_t count() const {
    std::uint64_t all = 0;
    for (const std::uint64_t bucket : buckets_) all += bucket;
    return all;
  }

 private:
  std::array<std::uint64_t, kBounds.size() + 1> buckets_{};
  Duration sum_{0};
};

/// The row of one histogram.
template <typename Stats>
struct LatencyField {
  std::string_view name;
  LatencyHistogram Stats::*field = nullptr;
  std::string_view help;
};

/// Whether a struct of nothing but numbers and histograms has a row for each.
template <typename Stats, typename Value, std::size_t kNumbers, std::size_t kHistograms>
constexpr bool covers_all(const StatField<Stats, Value> (&)[kNumbers],
                          const LatencyField<Stats> (&)[kHistograms]) {
  return sizeof(Stats) == kNumbers * sizeof(Value) + kHistograms * sizeof(LatencyHistogram);
}
template <typename Stats, typename Value, std::size_t kNumbers>
constexpr bool covers_all(const StatField<Stats, Value> (&)[kNumbers]) {
  return sizeof(Stats) == kNumbers * sizeof(Value);
}

}  // namespace kvc
