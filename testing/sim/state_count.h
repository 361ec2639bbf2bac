// How many different states were seen, without keeping them: HyperLogLog with 2^12 registers, good
// to about 2 %. Counts of several threads add up to the count of the union.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

#include "base/random.h"

namespace kvc::sim {

class StateCount {
 public:
  void add(std::uint64_t state) {
    const std::uint64_t hash = mix_bits(state + 0x9e3779b97f4a7c15u);
    std::uint8_t& most = registers_[hash >> (64 - kBits)];
    const int zeros = std::countl_zero((hash << kBits) | 1u);
    most = std::max(most, static_cast<std::uint8_t>(zeros + 1));
  }

  void merge(const StateCount& other) {
    for (std::size_t i = 0; i < kRegisters; ++i) {
      registers_[i] = std::max(registers_[i], other.registers_[i]);
    }
  }

  double estimate() const {
    double sum = 0;
    double empty = 0;
    for (const std::uint8_t value : registers_) {
      sum += std::ldexp(1.0, -value);
      empty += value == 0 ? 1 : 0;
    }
    constexpr double m = kRegisters;
    const double raw = 0.7213 / (1 + 1.079 / m) * m * m / sum;
    // Few states: the registers that are still empty tell more.
    return raw < 2.5 * m && empty > 0 ? m * std::log(m / empty) : raw;
  }

 private:
  static constexpr int kBits = 12;
  static constexpr std::size_t kRegisters = 1u << kBits;
  std::array<std::uint8_t, kRegisters> registers_{};
};

}  // namespace kvc::sim
