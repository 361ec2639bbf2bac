#include "store/registered_ranges.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvc {
namespace {

TEST(RegisteredRanges, RefusesOverlapsAndNamesTheRemedy) {
  std::vector<std::byte> memory(100);
  const std::span<std::byte> whole(memory);
  RegisteredRanges ranges;
  EXPECT_TRUE(ranges.add(whole.subspan(20, 20)).ok());
  EXPECT_TRUE(ranges.add(whole.subspan(40, 20)).ok()) << "neighbours do not overlap";
  EXPECT_TRUE(ranges.add(whole.subspan(0, 20)).ok());
  for (const auto& [offset, count] : std::vector<std::pair<std::size_t, std::size_t>>{
           {20, 20}, {30, 5}, {39, 2}, {59, 10}, {0, 100}}) {
    const Status status = ranges.add(whole.subspan(offset, count));
    EXPECT_EQ(status.code(), Code::kInvalid) << offset;
    EXPECT_NE(status.message().find("unregister"), std::string::npos);
  }
  EXPECT_EQ(ranges.add({}).code(), Code::kInvalid);
  EXPECT_EQ(ranges.count(), 3u);
}

TEST(RegisteredRanges, RemovesOnlyWhatWasAdded) {
  std::vector<std::byte> memory(100);
  const std::span<std::byte> whole(memory);
  RegisteredRanges ranges;
  ASSERT_TRUE(ranges.add(whole).ok());
  EXPECT_EQ(ranges.remove(whole.subspan(0, 50)).code(), Code::kInvalid);
  EXPECT_EQ(ranges.remove(whole.subspan(50)).code(), Code::kInvalid);
  EXPECT_EQ(ranges.count(), 1u);
  EXPECT_EQ(ranges.first().data(), whole.data());
  EXPECT_TRUE(ranges.remove(whole).ok());
  EXPECT_EQ(ranges.count(), 0u);
  EXPECT_EQ(ranges.remove(whole).code(), Code::kInvalid);
}

}  // namespace
}  // namespace kvc
