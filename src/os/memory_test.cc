#include "os/memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

namespace kvc {
namespace {

TEST(MappedMemory, IsAlignedZeroedAndWritable) {
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{4096}, std::size_t{5} << 20}) {
    Result<MappedMemory> memory = MappedMemory::map(bytes);
    ASSERT_TRUE(memory.ok()) << memory.status().to_string();
    const std::span<std::byte> span = memory->bytes();
    EXPECT_GE(span.size(), bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(span.data()) % 4096, 0u);
    EXPECT_TRUE(std::ranges::all_of(span, [](std::byte b) { return b == std::byte{0}; }));
    std::ranges::fill(span, std::byte{1});
  }
}

TEST(MappedMemory, RefusesWhatTheSystemCannotGive) {
  EXPECT_EQ(MappedMemory::map(0).status().code(), Code::kInvalid);
  EXPECT_EQ(MappedMemory::map(std::numeric_limits<std::size_t>::max()).status().code(),
            Code::kExhausted);
  EXPECT_EQ(MappedMemory::map(std::numeric_limits<std::size_t>::max() / 2).status().code(),
            Code::kExhausted);
}

TEST(MappedMemory, MovesAndSurvivesAbandonment) {
  MappedMemory first = std::move(MappedMemory::map(4096)).value();
  MappedMemory second = std::move(first);
  const std::span<std::byte> kept = second.bytes();
  second.abandon();
  EXPECT_TRUE(second.bytes().empty());
  second = std::move(MappedMemory::map(4096)).value();
  kept[0] = std::byte{7};  // Still mapped.
  EXPECT_EQ(kept[0], std::byte{7});
}

}  // namespace
}  // namespace kvc
