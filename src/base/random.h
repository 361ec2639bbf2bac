// A small deterministic generator: the same seed gives the same numbers on every machine and with
// every standard library. For tests, simulations and fault plans; never for secrets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace kvc {

/// Spreads every bit of `value` over the result (the finaliser of SplitMix64).
constexpr std::uint64_t mix_bits(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

/// A number that depends on every character and on `seed`. Not a cryptographic hash.
constexpr std::uint64_t mix_text(std::uint64_t seed, std::string_view text) {
  std::uint64_t state = mix_bits(seed + 0x9e3779b97f4a7c15u * (text.size() + 1));
  for (const char c : text) state = mix_bits(state ^ static_cast<unsigned char>(c)) + seed;
  return mix_bits(state);
}

/// SplitMix64: 64 bits of state, period 2^64, no bad seeds. Not thread-safe; a copy goes on from
/// the same place on its own.
class Random {
 public:
  explicit constexpr Random(std::uint64_t seed) : state_(seed) {}

  constexpr std::uint64_t next() { return mix_bits(state_ += 0x9e3779b97f4a7c15u); }

  /// Uniform in [0, bound), bias below bound / 2^64. REQUIRES: bound > 0.
  constexpr std::uint64_t below(std::uint64_t bound) { return next() % bound; }

  /// True with a chance of `millionths` in a million.
  constexpr bool chance(std::uint32_t millionths) { return below(1'000'000) < millionths; }

  void fill(std::span<std::byte> out) {
    while (!out.empty()) {
      const std::uint64_t word = next();
      const std::size_t count = out.size() < sizeof(word) ? out.size() : sizeof(word);
      std::memcpy(out.data(), &word, count);
      out = out.subspan(count);
    }
  }

 private:
  std::uint64_t state_;
};

}  // namespace kvc
