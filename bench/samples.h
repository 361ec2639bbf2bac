// What benchmarks that print ratios share: counts from the command line, samples as JSON.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdio>
#include <string_view>
#include <system_error>
#include <vector>

namespace kvc {

/// Takes `--name=N` with N from 1 to `largest`. False if the argument is anything else.
inline bool parse_count(std::string_view argument, std::string_view name, std::size_t largest,
                        std::size_t* out) {
  if (!argument.starts_with(name)) return false;
  argument.remove_prefix(name.size());
  const char* const end = argument.data() + argument.size();
  const auto parsed = std::from_chars(argument.data(), end, *out);
  return parsed.ec == std::errc() && parsed.ptr == end && *out > 0 && *out <= largest;
}

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

/// As a JSON list.
inline void print_samples(const std::vector<double>& samples) {
  std::printf("[");
  for (std::size_t i = 0; i < samples.size(); ++i) std::printf("%s%.4f", i ? "," : "", samples[i]);
  std::printf("]");
}

}  // namespace kvc
