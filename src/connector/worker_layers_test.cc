// Blocks that are stored layer by layer: what is stored, when a layer may be read, and what becomes
// of passes that call the hooks in another way than hoped for.

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "connector/layer_fixture.h"
#include "store/wrap/deadline_store.h"
#include "store/wrap/fault_store.h"

namespace kvc {
namespace {

using testlib::GatePoint;

class WorkerLayersOnBothKinds : public OnBothKinds {};
INSTANTIATE_TEST_SUITE_P(, WorkerLayersOnBothKinds, ::testing::Bool(), kind_name);

// What is stored ------------------------------------------------------------------------------

TEST_P(WorkerLayersOnBothKinds, WhatIsSavedIsLoadedBitByBit) {
  LayerWorld world(GetParam());
  world.options.batch_blocks = 7;
  world.start();
  const std::vector<PageTask> tasks = world.tasks(some(20));
  world.save_by_layer(tasks);
  world.pool.poison_all();
  EXPECT_TRUE(world.load(tasks).empty());
  EXPECT_TRUE(world.all_hold(tasks));
  EXPECT_TRUE(world.pool.guards_intact());
  const WorkerStats stats = world.worker->stats();
  EXPECT_EQ(stats.blocks_saved, 20u);
  EXPECT_EQ(stats.bytes_saved, 20 * WorkerWorld::kPageBytes);
  EXPECT_EQ(stats.blocks_loaded, 20u);
  EXPECT_EQ(stats.bytes_loaded, 20 * WorkerWorld::kPageBytes);
  EXPECT_EQ(stats.blocks_committed, 20u);
}

TEST_P(WorkerLayersOnBothKinds, ABlockIsItsLayersAReadyMarkerAndAManifest) {
  LayerWorld world(GetParam());
  world.start();
  world.save_by_layer(world.tasks({1}));
  std::vector<std::string> expected{world.ready(1), world.manifest(1)};
  for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
    expected.push_back(world.layer_key(1, layer));
    const std::vector<std::byte> object = world.read_raw(expected.back());
    BlockDescription description;
    std::uint16_t version = 0;
    ASSERT_TRUE(read_block_description(object, &description, &version));
    EXPECT_EQ(description.kind, ObjectKind::kLayer);
    EXPECT_EQ(description.layer, layer);
    EXPECT_EQ(verify_block(description, object), Rejection::kNone);
  }
  std::vector<std::string> found = world.memory->keys();
  std::ranges::sort(expected);
  std::ranges::sort(found);
  EXPECT_EQ(found, expected) << "at most world_size * (layers + 1) + 1 objects";
}

TEST_P(WorkerLayersOnBothKinds, TheManifestComesAfterTheLastLayerOfTheLastRank) {
  LayerWorld world(GetParam());
  world.options.world_size = 2;
  for (const std::uint32_t rank : {1u, 0u}) {
    EXPECT_FALSE(world.stored(world.manifest(1)));
    world.options.rank = rank;
    world.start();
    world.save_by_layer(world.tasks({1}));
  }
  std::vector<std::string> order;
  for (const testlib::StoreCall& call : world.store->calls()) {
    if (call.op != StoreOp::kPut) continue;
    order.insert(order.end(), call.keys.begin(), call.keys.end());
  }
  ASSERT_EQ(order.size(), 2 * (kLayers + 1) + 1);
  EXPECT_EQ(order[kLayers], world.by_layer.ready(make_hash(1), 1)) << "after the last layer";
  EXPECT_EQ(order[2 * kLayers + 1], world.by_layer.ready(make_hash(1), 0));
  EXPECT_EQ(order.back(), world.manifest(1));
}

TEST_P(WorkerLayersOnBothKinds, ABlockThatFailedOnAnyLayerIsNotCommittedAndLaterHealed) {
  for (std::uint32_t bad = 0; bad < kLayers; ++bad) {
    for (const Reaction reaction : {Reaction::kDown, Reaction::kBackOff}) {
      LayerWorld world(GetParam());
      FaultRule rule;
      rule.op = StoreOp::kPut;
      rule.key_part = "/layers/r0/" + std::to_string(bad);
      rule.reaction = reaction;
      rule.limit = 1;
      world.on = make_fault_store(world.store, {.seed = 1, .rules = {rule}, .before_item = {}});
      world.start();
      world.save_by_layer(world.tasks({1}));
      EXPECT_FALSE(world.stored(world.ready(1)));
      EXPECT_FALSE(world.stored(world.manifest(1)));
      EXPECT_EQ(world.worker->stats().saves_failed, 1u);
      EXPECT_EQ(world.memory->keys().size(), bad) << "leftovers are layers that a save uses again";

      world.clock->advance(std::chrono::seconds(60));
      world.save_by_layer(world.tasks({1}));
      EXPECT_TRUE(world.stored(world.manifest(1)));
      EXPECT_EQ(world.memory->keys().size(), kLayers + 2);
      world.pool.poison_all();
      EXPECT_TRUE(world.load(world.tasks({1})).empty());
      EXPECT_TRUE(world.all_hold(world.tasks({1})));
    }
  }
}

/// Takes an object away as soon as it was put, as an eviction does.
class EvictingStore final : public testlib::PassingStore {
 public:
  EvictingStore(std::shared_ptr<Store> inner, std::string key)
      : testlib::PassingStore(std::move(inner)), key_(std::move(key)) {}
  std::vector<PutResult> put(std::vector<PutItem> items, CallContext context) override {
    std::vector<PutResult> results = inner_->put(std::move(items), std::move(context));
    (void)inner_->remove({key_}, {});
    return results;
  }

 private:
  const std::string key_;
};

TEST(WorkerLayers, ALayerThatIsGoneBeforeTheReadyMarkerIsNotVouchedFor) {
  LayerWorld world;
  world.on = std::make_shared<EvictingStore>(world.store, world.layer_key(1, 2));
  world.start();
  world.save_by_layer(world.tasks({1}));
  EXPECT_FALSE(world.stored(world.ready(1)));
  EXPECT_FALSE(world.stored(world.manifest(1)));
}

TEST(WorkerLayers, AHalfWrittenLayerOfACrashedWriterIsReplaced) {
  LayerWorld world(false);
  world.start();
  world.save_by_layer(world.tasks({1}));
  const std::vector<std::byte> whole = world.read_raw(world.layer_key(1, 2));
  for (const std::string& key : world.memory->keys()) world.lose(key);
  world.put_raw(world.layer_key(1, 2), std::vector<std::byte>(whole.begin(), whole.end() - 9));
  world.clock->advance(std::chrono::seconds(60));
  world.save_by_layer(world.tasks({1}));
  EXPECT_EQ(world.read_raw(world.layer_key(1, 2)), whole);
  EXPECT_TRUE(world.stored(world.manifest(1)));
}

TEST(WorkerLayers, TheTwoGranularitiesShareNoObject) {
  LayerWorld world;
  world.start();
  world.save_by_layer(world.tasks({1}));
  world.options.granularity = Granularity::kBlock;
  world.start();
  EXPECT_EQ(world.worker->layers_stored_apart(), 0u);
  ASSERT_EQ(world.load(world.tasks({1})).size(), 1u);
  world.save_now(world.tasks({1}));
  EXPECT_EQ(world.memory->keys().size(), kLayers + 2 + 2);
  EXPECT_TRUE(world.load(world.tasks({1})).empty());
}

TEST(WorkerLayers, APoolThatDoesNotTellItsLayersIsStoredByBlockAndSaidOnce) {
  LayerWorld world;
  world.pool.layout.groups.front().layer_bytes = 0;
  world.start();
  EXPECT_EQ(world.worker->layers_stored_apart(), 0u);
  EXPECT_EQ(world.logger->lines().size(), 1u);
  world.save_now(world.tasks({1}));
  EXPECT_TRUE(world.stored(world.shard(1)));
}

TEST(WorkerLayers, AMixedUpLayerIsRefused) {
  LayerWorld world;
  world.start();
  world.save_by_layer(world.tasks({1}));
  const std::vector<std::byte> other = world.read_raw(world.layer_key(1, 1));
  world.lose(world.layer_key(1, 2));
  world.put_raw(world.layer_key(1, 2), other);
  world.pool.poison_all();
  ASSERT_EQ(world.load(world.tasks({1})).size(), 1u);
  EXPECT_EQ(world.worker->stats().rejected_header, 1u);
  EXPECT_FALSE(world.stored(world.layer_key(1, 2))) << "removed, so that the next save heals it";
}

// Saving --------------------------------------------------------------------------------------

TEST(WorkerLayers, NothingIsStoredBeforeThePassIsOver) {
  LayerWorld world;
  world.start();
  const std::vector<PageTask> saves = world.tasks({1, 2});
  world.bind({}, saves);
  for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
    for (const PageTask& each : saves) world.write_layer(each, layer);
    world.computed(layer);
  }
  world.executor->run_all();
  EXPECT_EQ(world.store->count(StoreOp::kPut), 0u);
  // What was copied in order is what is stored, whatever the page holds by now.
  world.pool.poison_all();
  EXPECT_TRUE(world.worker->save(0).empty());
  world.executor->run_all();
  EXPECT_TRUE(world.load(saves).empty());
  EXPECT_TRUE(world.all_hold(saves));
}

TEST(WorkerLayers, WhateverTheHooksDoEachBlockIsSavedOnceAndRight) {
  const std::vector<std::vector<std::uint32_t>> orders{{},
                                                       {0},
                                                       {1, 3},
                                                       {3, 2, 1, 0},
                                                       {0, 0, 1, 1, 2, 2, 3, 3},
                                                       {0, 1, 2, 3, 0},
                                                       {0, 1, 2},
                                                       {0, 1, 2, 3, 4},
                                                       {1, 2, 3},
                                                       {0, 1, 2, 3}};
  for (const std::vector<std::uint32_t>& order : orders) {
    SCOPED_TRACE(::testing::PrintToString(order));
    LayerWorld world;
    world.start();
    const std::vector<PageTask> saves = world.tasks(some(5));
    world.bind({}, saves);
    const bool in_order = order == orders.back();
    for (const std::uint32_t layer : order) {
      // A hook that comes out of order may come before its layer was computed.
      if (in_order) {
        for (const PageTask& each : saves) world.write_layer(each, layer);
      }
      world.computed(layer);
    }
    for (const PageTask& each : saves) world.pool.fill(each.slot, each.block, 0);
    EXPECT_TRUE(world.worker->save(0).empty());
    EXPECT_TRUE(world.worker->save(0).empty()) << "once";
    world.executor->run_all();
    EXPECT_EQ(world.worker->stats().blocks_saved, 5u);
    EXPECT_EQ(world.worker->stats().blocks_already_stored, 0u);
    world.pool.poison_all();
    EXPECT_TRUE(world.load(saves).empty());
    EXPECT_TRUE(world.all_hold(saves));
  }
}

TEST(WorkerLayers, APassThatDoesNotEndSavesNothing) {
  LayerWorld world;
  world.start();
  const std::vector<PageTask> saves = world.tasks({1, 2});
  world.bind({}, saves);
  for (const std::uint32_t layer : {0u, 1u}) {
    for (const PageTask& each : saves) world.write_layer(each, layer);
    world.computed(layer);
  }
  // It failed; the next pass uses the same pages for something else, and all staging is there.
  world.save_by_layer(world.tasks({3, 4}));
  EXPECT_FALSE(world.stored(world.manifest(1)));
  EXPECT_EQ(world.memory->keys().size(), 2 * (kLayers + 2));
  const WorkerStats stats = world.worker->stats();
  EXPECT_EQ(stats.blocks_saved, 2u);
  EXPECT_EQ(stats.saves_dropped + stats.saves_failed, 0u);
}

TEST(WorkerLayers, ABlockForWhichNotAllLayersHaveRoomIsDroppedWhole) {
  LayerWorld world;
  world.options.save_queue_bytes = 2 * WorkerWorld::kPageBytes + 700;
  world.start();
  world.save_by_layer(world.tasks({1, 2, 3}));
  EXPECT_EQ(world.worker->stats().saves_dropped, 1u);
  EXPECT_EQ(world.worker->stats().blocks_saved, 2u);
  EXPECT_TRUE(world.stored(world.manifest(2)));
  EXPECT_EQ(world.memory->keys().size(), 2 * (kLayers + 2)) << "the newest leaves no layer";
  EXPECT_EQ(world.worker->stats().save_queue_bytes, 0u);
  world.save_by_layer(world.tasks({3}));
  EXPECT_TRUE(world.stored(world.manifest(3)));
}

TEST(WorkerLayers, SmallStagingIsRefusedOrServes) {
  LayerWorld world;
  world.options.staging_bytes = 0;
  world.options.save_queue_bytes = WorkerWorld::kPageBytes;
  std::unique_ptr<Worker> worker = std::move(Worker::create(world.options, world.parts())).value();
  const Status refused = worker->register_layout(kTestKeyspace, world.pool.layout);
  EXPECT_EQ(refused.code(), Code::kInvalid);
  const std::string& message = refused.message();
  world.options.staging_bytes = std::stoul(message.substr(message.rfind(' ') + 1));
  world.start();
  world.save_by_layer(world.tasks({1}));
  EXPECT_TRUE(world.stored(world.manifest(1)));
  world.pool.poison_all();
  EXPECT_TRUE(world.load(world.tasks({1})).empty());
  EXPECT_TRUE(world.all_hold(world.tasks({1})));
}

// Loading -------------------------------------------------------------------------------------

TEST(WorkerLayers, WithoutTrustAllLayersAreThereBeforeThePass) {
  for (const int times : {0, 1, 2}) {
    LayerWorld world;
    world.start();
    const std::vector<PageTask> tasks = world.tasks(some(5));
    world.save_by_layer(tasks);
    world.pool.poison_all();
    EXPECT_TRUE(world.load(tasks).empty());
    EXPECT_TRUE(world.all_hold(tasks));
    EXPECT_TRUE(world.pass({}, times).empty()) << "whether or not a hook fires";
  }
}

TEST(WorkerLayers, AWaitReturnsWhileLaterLayersAreUnderWay) {
  TrustedWorld world(true);
  world.store->close_gate(GatePoint::kBeforeCall);
  EXPECT_TRUE(world.load(world.loads).empty()) << "nothing is waited for";
  for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
    ASSERT_TRUE(world.store->wait_for_waiting(1));
    world.store->let_pass(1);
    EXPECT_TRUE(world.wait(layer).empty());
    EXPECT_TRUE(world.in_place(layer));
    // The gets of later layers stand at the gate, so that no byte of them can be there.
    for (std::uint32_t later = layer + 1; later < kLayers; ++later) {
      EXPECT_TRUE(world.untouched(later)) << later;
    }
    world.computed(layer);
  }
  world.store->open_gate();
  EXPECT_TRUE(world.worker->save(0).empty());
  EXPECT_TRUE(world.all_hold(world.loads));
  EXPECT_EQ(world.worker->stats().blocks_loaded, 10u);
}

TEST(WorkerLayers, AWaitForALayerIsAWaitForAllBeforeIt) {
  TrustedWorld world;
  EXPECT_TRUE(world.load(world.loads).empty());
  EXPECT_EQ(world.gets(), 0u);
  EXPECT_TRUE(world.wait(2).empty());
  EXPECT_TRUE(world.in_place(0) && world.in_place(1) && world.in_place(2));
  EXPECT_TRUE(world.untouched(3));
  for (const std::uint32_t layer : {3u, 1u, 1u, 0u}) EXPECT_TRUE(world.wait(layer).empty());
  EXPECT_TRUE(world.worker->save(0).empty()) << "another order is fine";
  EXPECT_TRUE(world.all_hold(world.loads));
}

TEST(WorkerLayers, ABusyExecutorIsNotWaitedFor) {
  TrustedWorld world;
  world.executor->refuse();
  EXPECT_TRUE(world.load(world.loads).empty());
  EXPECT_TRUE(world.pass({}).empty());
  EXPECT_TRUE(world.all_hold(world.loads));
}

TEST(WorkerLayers, TheExecutorLoadsAheadOfTheWaits) {
  TrustedWorld world;
  EXPECT_TRUE(world.load(world.loads).empty());
  world.executor->run_all();
  EXPECT_TRUE(world.all_hold(world.loads));
  const std::size_t gets = world.gets();
  EXPECT_TRUE(world.pass({}).empty());
  EXPECT_EQ(world.gets(), gets);
}

TEST(WorkerLayers, LoadsThatAreNotOfPromptsOfThePassAreThereBeforeIt) {
  TrustedWorld world;
  world.worker->bind({.keyspace = kTestKeyspace, .loads = world.loads, .saves = {}});
  EXPECT_TRUE(world.worker->load(0).empty());
  EXPECT_TRUE(world.all_hold(world.loads));
  EXPECT_TRUE(world.worker->save(0).empty()) << "the replay of a graph calls no hook";
}

TEST(WorkerLayers, LoadsDoNotOverlapWhereThatIsNotWanted) {
  TrustedWorld world;
  world.options.overlap_loads = false;
  world.start();
  world.earn_trust(world.loads);
  world.pool.poison_all();
  EXPECT_TRUE(world.load(world.loads).empty());
  EXPECT_TRUE(world.all_hold(world.loads));
}

TEST(WorkerLayers, APassThatDidNotWaitIsToldAndSavesNothing) {
  const std::vector<std::vector<std::uint32_t>> waits{{}, {0}, {1, 3}, {0, 1, 2}, {3}};
  for (const std::vector<std::uint32_t>& order : waits) {
    SCOPED_TRACE(::testing::PrintToString(order));
    TrustedWorld world;
    const std::vector<PageTask> saves{world.task(77, 20)};
    world.bind(world.loads, saves);
    EXPECT_TRUE(world.worker->load(0).empty());
    for (const std::uint32_t layer : order) EXPECT_TRUE(world.wait(layer).empty());
    const std::vector<LoadFailure> failures = world.worker->save(0);
    EXPECT_EQ(failures.size(), world.loads.size());
    EXPECT_EQ(world.worker->stats().loads_unavailable, world.loads.size());
    world.executor->run_all();
    EXPECT_FALSE(world.stored(world.manifest(77)));
    // From now on loads are complete before a pass begins, until one waits for every layer.
    for (const bool trusted : {false, true}) {
      world.pool.poison_all();
      EXPECT_TRUE(world.load(world.loads).empty());
      EXPECT_NE(world.all_hold(world.loads), trusted);
      EXPECT_TRUE(world.pass({}).empty());
    }
  }
}

TEST(WorkerLayers, ALayerThatWasThereBeforeThePassNeedsNoHook) {
  TrustedWorld world;
  world.executor_in_use = std::make_shared<testlib::InlineExecutor>();
  world.start();
  world.earn_trust(world.loads);
  world.pool.poison_all();
  EXPECT_TRUE(world.load(world.loads).empty());
  EXPECT_TRUE(world.all_hold(world.loads)) << "this executor runs its tasks at once";
  EXPECT_TRUE(world.wait(0).empty());
  EXPECT_TRUE(world.worker->save(0).empty());
}

TEST(WorkerLayers, ALayerThatCameWhileThePassWasUnderWayNeedsItsHook) {
  TrustedWorld world;
  EXPECT_TRUE(world.load(world.loads).empty());
  world.executor->run_all();
  // Layers may have been computed before this, in whatever order.
  EXPECT_TRUE(world.wait(0).empty());
  EXPECT_FALSE(world.worker->save(0).empty());
}

TEST(WorkerLayers, HooksInAnotherOrderAreNotTrusted) {
  const std::vector<std::vector<std::uint32_t>> orders{
      {}, {0, 1, 2}, {1, 2, 3}, {3, 2, 1, 0}, {0, 0, 1, 1, 2, 2, 3, 3}, {0, 1, 2, 3, 0}};
  for (const std::vector<std::uint32_t>& order : orders) {
    SCOPED_TRACE(::testing::PrintToString(order));
    TrustedWorld world;
    world.start();
    for (int pass = 0; pass < 3; ++pass) {
      world.pool.poison_all();
      EXPECT_TRUE(world.load(world.loads).empty());
      EXPECT_TRUE(world.all_hold(world.loads));
      for (const std::uint32_t layer : order) EXPECT_TRUE(world.wait(layer).empty());
      EXPECT_TRUE(world.worker->save(0).empty());
    }
  }
}

TEST(WorkerLayers, HooksOfSomeLayersInAPassWithoutLoadsEndTheTrust) {
  TrustedWorld world;
  world.bind({}, {});
  EXPECT_TRUE(world.wait(0).empty());
  EXPECT_TRUE(world.worker->save(0).empty());
  EXPECT_TRUE(world.load(world.loads).empty());
  EXPECT_TRUE(world.all_hold(world.loads));
}

TEST(WorkerLayers, AReplayWithoutHooksAndLoadsTellsNothing) {
  TrustedWorld world;
  world.bind({}, {});
  EXPECT_TRUE(world.worker->save(0).empty());
  EXPECT_TRUE(world.load(world.loads).empty());
  EXPECT_FALSE(world.all_hold(world.loads));
  EXPECT_TRUE(world.pass({}).empty());
}

TEST(WorkerLayers, AMissingLayerFailsItsWaitAndTheOnesAfterIt) {
  TrustedWorld world;
  world.lose(world.layer_key(3, 2));
  EXPECT_TRUE(world.load(world.loads).empty());
  EXPECT_TRUE(world.wait(0).empty());
  EXPECT_TRUE(world.wait(1).empty());
  for (const std::uint32_t layer : {2u, 3u, 2u}) {
    const std::vector<LoadFailure> failures = world.wait(layer);
    ASSERT_EQ(failures.size(), world.loads.size()) << "the loads of the step are over";
    EXPECT_EQ(failures[0].key, world.layer_key(3, 2));
    EXPECT_EQ(failures[0].status.code(), Code::kMissing);
  }
  EXPECT_TRUE(world.untouched(3));
  EXPECT_TRUE(world.worker->save(0).empty()) << "told once";
  const WorkerStats stats = world.worker->stats();
  EXPECT_EQ(stats.loads_missing, 1u);
  EXPECT_EQ(stats.loads_unavailable, world.loads.size() - 1) << "given up";
  EXPECT_EQ(stats.blocks_loaded, 5u) << "of the pass before";

  // The retry recomputes and saves, and puts what is missing alone.
  const std::size_t objects = world.memory->keys().size();
  world.save_by_layer(world.loads);
  EXPECT_EQ(world.memory->keys().size(), objects + 1);
  world.pool.poison_all();
  EXPECT_TRUE(world.load(world.loads).empty());
  EXPECT_TRUE(world.pass({}).empty());
  EXPECT_TRUE(world.all_hold(world.loads));
}

TEST(WorkerLayers, ADamagedLayerIsRefusedRemovedAndHealed) {
  TrustedWorld world;
  std::vector<std::byte> damaged = world.read_raw(world.layer_key(2, 1));
  damaged[200] ^= std::byte{4};
  world.lose(world.layer_key(2, 1));
  world.put_raw(world.layer_key(2, 1), damaged);
  EXPECT_TRUE(world.load(world.loads).empty());
  EXPECT_TRUE(world.wait(0).empty());
  EXPECT_FALSE(world.wait(1).empty());
  EXPECT_EQ(world.worker->stats().rejected_checksum, 1u);
  EXPECT_FALSE(world.stored(world.layer_key(2, 1)));
  EXPECT_TRUE(world.stored(world.layer_key(2, 0)));
  world.save_by_layer(world.loads);
  EXPECT_TRUE(world.stored(world.layer_key(2, 1)));
}

TEST(WorkerLayers, ADamagedLayerThatCannotBeRemovedIsRemovedByTheNextSave) {
  TrustedWorld world;
  std::vector<std::byte> damaged = world.read_raw(world.layer_key(2, 1));
  damaged[200] ^= std::byte{4};
  world.lose(world.layer_key(2, 1));
  world.put_raw(world.layer_key(2, 1), damaged);
  FaultRule rule;
  rule.op = StoreOp::kRemove;
  rule.limit = 1;
  world.on = make_fault_store(world.store, {.seed = 1, .rules = {rule}, .before_item = {}});
  world.start();
  EXPECT_FALSE(world.load(world.loads).empty());
  EXPECT_EQ(world.read_raw(world.layer_key(2, 1)), damaged);
  world.save_by_layer(world.loads);
  world.pool.poison_all();
  EXPECT_TRUE(world.load(world.loads).empty());
  EXPECT_TRUE(world.all_hold(world.loads));
}

TEST(WorkerLayers, NothingThatRestsOnAFailedLoadIsSaved) {
  TrustedWorld world;
  world.lose(world.layer_key(1, 3));
  std::vector<PageTask> saves{world.task(77, 20), world.task(78, 21, 2)};
  world.bind(world.loads, saves);
  EXPECT_TRUE(world.worker->load(0).empty());
  for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
    EXPECT_EQ(world.wait(layer).empty(), layer < 3);
    for (const PageTask& each : saves) world.write_layer(each, layer);
    world.computed(layer);
  }
  EXPECT_TRUE(world.worker->save(0).empty());
  world.executor->run_all();
  EXPECT_FALSE(world.stored(world.manifest(77))) << "of the request whose load failed";
  EXPECT_TRUE(world.stored(world.manifest(78)));
}

TEST(WorkerLayers, AFailureOfOneRequestDoesNotHideThatThePassDidNotWaitForAnother) {
  TrustedWorld world;
  world.loads[4].request = 2;
  world.lose(world.layer_key(5, kLayers - 1));
  EXPECT_TRUE(world.load(world.loads).empty());
  EXPECT_TRUE(world.wait(0).empty());
  // Layers 1 and 2 are read now. Then the last one fails, for one request.
  const std::vector<LoadFailure> told = world.wait(kLayers - 1);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].request, 2u);
  const std::vector<LoadFailure> failures = world.worker->save(0);
  ASSERT_EQ(failures.size(), 4u);
  EXPECT_EQ(failures[0].request, 1u);
}

TEST(WorkerLayers, AHungStoreFailsTheWaitsWithinTheDeadline) {
  TrustedWorld world(true);
  const std::shared_ptr<const Clock> clock = system_clock();
  world.options.load_deadline = std::chrono::milliseconds(200);
  Result<std::unique_ptr<Worker>> made =
      Worker::create(world.options, {.store = world.store,
                                     .executor = world.executor_in_use,
                                     .clock = clock,
                                     .logger = world.logger,
                                     .copier = world.copier});
  world.worker = std::move(made).value();
  ASSERT_TRUE(world.worker->register_layout(kTestKeyspace, world.pool.layout).ok());
  world.earn_trust(world.loads);
  world.pool.poison_all();
  world.store->close_gate(GatePoint::kBeforeReply);
  const Instant begin = clock->now();
  EXPECT_TRUE(world.load(world.loads).empty());
  ASSERT_TRUE(world.store->wait_for_waiting(1));
  for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
    const std::vector<LoadFailure> failures = world.wait(layer);
    ASSERT_EQ(failures.size(), world.loads.size());
    EXPECT_EQ(failures[0].status.code(), Code::kTimedOut);
  }
  EXPECT_TRUE(world.worker->save(0).empty());
  EXPECT_LT(clock->now() - begin, std::chrono::seconds(5));
  // What the store still writes goes nowhere.
  world.store->open_gate();
  world.worker->close(Deadline::after(*clock, std::chrono::seconds(20)));
  EXPECT_TRUE(world.untouched(0));
}

TEST(WorkerLayers, LayersThatThePoolDoesNotHaveAreIgnored) {
  TrustedWorld world;
  EXPECT_TRUE(world.load(world.loads).empty());
  EXPECT_TRUE(world.worker->wait_for_layer(0, 0).empty());
  EXPECT_TRUE(world.worker->wait_for_layer(kFirstLayer + kLayers, 0).empty());
  EXPECT_EQ(world.gets(), 0u);
  EXPECT_TRUE(world.pass({}).empty());
}

TEST(WorkerLayers, WithThreadsAllBytesAreRightBeforeTheyAreRead) {
  TrustedWorld world(true);
  for (int round = 0; round < 200; ++round) {
    world.pool.poison_all();
    ASSERT_TRUE(world.load(world.loads).empty());
    for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
      ASSERT_TRUE(world.wait(layer).empty());
      ASSERT_TRUE(world.in_place(layer));
      world.computed(layer);
    }
    if (round % 3 != 0) {
      ASSERT_TRUE(world.worker->save(0).empty());
    }
  }
  EXPECT_EQ(world.worker->stats().blocks_loaded, 5u + 5u * 200u);
}

TEST(WorkerLayers, LostLoadsFailTheStep) {
  for (const Granularity granularity : {Granularity::kBlock, Granularity::kLayer}) {
    LayerWorld world;
    world.options.granularity = granularity;
    world.start();
    world.worker->bind({.keyspace = kTestKeyspace, .loads_lost = true, .loads = {}, .saves = {}});
    EXPECT_EQ(world.worker->load(0).size(), 1u);
  }
}

}  // namespace
}  // namespace kvc
