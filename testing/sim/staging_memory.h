// Staging pages of one simulated process.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "connector/staging.h"

namespace kvc::sim {

class SimMemory final : public StagingMemory {
 public:
  explicit SimMemory(std::size_t bytes) : bytes_(bytes, std::byte{0xdb}) {}
  std::span<std::byte> bytes() const override { return bytes_; }
  void abandon() override {}

 private:
  mutable std::vector<std::byte> bytes_;
};

inline std::shared_ptr<StagingPool> make_pool(std::size_t pages, std::size_t page_bytes,
                                              std::size_t save_limit) {
  auto area = std::make_shared<StagingArea>(std::make_unique<SimMemory>(pages * page_bytes));
  const std::span<std::byte> memory = area->bytes();
  return std::make_shared<StagingPool>(std::move(area), memory, page_bytes, save_limit);
}

}  // namespace kvc::sim
