// What tests of the host tier share: a tier in plain memory, and a driver that fetches by hand.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "connector/host_tier.h"

namespace kvc {

inline constexpr Instant kLate{std::chrono::seconds(10)};

class PlainMemory final : public StagingMemory {
 public:
  explicit PlainMemory(std::size_t bytes) : memory_(bytes) {}
  std::span<std::byte> bytes() const override { return memory_; }
  void abandon() override {}

 private:
  mutable std::vector<std::byte> memory_;
};

inline BlockHash block(std::uint64_t number) {
  BlockHash hash;
  Random(number).fill(hash.bytes);
  return hash;
}

inline std::vector<BlockHash> blocks(std::vector<std::uint64_t> numbers) {
  std::vector<BlockHash> all;
  for (const std::uint64_t number : numbers) all.push_back(block(number));
  return all;
}

inline std::string text(const StageProgress& progress) {
  static const char* const kEnds[] = {"all", "missing", "rejected", "no room", "unavailable"};
  std::string said = std::to_string(progress.hold) + ":" + std::to_string(progress.staged);
  return progress.done ? said + " " + kEnds[static_cast<std::size_t>(progress.end)] : said;
}

/// A tier, and a driver that does what the test says.
struct TierWorld {
  static constexpr std::size_t kPageBytes = 64;

  explicit TierWorld(std::size_t pages, HostTierOptions options = {})
      : memory(std::make_shared<StagingArea>(std::make_unique<PlainMemory>(pages * kPageBytes))),
        pool(std::make_shared<StagingPool>(memory, memory->bytes(), kPageBytes, pages)),
        tier(std::make_unique<HostTier>(pool, options)) {}

  void stage(HoldId hold, std::vector<std::uint64_t> numbers, Instant give_up = kLate) {
    tier->stage({.hold = hold, .blocks = blocks(std::move(numbers)), .fetch_budget = {}}, give_up);
  }
  void release(HoldId hold, std::uint32_t from = 0) { tier->release({hold, from}); }

  /// What the tier asks for now.
  std::vector<BlockHash> begin(std::size_t max = 100, Instant now = {}) {
    return take(tier->begin_fetches(max, now));
  }
  std::vector<BlockHash> begin_loose(std::size_t max = 100, Instant now = {}) {
    return take(tier->begin_loose_fetches(max, now));
  }
  std::vector<BlockHash> take(std::vector<HostTier::Fetch> fetches) {
    std::vector<BlockHash> begun;
    for (HostTier::Fetch& fetch : fetches) {
      begun.push_back(fetch.block);
      EXPECT_TRUE(in_flight.emplace(fetch.block, std::move(fetch.page)).second)
          << "twice at a time";
    }
    return begun;
  }
  void end(std::uint64_t number, FetchEnd how = FetchEnd::kVerified) {
    auto flight = in_flight.extract(block(number));
    ASSERT_FALSE(flight.empty());
    if (how == FetchEnd::kVerified) fill(*flight.mapped(), block(number));
    tier->fetched(block(number), how, std::move(flight.mapped()));
  }
  void fetch_all() {
    for (std::vector<BlockHash> begun = begin(); !begun.empty(); begun = begin()) {
      for (const BlockHash& each : begun) {
        auto flight = in_flight.extract(each);
        fill(*flight.mapped(), each);
        tier->fetched(each, FetchEnd::kVerified, std::move(flight.mapped()));
      }
    }
  }
  static void fill(StagingPage& page, const BlockHash& with) {
    std::ranges::copy(with.bytes, page.bytes().begin());
  }
  static bool holds(const StagingLease& page, const BlockHash& with) {
    return page != nullptr && std::ranges::equal(page->bytes().first(32), with.bytes);
  }
  void put(std::uint64_t number) {
    StagingLease page = pool->borrow(StagingPool::Use::kLoad);
    ASSERT_NE(page, nullptr);
    fill(*page, block(number));
    tier->put(block(number), std::move(page));
  }
  bool has(std::uint64_t number) const { return tier->contains(block(number)); }

  /// What the leader is told, sorted.
  std::string reports() {
    std::vector<std::string> said;
    for (const StageProgress& progress : tier->take_reports()) said.push_back(text(progress));
    std::ranges::sort(said);
    std::string all;
    for (const std::string& each : said) all += (all.empty() ? "" : ", ") + each;
    return all;
  }

  std::shared_ptr<StagingArea> memory;
  std::shared_ptr<StagingPool> pool;
  std::unique_ptr<HostTier> tier;
  std::map<BlockHash, StagingLease> in_flight;
};

}  // namespace kvc
