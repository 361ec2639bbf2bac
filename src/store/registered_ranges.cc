#include "store/registered_ranges.h"

#include <iterator>
#include <string>

namespace kvc {

Status RegisteredRanges::add(std::span<std::byte> memory) {
  if (memory.empty() || memory.data() == nullptr) {
    return invalid("register_memory: an empty range cannot be registered");
  }
  std::byte* const end = memory.data() + memory.size();
  const auto next = bytes_by_start_.lower_bound(memory.data());
  const bool overlaps_next = next != bytes_by_start_.end() && std::less<>()(next->first, end);
  bool overlaps_previous = false;
  if (next != bytes_by_start_.begin()) {
    const auto previous = std::prev(next);
    overlaps_previous = std::less<>()(memory.data(), previous->first + previous->second);
  }
  if (overlaps_next || overlaps_previous) {
    return invalid("register_memory: the range of " + std::to_string(memory.size()) +
                   " bytes overlaps memory that is registered; unregister that first");
  }
  bytes_by_start_.emplace(memory.data(), memory.size());
  return {};
}

Status RegisteredRanges::remove(std::span<std::byte> memory) {
  const auto found = bytes_by_start_.find(memory.data());
  if (found == bytes_by_start_.end() || found->second != memory.size()) {
    return invalid("unregister_memory: this range of " + std::to_string(memory.size()) +
                   " bytes is not registered; pass exactly what register_memory was given");
  }
  bytes_by_start_.erase(found);
  return {};
}

}  // namespace kvc
