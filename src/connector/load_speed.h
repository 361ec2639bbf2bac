// What past loads moved in a second, as a guess of what the next one will.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "kvc/clock.h"

namespace kvc {

/// Safe to use from any thread.
class LoadSpeed {
 public:
  /// Until a load was measured.
  static constexpr std::uint64_t kFirstGuess = std::uint64_t{1} << 30;
  /// Smaller loads say more about the time of a call than about the speed of transfers.
  static constexpr std::uint64_t kTellingBytes = std::uint64_t{16} << 20;
  /// Unless they took so long.
  static constexpr Duration kTellingTime = std::chrono::seconds(1);
  static constexpr std::uint64_t kSlowest = std::uint64_t{1} << 20;

  std::uint64_t bytes_per_second() const { return bytes_per_second_.load(); }

  /// What it would have taken is not known.
  void ran_out_of_time() { bytes_per_second_ = std::max(bytes_per_second_.load() / 2, kSlowest); }

  void moved(std::uint64_t bytes, Duration took) {
    if (bytes == 0 || took <= Duration::zero()) return;
    if (bytes < kTellingBytes && took < kTellingTime) return;
    const double seconds = std::chrono::duration<double>(took).count();
    const auto measured = static_cast<std::uint64_t>(static_cast<double>(bytes) / seconds);
    const bool is_first = !measured_.exchange(true);  // A guess weighs nothing.
    const std::uint64_t known = bytes_per_second_.load();
    bytes_per_second_ = std::max(is_first ? measured : known / 4 * 3 + measured / 4, kSlowest);
  }

 private:
  std::atomic<std::uint64_t> bytes_per_second_{kFirstGuess};
  std::atomic<bool> measured_ = false;
};

}  // namespace kvc
