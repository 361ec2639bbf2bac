// The seed of random tests: printed with every run, taken from KVC_TEST_SEED to replay one.
#pragma once

#include <cstdint>

#include "base/random.h"

namespace kvc::testlib {

/// KVC_TEST_SEED (decimal or 0x...) if it is set, else `fallback`. Recorded as a property of the
/// running test and shown when it fails. A value that is not a number fails the test.
std::uint64_t test_seed(std::uint64_t fallback);

}  // namespace kvc::testlib
