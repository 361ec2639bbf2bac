// Everything that happens in a simulated world, as a digest: two runs of one seed must agree on it.
// On request also as text, for reading a failure.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string_view>

#include "base/random.h"

namespace kvc::sim {

using Tick = std::uint64_t;  // A simulated microsecond.

class Journal {
 public:
  /// Null: no text.
  explicit Journal(std::FILE* text) : text_(text) {}

  /// `what` is a literal; the numbers are whatever tells this event from another one.
  void note(Tick now, std::string_view what, std::uint64_t a = 0, std::uint64_t b = 0,
            std::uint64_t c = 0) {
    ++events_;
    digest_ = mix_bits(digest_ ^ mix_text(now, what.substr(0, 12)));
    digest_ = mix_bits(digest_ + a * 0x9e3779b97f4a7c15u);
    digest_ = mix_bits(digest_ + b * 0xc2b2ae3d27d4eb4fu + c);
    if (text_ != nullptr) print(now, what, a, b, c);
  }

  std::uint64_t digest() const { return digest_; }
  std::uint64_t events() const { return events_; }

 private:
  void print(Tick now, std::string_view what, std::uint64_t a, std::uint64_t b,
             std::uint64_t c) const {
    std::fprintf(text_, "%8llu  %-28.*s %llu %llu %llu\n", static_cast<unsigned long long>(now),
                 static_cast<int>(what.size()), what.data(), static_cast<unsigned long long>(a),
                 static_cast<unsigned long long>(b), static_cast<unsigned long long>(c));
  }

  std::FILE* text_;
  std::uint64_t digest_ = 0;
  std::uint64_t events_ = 0;
};

}  // namespace kvc::sim
