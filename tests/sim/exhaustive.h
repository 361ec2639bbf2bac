// Small worlds that are run once for each way in which their choices can fall.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "testing/sim/choice.h"

namespace kvc::sim {

/// `Run(choice, world)` lives one life; its run() says what was wrong, "" if nothing. Ends with the
/// first life that is wrong. How many there were; `count` sees each after its end.
template <typename Run, typename World, typename Count>
std::uint64_t try_every_choice(const World& world, Count count) {
  std::uint64_t runs = 0;
  CountingChoice choice;
  do {
    Run run(choice, world);
    const std::string wrong = run.run();
    ++runs;
    count(run);
    if (!wrong.empty()) {
      std::string path;
      for (const std::uint32_t value : choice.values()) path += std::to_string(value) + " ";
      ADD_FAILURE() << wrong << "\nchoices: " << path;
      return runs;
    }
  } while (choice.next());
  ::testing::Test::RecordProperty("runs", std::to_string(runs));
  return runs;
}

}  // namespace kvc::sim
