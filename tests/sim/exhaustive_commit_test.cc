// Two ranks that save two blocks, a call of the store at a time: every order of the calls, with any
// of them refused, lost, or done and not answered, any object evicted and any writer dead between
// any two of them. Whatever happened, the next saves without faults must heal it.
#include <gtest/gtest.h>

#include <string>

#include "tests/sim/exhaustive.h"
#include "tests/sim/sim_fixture.h"

namespace kvc::sim {
namespace {

struct SmallWorld {
  Shape shape;
  bool tells_existing = true;
  std::uint32_t blocks = 2;
  std::uint32_t faults = 1;
};

struct Tried {
  std::uint64_t runs = 0;
  std::uint64_t with_fault_and_commit = 0;
};

FaultPlan store_faults() {
  FaultPlan plan;
  for (const Fault fault : {Fault::kRequestLost, Fault::kReplyLost, Fault::kBackOff,
                            Fault::kWrongLength, Fault::kEviction, Fault::kRankCrash}) {
    plan[fault] = kAlways;
  }
  return plan;
}

class CommitRun {
 public:
  CommitRun(Choice& choice, const SmallWorld& small)
      : small_(small),
        world_(choice, {.shape = small.shape,
                        .order = EventOrder::kAny,
                        .faults = store_faults(),
                        .fault_budget = small.faults,
                        .store = {.tells_existing = small.tells_existing, .whole_batches = true}}),
        blocks_(some_blocks(world_.oracle, small.blocks)) {
    for (std::uint32_t rank = 0; rank < small.shape.ranks; ++rank) {
      writers_.push_back(std::make_unique<SimWriter>(world_.site, rank));
    }
  }

  /// What is wrong; empty if nothing is.
  std::string run() {
    for (const auto& writer : writers_) writer->save(blocks_);
    while (!world_.oracle.violated() && world_.loop.step()) strike(world_.site.choice);
    if (world_.faults.total() == 0 && !all_committed()) return "not committed without any fault";
    world_.faults.stop();
    for (int round = 0; round < 2; ++round) {
      for (const auto& writer : writers_) {
        if (!writer->process().up()) writer->process().restart();
        writer->save(blocks_);
        world_.run();
        if (!writer->ended()) return "a commit does not end";
      }
    }
    if (world_.oracle.violated()) return world_.oracle.first_violation();
    return all_committed() ? "" : "not committed after all faults have ended";
  }

  bool had_fault_and_commit() const {
    return world_.faults.total() > 0 && world_.oracle.manifests() > 0;
  }

 private:
  /// At most one thing of the world as a whole goes wrong between two steps.
  void strike(Choice& choice) {
    const std::uint32_t objects = static_cast<std::uint32_t>(world_.store.size());
    if (objects > 0 && world_.faults.strikes(Fault::kEviction)) {
      world_.store.evict(choice.below(objects));
    } else if (world_.faults.strikes(Fault::kRankCrash)) {
      writers_[choice.below(static_cast<std::uint32_t>(writers_.size()))]->process().crash();
    }
  }

  bool all_committed() const {
    for (const NamedBlock& block : blocks_) {
      if (!world_.oracle.has_manifest(block.content)) return false;
    }
    return true;
  }

  const SmallWorld small_;
  SimStageWorld world_;
  std::vector<NamedBlock> blocks_;
  std::vector<std::unique_ptr<SimWriter>> writers_;
};

Tried try_all(const SmallWorld& small) {
  Tried tried;
  tried.runs = try_every_choice<CommitRun>(small, [&tried](const CommitRun& run) {
    tried.with_fault_and_commit += run.had_fault_and_commit() ? 1 : 0;
  });
  return tried;
}

TEST(ExhaustiveCommit, AtomicStoreWithTwoFaults) {
  const Tried tried = try_all({.shape = {.ranks = 2, .atomic_publish = true}, .faults = 2});
  EXPECT_GT(tried.runs, 10'000u);
  EXPECT_GT(tried.with_fault_and_commit, 10'000u);
}

TEST(ExhaustiveCommit, AtomicStoreThatDoesNotTellWhatExisted) {
  const Tried tried = try_all(
      {.shape = {.ranks = 2, .atomic_publish = true}, .tells_existing = false, .faults = 1});
  EXPECT_GT(tried.with_fault_and_commit, 500u);
}

TEST(ExhaustiveCommit, StoreThatPublishesInPieces) {
  for (const bool tells : {true, false}) {
    const Tried tried = try_all({.shape = {.ranks = 2, .atomic_publish = false},
                                 .tells_existing = tells,
                                 .blocks = 1,
                                 .faults = 1});
    EXPECT_GT(tried.with_fault_and_commit, 5'000u);
  }
}

TEST(ExhaustiveCommit, StoreThatPublishesInPiecesAndTwoBlocksWithoutFaults) {
  const Tried tried =
      try_all({.shape = {.ranks = 2, .atomic_publish = false}, .blocks = 2, .faults = 0});
  EXPECT_GT(tried.runs, 500u);
}

TEST(ExhaustiveCommit, LayerByLayer) {
  const Tried tried =
      try_all({.shape = {.ranks = 2, .parts = 2, .by_layer = true, .atomic_publish = true},
               .blocks = 1,
               .faults = 1});
  EXPECT_GT(tried.with_fault_and_commit, 5'000u);
}

}  // namespace
}  // namespace kvc::sim
