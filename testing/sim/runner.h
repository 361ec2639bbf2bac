// Runs worlds by seed, on all cores, and adds up what they tried.
#pragma once

#include <array>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "testing/sim/state_count.h"
#include "testing/sim/world.h"

namespace kvc::sim {

/// A seed that broke something.
struct Failure {
  std::uint64_t seed = 0;
  std::string what;
};

struct RunTotals {
  std::uint64_t seeds = 0;      ///< Worlds that were run, without those run twice.
  std::uint64_t schedules = 0;  ///< Of these, those in which a fault fired and a block was stored.
  std::uint64_t run_twice = 0;
  std::uint64_t events = 0;
  std::uint64_t committed = 0;
  std::uint64_t loaded = 0;
  std::array<std::uint64_t, kFaults> by_fault{};
  std::array<std::uint64_t, kMarks> marks{};
  StateCount states;
  std::vector<Failure> failures;  ///< By seed.

  void add(const WorldResult& result);
  void merge(const RunTotals& other);
};

/// The world of one seed. `text`: as for World; the options come first.
WorldResult run_seed(std::uint64_t seed, StateCount* states, std::FILE* text,
                     Rules rules = Rules::kAll);

struct RunOptions {
  std::uint64_t first = 1;
  /// Schedules that count; seeds are run until there are so many.
  std::uint64_t schedules = 1000;
  std::uint32_t threads = 1;
  /// One seed in so many is run twice, and must give the same digest.
  std::uint64_t twice_every = 64;
  std::uint64_t failures_max = 1;  ///< Ends early after so many.
  Rules rules = Rules::kAll;
};

/// Seeds from `first` on. Returns when there are enough schedules, or failures.
RunTotals run_seeds(const RunOptions& options);

/// What was tried, for people.
void print_totals(const RunTotals& totals, std::FILE* out);

}  // namespace kvc::sim
