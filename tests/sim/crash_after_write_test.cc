// A script of saves, cut off after each single write to the store by the death of all writers. What
// they left behind is recovered by new ones, and recovering once more changes nothing.
#include <gtest/gtest.h>

#include "tests/sim/sim_fixture.h"

namespace kvc::sim {
namespace {

class CrashRun {
 public:
  CrashRun(const Shape& shape, bool tells_existing)
      : choice_(7),
        world_(choice_, {.shape = shape, .store = {.tells_existing = tells_existing}}),
        blocks_(some_blocks(world_.oracle, 3)) {
    for (std::uint32_t rank = 0; rank < shape.ranks; ++rank) {
      writers_.push_back(std::make_unique<SimWriter>(world_.site, rank));
    }
  }

  /// False: the script had ended before so many writes.
  bool cut_after(std::uint64_t writes) {
    for (const auto& writer : writers_) writer->save(blocks_);
    while (world_.store.writes() < writes && world_.loop.step()) {
    }
    const bool was_cut = world_.store.writes() == writes;
    for (const auto& writer : writers_) writer->process().crash();
    world_.run();  // What was under way arrives, or does not.
    return was_cut;
  }

  void recover() {
    for (const auto& writer : writers_) {
      if (!writer->process().up()) writer->process().restart();
      writer->save(blocks_);
      world_.run();
      EXPECT_TRUE(writer->ended());
    }
    EXPECT_EQ(world_.oracle.first_violation(), "");
    for (const NamedBlock& block : blocks_) {
      EXPECT_TRUE(world_.oracle.has_manifest(block.content)) << "block " << block.content;
    }
  }

  std::uint64_t state() const { return world_.store.state(); }

 private:
  SeededChoice choice_;
  SimStageWorld world_;
  std::vector<NamedBlock> blocks_;
  std::vector<std::unique_ptr<SimWriter>> writers_;
};

void crash_after_every_write(const Shape& shape) {
  for (const bool tells : {true, false}) {
    std::uint64_t writes = 0;
    for (bool was_cut = true; was_cut && !::testing::Test::HasFailure(); ++writes) {
      SCOPED_TRACE(::testing::Message() << "tells " << tells << ", cut after " << writes);
      CrashRun run(shape, tells);
      was_cut = run.cut_after(writes + 1);
      run.recover();
      const std::uint64_t once = run.state();
      run.recover();
      EXPECT_EQ(run.state(), once) << "recovering twice is not recovering once";
    }
    EXPECT_GT(writes, 8u);
  }
}

TEST(CrashAfterEveryWrite, AtomicStore) {
  crash_after_every_write({.ranks = 2, .atomic_publish = true});
}

TEST(CrashAfterEveryWrite, StoreThatPublishesInPieces) {
  crash_after_every_write({.ranks = 2, .atomic_publish = false});
}

TEST(CrashAfterEveryWrite, LayerByLayer) {
  crash_after_every_write({.ranks = 2, .parts = 2, .by_layer = true, .atomic_publish = true});
  crash_after_every_write({.ranks = 2, .parts = 2, .by_layer = true, .atomic_publish = false});
}

TEST(CrashAfterEveryWrite, ThreeRanks) {
  crash_after_every_write({.ranks = 3, .atomic_publish = false});
}

}  // namespace
}  // namespace kvc::sim
