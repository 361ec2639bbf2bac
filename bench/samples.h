// What benchmarks that compare two ways share: counts from the command line, samples by turns, the
// end of what they print.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdio>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace kvc {

/// A count that the command line may set: `--samples=N`, of which `option` is all but N.
struct CountOption {
  std::string_view option;
  std::size_t* out;
};

/// False if the argument is not that option, or N is not from 1 to `largest`.
inline bool parse_count(std::string_view argument, const CountOption& count, std::size_t largest) {
  if (!argument.starts_with(count.option)) return false;
  argument.remove_prefix(count.option.size());
  const char* const end = argument.data() + argument.size();
  const auto parsed = std::from_chars(argument.data(), end, *count.out);
  return parsed.ec == std::errc() && parsed.ptr == end && *count.out > 0 && *count.out <= largest;
}

/// Sets what the arguments say. False if one is none of `counts`: stderr then says what they are.
inline bool parse_counts(int argc, char** argv, std::size_t largest,
                         std::initializer_list<CountOption> counts) {
  const std::span<char*> arguments(argv, static_cast<std::size_t>(argc));
  for (const std::string_view argument : arguments.subspan(1)) {
    const auto takes = [&](const CountOption& count) {
      return parse_count(argument, count, largest);
    };
    if (std::any_of(counts.begin(), counts.end(), takes)) continue;
    std::string usage;
    for (const CountOption& count : counts) usage.append(" ").append(count.option).append("N");
    std::fprintf(stderr, "%s: '%s' is none of%s, N from 1 to %zu\n", arguments.front(),
                 std::string(argument).c_str(), usage.c_str(), largest);
    return false;
  }
  return true;
}

/// Two ways of doing the same, one sample each by turns.
struct PairedSamples {
  std::vector<double> ours;
  std::vector<double> baseline;

  /// One of each. The two change places every time, so that drift of the machine hits both alike.
  template <typename Ours, typename Baseline>
  void take(Ours time_ours, Baseline time_baseline) {
    const bool is_ours_first = baseline.size() % 2 == 0;
    if (is_ours_first) ours.push_back(time_ours());
    baseline.push_back(time_baseline());
    if (!is_ours_first) ours.push_back(time_ours());
  }
  std::vector<double> ratios() const {
    std::vector<double> all;
    for (std::size_t i = 0; i < ours.size(); ++i) all.push_back(ours[i] / baseline[i]);
    return all;
  }
};

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

/// The end of the JSON object that a benchmark prints.
inline void print_end(const std::string& digest, const std::vector<double>& samples) {
  std::printf("\"digest\":\"%s\",\"samples\":[", digest.c_str());
  for (std::size_t i = 0; i < samples.size(); ++i) std::printf("%s%.4f", i ? "," : "", samples[i]);
  std::printf("]}\n");
}

}  // namespace kvc
