// A short swarm in every test run. Long ones: make simulate.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "testing/seed.h"
#include "testing/sim/runner.h"

namespace kvc::sim {
namespace {

TEST(SimulationSwarm, ThousandsOfWorldsWithoutAViolation) {
  RunOptions options;
  options.first = testlib::test_seed(1);
  options.schedules = 3000;
  options.threads = 2;
  const RunTotals totals = run_seeds(options);
  for (const Failure& failure : totals.failures) {
    ADD_FAILURE() << failure.what << "\nreplay: kvc_simulate --replay " << failure.seed;
  }
  EXPECT_GE(totals.schedules, options.schedules);
  EXPECT_GT(totals.run_twice, 0u);
  EXPECT_GT(totals.states.estimate(), 10'000.0);
}

TEST(SimulationSwarm, OneSeedIsOneSchedule) {
  const std::uint64_t first = testlib::test_seed(1);
  for (std::uint64_t seed = first; seed < first + 50; ++seed) {
    const WorldResult once = run_seed(seed, nullptr, nullptr);
    const WorldResult twice = run_seed(seed, nullptr, nullptr);
    EXPECT_EQ(once.digest, twice.digest) << "seed " << seed;
    EXPECT_EQ(once.events, twice.events) << "seed " << seed;
    EXPECT_NE(once.digest, run_seed(seed + 1, nullptr, nullptr).digest) << "seed " << seed;
  }
}

TEST(CountingChoice, CountsThroughEverySequenceOnce) {
  CountingChoice choice;
  std::vector<std::string> seen;
  do {
    // As many further choices as the first one says.
    std::string sequence;
    const std::uint32_t more = choice.below(3);
    sequence += std::to_string(more);
    for (std::uint32_t i = 0; i < more; ++i) sequence += std::to_string(choice.below(2));
    seen.push_back(sequence);
  } while (choice.next());
  const std::vector<std::string> all{"0", "10", "11", "200", "201", "210", "211"};
  EXPECT_EQ(seen, all);
}

TEST(CountingChoice, ReplaysWhatItTold) {
  CountingChoice choice;
  EXPECT_EQ(choice.below(3), 0u);
  ASSERT_TRUE(choice.next());
  EXPECT_EQ(choice.below(3), 1u);
  ASSERT_TRUE(choice.next());
  EXPECT_EQ(choice.below(3), 2u);
  const std::vector<std::uint32_t> values = choice.values();
  CountingChoice again;
  again.replay(values);
  EXPECT_EQ(again.below(3), 2u);
}

TEST(StateCount, TellsHowManyDifferentStatesItSaw) {
  StateCount count;
  for (int round = 0; round < 2; ++round) {
    for (std::uint64_t state = 0; state < 100'000; ++state) count.add(state);
  }
  EXPECT_NEAR(count.estimate(), 100'000.0, 6'000.0);
  StateCount few;
  for (std::uint64_t state = 0; state < 100; ++state) few.add(state % 50);
  EXPECT_NEAR(few.estimate(), 50.0, 3.0);
}

}  // namespace
}  // namespace kvc::sim
