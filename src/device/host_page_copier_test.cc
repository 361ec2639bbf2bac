#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/random.h"
#include "kvc/device.h"

namespace kvc {
namespace {

/// Pages of one group laid out in memory that is larger than they are, to watch what lies between.
struct Pool {
  std::vector<std::byte> memory;
  PageGroup group;

  bool belongs_to_page(std::size_t place, std::size_t slot) const {
    for (const PageRegion& region : group.regions) {
      const std::size_t first =
          static_cast<std::size_t>(region.base - memory.data()) + slot * region.stride;
      if (place >= first && place < first + region.bytes) return true;
    }
    return false;
  }
};

struct Shape {
  const char* name;
  std::size_t slots;
  std::size_t memory_bytes;
  /// Offset, bytes, stride of each region.
  std::vector<std::array<std::size_t, 3>> regions;
};

Pool make_pool(const Shape& shape) {
  Pool pool;
  pool.memory.resize(shape.memory_bytes);
  Random(5).fill(pool.memory);
  for (const auto& [offset, bytes, stride] : shape.regions) {
    pool.group.regions.push_back({pool.memory.data() + offset, bytes, stride, shape.slots});
  }
  return pool;
}

std::vector<Shape> shapes() {
  return {
      {"dense [slots, layers, 2, elements]", 7, 672, {{0, 96, 96}}},
      {"keys and values apart [2, slots, ...]", 5, 320, {{0, 32, 32}, {160, 32, 32}}},
      {"keys and values side by side", 5, 320, {{0, 32, 64}, {32, 32, 64}}},
      {"one region per layer, odd sizes", 3, 400, {{1, 7, 11}, {40, 13, 17}, {100, 1, 3}}},
      {"padded pages with guard bytes", 4, 336, {{8, 64, 80}}},
      {"values stored before keys", 6, 288, {{24, 24, 48}, {0, 24, 48}}},
      {"one page", 1, 100, {{50, 20, 20}}},
  };
}

TEST(HostPageCopier, APageGoesOutAndInUnalteredAndNothingElseIsTouched) {
  const auto copier = make_host_page_copier();
  for (const Shape& shape : shapes()) {
    Pool pool = make_pool(shape);
    const std::vector<std::byte> before = pool.memory;
    for (std::size_t slot = 0; slot < shape.slots; ++slot) {
      const auto index = static_cast<SlotIndex>(slot);
      std::vector<std::byte> page(page_bytes(pool.group));
      ASSERT_TRUE(copier->copy_out(pool.group, index, page, 0).ok()) << shape.name;
      EXPECT_EQ(pool.memory, before) << shape.name;

      std::vector<std::byte> other(page.size());
      Random(slot + 100).fill(other);
      ASSERT_TRUE(copier->copy_in(pool.group, index, other, 0).ok()) << shape.name;
      for (std::size_t place = 0; place < pool.memory.size(); ++place) {
        if (!pool.belongs_to_page(place, slot)) {
          ASSERT_EQ(pool.memory[place], before[place]) << shape.name << " at " << place;
        }
      }
      std::vector<std::byte> back(page.size());
      ASSERT_TRUE(copier->copy_out(pool.group, index, back, 0).ok());
      EXPECT_EQ(back, other) << shape.name;

      ASSERT_TRUE(copier->copy_in(pool.group, index, page, 0).ok());
      EXPECT_EQ(pool.memory, before) << shape.name;
    }
  }
}

TEST(HostPageCopier, RegionsStandInTheirOrder) {
  Pool pool = make_pool({"values first", 2, 96, {{24, 24, 48}, {0, 24, 48}}});
  std::vector<std::byte> page(48);
  ASSERT_TRUE(make_host_page_copier()->copy_out(pool.group, 1, page, 0).ok());
  EXPECT_TRUE(std::equal(page.begin(), page.begin() + 24, pool.memory.begin() + 72));
  EXPECT_TRUE(std::equal(page.begin() + 24, page.end(), pool.memory.begin() + 48));
}

TEST(HostPageCopier, RefusesPagesAndSizesThatDoNotExistAndTouchesNothing) {
  const auto copier = make_host_page_copier();
  Pool pool = make_pool({"dense", 4, 128, {{0, 32, 32}}});
  const std::vector<std::byte> before = pool.memory;
  std::vector<std::byte> page(32, std::byte{1});
  for (const SlotIndex slot : {SlotIndex{-1}, SlotIndex{4}, SlotIndex{1} << 62}) {
    EXPECT_EQ(copier->copy_in(pool.group, slot, page, 0).code(), Code::kInvalid);
    EXPECT_EQ(copier->copy_out(pool.group, slot, page, 0).code(), Code::kInvalid);
  }
  for (const std::size_t bytes : {0u, 31u, 33u}) {
    page.resize(bytes);
    EXPECT_EQ(copier->copy_in(pool.group, 0, page, 0).code(), Code::kInvalid);
    EXPECT_EQ(copier->copy_out(pool.group, 0, page, 0).code(), Code::kInvalid);
  }
  EXPECT_EQ(pool.memory, before);
}

TEST(HostPageCopier, IsCompleteWithoutAFlushAndFlushSucceeds) {
  EXPECT_TRUE(make_host_page_copier()->flush(0).ok());
  EXPECT_TRUE(make_host_page_copier()->flush(1234).ok());
}

}  // namespace
}  // namespace kvc
