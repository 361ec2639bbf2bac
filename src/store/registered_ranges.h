// The memory that was made known to a store: non-empty ranges that do not overlap.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <span>

#include "kvc/status.h"

namespace kvc {

/// Single-threaded.
class RegisteredRanges {
 public:
  /// kInvalid for an empty range or one that overlaps a known one; nothing changes then.
  Status add(std::span<std::byte> memory);
  /// kInvalid unless exactly this range is known.
  Status remove(std::span<std::byte> memory);

  std::size_t count() const { return bytes_by_start_.size(); }
  /// Any one of them. REQUIRES: count() > 0.
  std::span<std::byte> first() const {
    return {bytes_by_start_.begin()->first, bytes_by_start_.begin()->second};
  }

 private:
  std::map<std::byte*, std::size_t, std::less<>> bytes_by_start_;
};

}  // namespace kvc
