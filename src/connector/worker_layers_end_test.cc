// Blocks that are stored layer by layer: what is left of passes that break off, and of a worker
// that is closed under one.

#include <chrono>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "connector/layer_fixture.h"

namespace kvc {
namespace {

using testlib::GatePoint;

TEST(WorkerLayers, TheNextPassEndsTheLoadsOfOneThatFailed) {
  for (const GatePoint point : {GatePoint::kBeforeCall, GatePoint::kBeforeReply}) {
    TrustedWorld world(true);
    world.store->close_gate(point);
    EXPECT_TRUE(world.load(world.loads).empty());
    ASSERT_TRUE(world.store->wait_for_waiting(1));
    // The pass failed for reasons of its own; its pages belong to others from here on.
    world.bind({}, {});
    world.store->open_gate();
    EXPECT_TRUE(world.pass({}).empty());
    world.worker->close(Deadline::after(*system_clock(), std::chrono::seconds(20)));
    for (std::uint32_t layer = 0; layer < kLayers; ++layer) EXPECT_TRUE(world.untouched(layer));
  }
}

TEST(WorkerLayers, LoadsOfAPassThatBrokeOffCanBeEndedBeforeTheNextOne) {
  for (const GatePoint point : {GatePoint::kBeforeCall, GatePoint::kBeforeReply}) {
    TrustedWorld world(true);
    world.store->close_gate(point);
    world.bind(world.loads, {world.task(77, 20)});
    EXPECT_TRUE(world.worker->load(0).empty());
    ASSERT_TRUE(world.store->wait_for_waiting(1));
    world.worker->end_loads();
    world.store->open_gate();
    // Whoever goes on with it all the same is told.
    EXPECT_EQ(world.wait(0).size(), world.loads.size());
    EXPECT_TRUE(world.worker->save(0).empty()) << "told once";
    world.worker->end_loads();
    world.worker->close(Deadline::after(*system_clock(), std::chrono::seconds(20)));
    world.worker->end_loads();
    for (std::uint32_t layer = 0; layer < kLayers; ++layer) EXPECT_TRUE(world.untouched(layer));
    EXPECT_FALSE(world.stored(world.manifest(77)));
  }
}

TEST(WorkerLayers, LoadsThatWereEndedUnderAPassFailItsEnd) {
  TrustedWorld world;
  EXPECT_TRUE(world.load(world.loads).empty());
  EXPECT_TRUE(world.wait(0).empty());
  world.worker->end_loads();
  EXPECT_EQ(world.worker->save(0).size(), world.loads.size());
}

TEST(WorkerLayers, EndingLoadsThatAreCompleteChangesNothing) {
  TrustedWorld world;
  EXPECT_TRUE(world.load(world.loads).empty());
  for (std::uint32_t layer = 0; layer < kLayers; ++layer) EXPECT_TRUE(world.wait(layer).empty());
  world.worker->end_loads();
  EXPECT_TRUE(world.worker->save(0).empty());
  EXPECT_TRUE(world.all_hold(world.loads));
  // Trust is left as it is.
  world.pool.poison_all();
  EXPECT_TRUE(world.load(world.loads).empty());
  EXPECT_TRUE(world.untouched(0));
}

TEST(WorkerLayers, CloseEndsLoadsThatAreUnderWay) {
  TrustedWorld world(true);
  world.store->close_gate(GatePoint::kBeforeCall);
  EXPECT_TRUE(world.load(world.loads).empty());
  ASSERT_TRUE(world.store->wait_for_waiting(1));
  world.clock->set_tick(std::chrono::milliseconds(1));
  world.worker->close(Deadline::after(*world.clock, std::chrono::milliseconds(50)));
  EXPECT_FALSE(world.wait(0).empty());
  EXPECT_TRUE(world.worker->save(0).empty());
  world.store->open_gate();
  world.worker.reset();
  world.executor_in_use.reset();
  EXPECT_TRUE(world.untouched(0));
}

TEST(WorkerLayers, CloseUnderAPassThatDoesNotWaitIsToldAtItsEnd) {
  TrustedWorld world;
  EXPECT_TRUE(world.load(world.loads).empty());
  EXPECT_TRUE(world.wait(0).empty());
  world.worker->close(Deadline{});
  EXPECT_EQ(world.worker->save(0).size(), world.loads.size());
  EXPECT_TRUE(world.worker->save(0).empty()) << "once";
  EXPECT_TRUE(world.pass({}).empty());
}

TEST(WorkerLayers, CloseUnderAPassWhoseLoadsAreCompleteIsNoFailure) {
  TrustedWorld world;
  EXPECT_TRUE(world.load(world.loads).empty());
  for (std::uint32_t layer = 0; layer < kLayers; ++layer) EXPECT_TRUE(world.wait(layer).empty());
  world.worker->close(Deadline{});
  EXPECT_TRUE(world.wait(kLayers - 1).empty());
  EXPECT_TRUE(world.worker->save(0).empty());
}

TEST(WorkerLayers, CloseUnderAPassGivesTheStagingOfItsSnapshotsBack) {
  LayerWorld world;
  world.start();
  world.bind({}, world.tasks({1, 2}));
  world.computed(0);
  world.worker->close(Deadline{});
  EXPECT_EQ(world.logger->count("stays allocated"), 0u);
}

TEST(WorkerLayers, SnapshotsOfAPassThatFailedGiveTheirStagingBack) {
  TrustedWorld world;
  world.options.save_queue_bytes = WorkerWorld::kPageBytes + 700;
  world.start();
  world.earn_trust(world.loads);
  world.bind(world.loads, {world.task(77, 20)});
  EXPECT_TRUE(world.worker->load(0).empty());
  world.computed(0);
  EXPECT_FALSE(world.worker->save(0).empty());
  world.worker->close(Deadline{});
  EXPECT_EQ(world.logger->count("stays allocated"), 0u);
}

/// Fails when it is told to.
class BreakableClock final : public Clock {
 public:
  explicit BreakableClock(std::shared_ptr<const Clock> inner) : inner_(std::move(inner)) {}
  Instant now() const override {
    if (broken) throw std::runtime_error("broken clock");
    return inner_->now();
  }
  bool broken = false;

 private:
  const std::shared_ptr<const Clock> inner_;
};

TEST(WorkerLayers, AnEndOfAPassThatBreaksOffStillTellsThatThePassDidNotWait) {
  for (const bool waits : {false, true}) {
    TrustedWorld world;
    const auto clock = std::make_shared<BreakableClock>(world.clock);
    WorkerParts parts = world.parts();
    parts.clock = clock;
    world.worker = std::move(Worker::create(world.options, std::move(parts))).value();
    ASSERT_TRUE(world.worker->register_layout(kTestKeyspace, world.pool.layout).ok());
    world.earn_trust(world.loads);
    const std::vector<PageTask> saves{world.task(77, 20)};
    world.bind(world.loads, saves);
    EXPECT_TRUE(world.worker->load(0).empty());
    for (std::uint32_t layer = 0; layer < kLayers && waits; ++layer) {
      EXPECT_TRUE(world.wait(layer).empty());
    }
    clock->broken = true;
    EXPECT_EQ(world.worker->save(0).empty(), waits);
    clock->broken = false;
    world.executor->run_all();
    EXPECT_FALSE(world.stored(world.manifest(77)));
    world.pool.poison_all();
    EXPECT_TRUE(world.load(world.loads).empty());
    EXPECT_EQ(world.all_hold(world.loads), !waits) << "trust is what the pass has earned";
    EXPECT_TRUE(world.pass({}).empty());
  }
}

}  // namespace
}  // namespace kvc
