// Whole lives of requests, each with one allocation that fails, or with none that succeeds from
// some point on: every byte is right or told to be missing, nothing stays held, and whoever comes
// after it is served as if nothing had been.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "tests/out_of_memory/world.h"

namespace kvc::testlib {
namespace {

constexpr std::size_t kStored = 5;
constexpr std::size_t kBlocks = 8;
constexpr std::size_t kOthers = 4;

std::vector<Token> prompt(std::size_t blocks) { return make_tokens(blocks * kBlockTokens + 1); }
std::vector<Token> other_prompt() { return make_tokens(kOthers * kBlockTokens + 1, 1000); }
std::vector<Token> one_more_prompt() { return make_tokens(kOthers * kBlockTokens + 1, 5000); }

/// What a process that is gone has left in the store.
void fill(const WorldOptions& options) {
  World writer(options);
  (void)writer.serve(prompt(kStored));
  (void)writer.serve(other_prompt());
  writer.end();
}

/// All of it is there, and right.
void expect_hit(World& world, const std::vector<Token>& tokens) {
  const Served served = world.serve(tokens);
  EXPECT_EQ(served.offered, (tokens.size() - 1) / kBlockTokens);
  EXPECT_FALSE(served.failed);
}

void serve_short_of_memory(const WorldOptions& options) {
  std::unique_ptr<World> world;
  {
    const Spared spared;
    fill(options);
    world = std::make_unique<World>(options);
    // So that where loads can overlap with a pass, the next one is trusted to wait for them.
    if (options.by_layer) expect_hit(*world, other_prompt());
  }
  (void)world->serve(prompt(kBlocks));

  const Spared spared;
  // The same again: nothing of it fails, though not all that could be stored need be.
  EXPECT_FALSE(world->serve(prompt(kBlocks)).failed);
  world->advance(std::chrono::seconds(60));  // No pause of saves, and no sighting, lasts as long.
  EXPECT_FALSE(world->serve(prompt(kBlocks)).failed);
  expect_hit(*world, prompt(kBlocks));
  expect_hit(*world, other_prompt());
  (void)world->serve(one_more_prompt());
  expect_hit(*world, one_more_prompt());
  world->end();
  // And what is in the store is what it seems to be.
  World next(options);
  const Served served = next.serve(prompt(kBlocks));
  EXPECT_FALSE(served.failed);
  // What a rank serves from its memory is not saved again, should it not have been stored.
  EXPECT_GE(served.offered, options.staged ? kStored : kBlocks);
  expect_hit(next, one_more_prompt());
  next.end();
}

struct Kind {
  const char* name;
  std::uint32_t ranks = 1;
  bool staged = false;
  bool by_layer = false;
  Duration lease{0};
};

void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

constexpr Kind kKinds[] = {
    {"Leased", 1, false, false, std::chrono::seconds(8)},
    {"LeasedOfTwoRanks", 2, false, false, Duration{0}},
    {"Staged", 1, true, false, Duration{0}},
    {"StagedOfTwoRanks", 2, true, false, Duration{0}},
    {"ByLayer", 1, false, true, Duration{0}},
};

class OutOfMemoryLives : public ::testing::TestWithParam<std::tuple<Kind, Shortage>> {
 protected:
  static WorldOptions options() {
    const auto& [kind, shortage] = GetParam();
    WorldOptions with;
    with.ranks = kind.ranks;
    with.staged = kind.staged;
    with.by_layer = kind.by_layer;
    with.lease = kind.lease;
    with.shortage = shortage;
    return with;
  }
};

TEST_P(OutOfMemoryLives, EveryByteIsRightOrToldAndNothingStaysHeld) {
  const std::size_t points = at_every_allocation(std::get<Shortage>(GetParam()), [] {
    WorldOptions with;
    {
      const Spared spared;
      with = options();
    }
    serve_short_of_memory(with);
  });
  RecordProperty("allocations", static_cast<int>(points));
  EXPECT_GT(points, 100u);
}

INSTANTIATE_TEST_SUITE_P(All, OutOfMemoryLives,
                         ::testing::Combine(::testing::ValuesIn(kKinds),
                                            ::testing::Values(Shortage::kOnce,
                                                              Shortage::kFromThenOn)),
                         name_of_kind<Kind>);

}  // namespace
}  // namespace kvc::testlib
