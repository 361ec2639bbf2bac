#include "replication/heat_table.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "base/bytes.h"
#include "base/random.h"
#include "testing/seed.h"

namespace kvc {
namespace {

using std::chrono::seconds;

BlockHash block(std::uint64_t number) {
  BlockHash hash{};
  put_le(hash.bytes.data(), mix_bits(number + 1));
  return hash;
}

Instant at(double s) { return Instant(Duration(static_cast<Duration::rep>(s * 1e9))); }

TEST(HeatTable, HeatHalvesInEachHalfLife) {
  HeatTable table(seconds(10), 100);
  const BlockHeat& heat = table.touch(block(1), at(0));
  EXPECT_DOUBLE_EQ(table.heat_at(heat, at(0)), 1);
  EXPECT_DOUBLE_EQ(table.heat_at(heat, at(10)), 0.5);
  EXPECT_DOUBLE_EQ(table.heat_at(heat, at(30)), 0.125);
  EXPECT_NEAR(table.heat_at(heat, at(5)), std::sqrt(0.5), 1e-12);
  EXPECT_DOUBLE_EQ(table.heat_at(table.touch(block(1), at(10)), at(10)), 1.5);
  EXPECT_DOUBLE_EQ(table.heat_at(*table.find(block(1)), at(20)), 0.75);
}

TEST(HeatTable, LongAgoIsColdAndTimeDoesNotRunBack) {
  HeatTable table(seconds(10), 100);
  for (int i = 0; i < 1000; ++i) table.touch(block(1), at(100));
  EXPECT_DOUBLE_EQ(table.heat_at(*table.find(block(1)), at(50)), 1000);
  EXPECT_DOUBLE_EQ(table.heat_at(table.touch(block(1), at(90)), at(100)), 1001);
  EXPECT_EQ(table.heat_at(*table.find(block(1)), Instant::max()), 0);
}

TEST(HeatTable, UnknownBlocksHaveNone) {
  HeatTable table(seconds(10), 100);
  EXPECT_EQ(table.find(block(1)), nullptr);
}

TEST(HeatTable, PromptsThatNobodyRepeatsDoNotPushOutThoseThatAre) {
  HeatTable table(seconds(1000), 100);
  for (int round = 0; round < 2; ++round) {
    for (std::uint64_t b = 0; b < 50; ++b) table.touch(block(b), at(round));
  }
  for (std::uint64_t b = 1000; b < 100'000; ++b) table.touch(block(b), at(2));
  EXPECT_EQ(table.size(), 100u);
  for (std::uint64_t b = 0; b < 50; ++b) EXPECT_NE(table.find(block(b)), nullptr) << b;
}

TEST(HeatTable, RepeatedBlocksLeaveRoomForNewOnes) {
  HeatTable table(seconds(1000), 100);
  for (std::uint64_t b = 0; b < 1000; ++b) {
    table.touch(block(b), at(0));
    table.touch(block(b), at(0));
  }
  EXPECT_EQ(table.size(), 100u);
  EXPECT_NE(table.find(block(999)), nullptr);
  EXPECT_EQ(table.find(block(0)), nullptr) << "the oldest goes";
  table.touch(block(5000), at(1));
  EXPECT_DOUBLE_EQ(table.heat_at(table.touch(block(5000), at(1)), at(1)), 2) << "a newcomer stays";
}

TEST(HeatTable, SmallestTablesHoldWhatWasTouchedLast) {
  for (std::size_t limit = 1; limit <= 5; ++limit) {
    HeatTable table(seconds(1), limit);
    for (std::uint64_t b = 0; b < 40; ++b) {
      const BlockHash touched = block(b * 7 % 11);
      EXPECT_GE(table.touch(touched, at(static_cast<double>(b))).heat, 1);
      EXPECT_NE(table.find(touched), nullptr) << limit;
      EXPECT_LE(table.size(), limit);
    }
  }
}

TEST(HeatTable, AgreesWithAPlainSumWhileNothingIsDropped) {
  Random random(testlib::test_seed(7));
  HeatTable table(seconds(20), 64);
  std::map<std::uint64_t, std::vector<double>> touches;
  double now = 0;
  for (int i = 0; i < 5000; ++i) {
    now += static_cast<double>(random.below(1000)) / 1000;
    const std::uint64_t b = random.below(48);
    touches[b].push_back(now);
    table.touch(block(b), at(now));
    const std::uint64_t asked = random.below(48);
    if (!touches.contains(asked)) continue;
    double sum = 0;
    for (const double then : touches[asked]) sum += std::exp2(-(now - then) / 20);
    ASSERT_NEAR(table.heat_at(*table.find(block(asked)), at(now)), sum, 1e-6 * (1 + sum));
  }
  EXPECT_EQ(table.size(), 48u);
}

}  // namespace
}  // namespace kvc
