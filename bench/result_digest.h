// A running digest of what a benchmark computed: it keeps the work from being optimised away, and
// two runs that print different digests did not do the same work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/random.h"

namespace kvc {

/// Not cryptographic. A handful of instructions per word, so that it does not show in a timing.
class ResultDigest {
 public:
  /// Takes in whole words of 8 bytes; a shorter tail is padded with zeros.
  void add(std::string_view bytes) {
    while (!bytes.empty()) {
      std::uint64_t word = 0;
      const std::size_t count = bytes.size() < sizeof(word) ? bytes.size() : sizeof(word);
      std::memcpy(&word, bytes.data(), count);
      add(word);
      bytes.remove_prefix(count);
    }
  }

  void add(std::uint64_t word) { state_ = mix_bits(state_ ^ word); }

  /// 16 hexadecimal digits.
  std::string hex() const {
    std::byte bytes[sizeof(state_)];
    put_le(bytes, state_);
    return hex_encode(bytes);
  }

 private:
  std::uint64_t state_ = 0x9e3779b97f4a7c15u;
};

}  // namespace kvc
