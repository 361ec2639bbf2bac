#include "testing/seed.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace kvc::testlib {

std::uint64_t test_seed(std::uint64_t fallback) {
  std::uint64_t seed = fallback;
  if (const char* text = std::getenv("KVC_TEST_SEED"); text != nullptr && *text != '\0') {
    char* end = nullptr;
    seed = std::strtoull(text, &end, 0);
    if (*end != '\0') {
      ADD_FAILURE() << "KVC_TEST_SEED='" << text << "' is not a number";
    }
  }
  std::fprintf(stderr, "seed %llu (KVC_TEST_SEED replays it)\n",
               static_cast<unsigned long long>(seed));
  ::testing::Test::RecordProperty("seed", std::to_string(seed));
  return seed;
}

}  // namespace kvc::testlib
