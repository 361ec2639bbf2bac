#include "os/random.h"

#include <gtest/gtest.h>

#include <array>
#include <set>

namespace kvc {
namespace {

TEST(SystemRandom, FillsEveryByteAndNeverTwiceTheSame) {
  std::set<std::array<std::byte, 32>> seen;
  std::array<bool, 32> was_set{};
  for (int i = 0; i < 64; ++i) {
    std::array<std::byte, 32> bytes{};
    ASSERT_TRUE(fill_with_secret(bytes));
    EXPECT_TRUE(seen.insert(bytes).second);
    for (std::size_t at = 0; at < bytes.size(); ++at) {
      was_set[at] = was_set[at] || bytes[at] != std::byte{0};
    }
  }
  for (const bool set : was_set) EXPECT_TRUE(set);
  EXPECT_TRUE(fill_with_secret({}));
}

}  // namespace
}  // namespace kvc
