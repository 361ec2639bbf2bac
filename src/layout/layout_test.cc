#include "kvc/layout.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "base/random.h"
#include "testing/seed.h"

namespace kvc {
namespace {

std::byte* at(std::uintptr_t address) { return reinterpret_cast<std::byte*>(address); }

PageRegion region(std::uintptr_t base, std::size_t bytes, std::size_t stride, std::size_t slots) {
  return {at(base), bytes, stride, slots};
}

PagedLayout one_group(std::vector<PageRegion> regions) {
  PagedLayout layout;
  layout.groups.push_back({{0, 1, 2}, std::move(regions), 0});
  return layout;
}

void expect_invalid(const Status& status, const std::string& part) {
  EXPECT_EQ(status.code(), Code::kInvalid);
  EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
}

TEST(Layout, AcceptsRegionsSideBySideAndInterleaved) {
  EXPECT_TRUE(check_layout(one_group({region(0x1000, 64, 64, 10)})).ok());
  EXPECT_TRUE(
      check_layout(one_group({region(0x1000, 64, 64, 10), region(0x1280, 64, 64, 10)})).ok());
  EXPECT_TRUE(
      check_layout(one_group({region(0x1000, 64, 128, 10), region(0x1040, 64, 128, 10)})).ok());
  EXPECT_TRUE(check_layout(one_group({region(0x1000, 64, 256, 10), region(0x1040, 64, 256, 10),
                                      region(0x1080, 128, 256, 10)}))
                  .ok());
}

TEST(Layout, SizesOfAPageAreSums) {
  const PagedLayout layout = one_group({region(0x1000, 64, 128, 10), region(0x1040, 32, 128, 10)});
  EXPECT_EQ(page_bytes(layout.groups[0]), 96u);
  EXPECT_EQ(page_slots(layout.groups[0]), 10u);
  EXPECT_EQ(page_bytes(PageGroup()), 0u);
  EXPECT_EQ(page_slots(PageGroup()), 0u);
}

TEST(Layout, NamesEveryFieldAtFault) {
  expect_invalid(check_layout({}), "no group");
  expect_invalid(check_layout(one_group({})), "group 0 has no region");
  expect_invalid(check_layout(one_group({region(0, 64, 64, 1)})), "region 0: base is null");
  expect_invalid(check_layout(one_group({region(4096, 0, 64, 1)})), "region 0: bytes is 0");
  expect_invalid(check_layout(one_group({region(4096, 64, 64, 0)})), "region 0: slots is 0");
  expect_invalid(check_layout(one_group({region(4096, 64, 63, 2)})), "stride 63");
  expect_invalid(check_layout(one_group({region(4096, 8, 8, 4), region(8192, 8, 8, 5)})),
                 "region 1: 5 slots, but region 0 has 4");
  PagedLayout layout = one_group({region(4096, 8, 8, 4)});
  layout.groups.push_back({{3, 3}, {region(8192, 8, 8, 4)}, 0});
  expect_invalid(check_layout(layout), "group 1: layers are not ascending at 3");
}

TEST(Layout, RefusesWhatExceedsTheAddressSpace) {
  constexpr std::size_t kMax = std::numeric_limits<std::size_t>::max();
  const std::string part = "exceed the address space";
  expect_invalid(check_layout(one_group({region(4096, 8, kMax, 3)})), part);
  expect_invalid(check_layout(one_group({region(4096, 8, 16, kMax)})), part);
  expect_invalid(check_layout(one_group({region(kMax - 6, 8, 8, 1)})), part);
  expect_invalid(check_layout(one_group({region(4096, kMax, kMax, 1)})), part);
  EXPECT_TRUE(check_layout(one_group({region(kMax - 7, 8, 8, 1)})).ok());
}

TEST(Layout, RefusesOverlapAcrossGroupsToo) {
  expect_invalid(check_layout(one_group({region(0x1000, 64, 64, 2), region(0x1040, 64, 64, 2)})),
                 "group 0, region 0 and group 0, region 1 overlap");
  PagedLayout layout = one_group({region(0x1000, 64, 64, 2)});
  layout.groups.push_back({{3}, {region(0x107f, 64, 64, 2)}, 0});
  expect_invalid(check_layout(layout), "group 0, region 0 and group 1, region 0 overlap");
  layout.groups[1].regions[0].base = at(0x1080);
  EXPECT_TRUE(check_layout(layout).ok());
}

bool overlap_by_marking(const PageRegion& a, const PageRegion& b) {
  std::vector<bool> used(1024);
  for (const PageRegion& region : {a, b}) {
    for (std::size_t slot = 0; slot < region.slots; ++slot) {
      for (std::size_t i = 0; i < region.bytes; ++i) {
        const std::size_t place =
            reinterpret_cast<std::uintptr_t>(region.base) - 4096 + slot * region.stride + i;
        if (used[place]) return true;
        used[place] = true;
      }
    }
  }
  return false;
}

TEST(Layout, OverlapAgreesWithMarkingEveryByte) {
  Random random(testlib::test_seed(21));
  int overlapping = 0;
  for (int round = 0; round < 20000; ++round) {
    const std::size_t slots = 1 + random.below(6);
    const auto draw = [&](std::size_t stride) {
      return region(4096 + random.below(100), 1 + random.below(stride), stride, slots);
    };
    const std::size_t stride = 1 + random.below(30);
    const PageRegion a = draw(stride);
    const PageRegion b = draw(random.below(2) == 0 ? stride : 1 + random.below(30));
    const bool expected = overlap_by_marking(a, b);
    EXPECT_EQ(!check_layout(one_group({a, b})).ok(), expected)
        << a.base << " " << a.bytes << " " << a.stride << " and " << b.base << " " << b.bytes << " "
        << b.stride << " slots " << slots;
    overlapping += expected ? 1 : 0;
  }
  EXPECT_GT(overlapping, 2000);
  EXPECT_LT(overlapping, 18000);
}

DensePool pool_of(std::vector<std::int64_t> shape) { return {at(1 << 20), std::move(shape), 2, 8}; }

TEST(DensePool, IsOneGroupWithOneRegion) {
  const Result<DenseLayout> dense = describe_dense_pool(pool_of({10, 3, 2, 64}));
  ASSERT_TRUE(dense.ok()) << dense.status().to_string();
  EXPECT_EQ(dense->geometry.layers, 3u);
  EXPECT_EQ(dense->geometry.kv_factor, 2u);
  EXPECT_EQ(dense->geometry.bytes_per_page, 3u * 2 * 64 * 2);
  EXPECT_EQ(dense->geometry.element_bytes, 2u);
  ASSERT_EQ(dense->layout.groups.size(), 1u);
  const PageGroup& group = dense->layout.groups[0];
  EXPECT_EQ(group.layers, (std::vector<std::uint32_t>{0, 1, 2}));
  ASSERT_EQ(group.regions.size(), 1u);
  EXPECT_EQ(group.regions[0].base, at(1 << 20));
  EXPECT_EQ(group.regions[0].bytes, 768u);
  EXPECT_EQ(group.regions[0].stride, 768u);
  EXPECT_EQ(group.regions[0].slots, 10u);
}

TEST(DensePool, ALatentHasOneFactor) {
  const Result<DenseLayout> dense = describe_dense_pool(pool_of({1, 1, 1, 8}));
  ASSERT_TRUE(dense.ok());
  EXPECT_EQ(dense->geometry.kv_factor, 1u);
  EXPECT_EQ(dense->geometry.bytes_per_page, 16u);
}

TEST(DensePool, NamesTheValueAndWhatWouldFit) {
  const auto refusal = [](const DensePool& pool) { return describe_dense_pool(pool).status(); };
  expect_invalid(refusal(pool_of({10, 3, 2})), "[10, 3, 2] has 3 dimensions");
  expect_invalid(refusal(pool_of({})), "shape [] has 0 dimensions");
  expect_invalid(refusal(pool_of({2, 10, 3, 8, 64})), "5 dimensions");
  expect_invalid(refusal(pool_of({10, 3, 0, 64})), "every dimension must be positive");
  expect_invalid(refusal(pool_of({-1, 3, 2, 64})), "every dimension must be positive");
  expect_invalid(refusal(pool_of({2, 10, 3, 64})), "dimension 2 is 3, must be 2");
  expect_invalid(refusal(pool_of({10, 3, 2, 63})), "63 elements per block are not a multiple of 8");
  DensePool pool = pool_of({10, 3, 2, 64});
  pool.base = nullptr;
  expect_invalid(refusal(pool), "address is null");
  pool = pool_of({10, 3, 2, 64});
  pool.element_bytes = 0;
  expect_invalid(refusal(pool), "bytes per element is 0");
  pool = pool_of({10, 3, 2, 64});
  pool.tokens_per_block = 0;
  expect_invalid(refusal(pool), "tokens per block is 0");
}

TEST(DensePool, RefusesSizesBeyondTheAddressSpace) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  const auto refusal = [](std::vector<std::int64_t> shape) {
    return describe_dense_pool(pool_of(std::move(shape))).status().code();
  };
  EXPECT_EQ(refusal({kMax, 1, 2, 8}), Code::kInvalid);
  EXPECT_EQ(refusal({1, kMax, 2, 8}), Code::kInvalid);
  EXPECT_EQ(refusal({1, 1ll << 31, 2, 8}), Code::kInvalid);
  EXPECT_EQ(refusal({1, 3, 2, kMax - 7}), Code::kInvalid);
}

TEST(Layout, ALayerIsItsPartOfThePageWhereverRegionsBegin) {
  // A page of 3 layers of 8 bytes, cut into regions of 4, 12 and 8 bytes.
  std::vector<std::byte> memory(600);
  PageGroup group;
  group.layers = {5, 6, 9};
  group.layer_bytes = 8;
  group.regions = {
      {memory.data(), 4, 10, 7}, {memory.data() + 100, 12, 12, 7}, {memory.data() + 300, 8, 16, 7}};
  ASSERT_TRUE(check_layout({.groups = {group}}).ok());
  std::vector<const std::byte*> bytes;
  for (std::size_t index = 0; index < group.layers.size(); ++index) {
    const PageGroup layer = layer_of(group, index);
    EXPECT_EQ(layer.layers, std::vector<std::uint32_t>{group.layers[index]});
    EXPECT_EQ(page_bytes(layer), group.layer_bytes);
    EXPECT_EQ(page_slots(layer), 7u);
    for (const PageRegion& region : layer.regions) {
      for (std::size_t i = 0; i < region.bytes; ++i) {
        bytes.push_back(region.base + 3 * region.stride + i);
      }
    }
  }
  std::vector<const std::byte*> page;
  for (const PageRegion& region : group.regions) {
    for (std::size_t i = 0; i < region.bytes; ++i) {
      page.push_back(region.base + 3 * region.stride + i);
    }
  }
  EXPECT_EQ(bytes, page) << "the layers one after another are the page";
}

TEST(Layout, LayersThatDoNotMakeThePageAreRefused) {
  std::vector<std::byte> memory(100);
  for (const std::size_t layer_bytes : {std::size_t{7}, std::size_t{9}, ~std::size_t{0}}) {
    PageGroup group;
    group.layers = {0, 1, 2};
    group.layer_bytes = layer_bytes;
    group.regions = {{memory.data(), 24, 24, 2}};
    EXPECT_EQ(check_layout({.groups = {group}}).code(), Code::kInvalid);
  }
}

TEST(DensePool, TellsItsLayers) {
  std::vector<std::byte> memory(1000);
  const Result<DenseLayout> dense = describe_dense_pool({memory.data(), {2, 3, 2, 8}, 2, 4});
  ASSERT_TRUE(dense.ok());
  EXPECT_EQ(dense->layout.groups[0].layer_bytes, 32u);
}

}  // namespace
}  // namespace kvc
