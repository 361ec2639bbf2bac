// Memory from the system by the page: aligned for devices, given back as a whole.
#pragma once

#include <cstddef>
#include <span>

#include "kvc/result.h"

namespace kvc {

/// Zero-filled private memory of whole pages. Movable, not thread-safe.
class MappedMemory {
 public:
  /// Rounds `bytes` up to whole pages of the system. Physical memory is taken at first use.
  /// kInvalid for 0 bytes, kExhausted if the system has not got it.
  static Result<MappedMemory> map(std::size_t bytes);

  MappedMemory() = default;
  MappedMemory(MappedMemory&& other) noexcept;
  MappedMemory& operator=(MappedMemory&& other) noexcept;
  ~MappedMemory();

  std::span<std::byte> bytes() const { return bytes_; }

  /// Leaves the memory mapped for the life of the process, since somebody may still use it.
  void abandon() { bytes_ = {}; }

 private:
  explicit MappedMemory(std::span<std::byte> bytes) : bytes_(bytes) {}
  void unmap();

  std::span<std::byte> bytes_;
};

}  // namespace kvc
