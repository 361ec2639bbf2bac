// Several copies of an object: made by the store's copy tasks, read when the first one is lost.
#include <gtest/gtest.h>

#include <utility>

#include "store/mooncake/mooncake_store.h"
#include "store/mooncake/replica_reader.h"
#include "testing/collecting_logger.h"
#include "testing/conformance_fixture.h"
#include "testing/fake_mooncake_client.h"
#include "testing/sim_clock.h"

namespace kvc {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testlib::Bytes;
using testlib::CollectingLogger;
using testlib::FakeMooncakeClient;
using testlib::FakeMooncakeCluster;
using testlib::FakeMooncakeOptions;
using testlib::get_item;
using testlib::payload_for;
using testlib::put_item;
using testlib::SimClock;

using Places = std::vector<std::size_t>;

FakeMooncakeOptions storages(std::size_t count) {
  FakeMooncakeOptions options;
  options.storages = count;
  return options;
}

struct Rig {
  explicit Rig(FakeMooncakeOptions fake = storages(2), MooncakeStoreOptions options = {})
      : cluster(std::make_shared<FakeMooncakeCluster>(std::move(fake))),
        client(std::make_shared<FakeMooncakeClient>(cluster)) {
    options.instance = "test";
    options.canary_bytes = 1000;
    Result<std::shared_ptr<Store>> opened = open_mooncake_store(client, options, logger, clock);
    EXPECT_TRUE(opened.ok()) << opened.status().to_string();
    store = *opened;
  }

  PutResult put(const std::string& key, std::uint32_t replicas = 1) {
    const Bytes payload = payload_for(key, 100);
    PutItem item = put_item(key, payload);
    item.replicas = replicas;
    return store->put({item}, {})[0];
  }
  Reaction replicate(const std::string& key, std::uint32_t replicas = 2) {
    return store->replicate({{key, replicas}}, {})[0];
  }
  /// kOk: and the right bytes.
  Reaction get(const std::string& key) {
    Bytes buffer(100);
    const GetResult result = store->get({get_item(key, buffer)}, {})[0];
    if (result.reaction == Reaction::kOk) {
      EXPECT_TRUE(buffer == payload_for(key, 100)) << key;
    }
    return result.reaction;
  }

  std::shared_ptr<SimClock> clock = std::make_shared<SimClock>();
  std::shared_ptr<CollectingLogger> logger = std::make_shared<CollectingLogger>();
  std::shared_ptr<FakeMooncakeCluster> cluster;
  std::shared_ptr<FakeMooncakeClient> client;
  std::shared_ptr<Store> store;
};

TEST(MooncakeReplicas, PutStoresAsManyCopiesAsThereArePlaces) {
  Rig rig(storages(3));
  const Bytes payload = payload_for("x", 100);
  std::vector<PutItem> items;
  for (const std::uint32_t replicas : {1u, 2u, 1u, 5u, 0u, 2u}) {
    items.push_back(put_item("key" + std::to_string(items.size()), payload));
    items.back().replicas = replicas;
  }
  for (const PutResult& result : rig.store->put(items, {})) {
    EXPECT_EQ(result.reaction, Reaction::kOk);
  }
  const Places expected[] = {{0}, {0, 1}, {0}, {0, 1, 2}, {0}, {0, 1}};
  for (std::size_t i = 0; i < items.size(); ++i) {
    EXPECT_EQ(rig.cluster->storages_of("key" + std::to_string(i)), expected[i]) << i;
  }
}

TEST(MooncakeReplicas, ReplicateAddsACopyAndLeavesTheObjectAlone) {
  Rig rig;
  rig.put("cold");
  rig.put("hot");
  EXPECT_EQ(rig.replicate("hot"), Reaction::kOk);
  EXPECT_EQ(rig.cluster->storages_of("hot"), (Places{0, 1}));
  EXPECT_EQ(rig.cluster->storages_of("cold"), (Places{0}));
  EXPECT_EQ(rig.get("hot"), Reaction::kOk);
  const std::size_t tasks = rig.cluster->calls("create_copy_task");
  EXPECT_EQ(rig.replicate("hot"), Reaction::kOk);
  EXPECT_EQ(rig.cluster->calls("create_copy_task"), tasks) << "it had enough";
  EXPECT_EQ(rig.replicate("absent"), Reaction::kMiss);
}

TEST(MooncakeReplicas, SeveralCopiesAreAddedOneAfterTheOther) {
  FakeMooncakeOptions fake = storages(4);
  fake.questions_per_copy = 3;
  Rig rig(fake);
  rig.put("hot");
  EXPECT_EQ(rig.replicate("hot", 3), Reaction::kOk);
  EXPECT_EQ(rig.cluster->storages_of("hot").size(), 3u);
}

TEST(MooncakeReplicas, WithoutAnotherPlaceItBacksOff) {
  Rig rig(storages(1));
  rig.put("hot");
  EXPECT_EQ(rig.replicate("hot"), Reaction::kBackOff);
  EXPECT_EQ(rig.cluster->calls("create_copy_task"), 0u);
}

TEST(MooncakeReplicas, CopyThatTakesTooLongIsNotCounted) {
  FakeMooncakeOptions fake = storages(2);
  fake.questions_per_copy = 1'000'000;
  Rig rig(fake);
  rig.put("hot");
  EXPECT_EQ(rig.replicate("hot"), Reaction::kBackOff);
  const Deadline soon = Deadline::after(*rig.clock, milliseconds(300));
  EXPECT_EQ(rig.store->replicate({{"hot", 2}}, {.deadline = soon, .hold = nullptr})[0],
            Reaction::kBackOff);
}

TEST(MooncakeReplicas, CallWithoutTimeToAskIsNoSignOfAStoreThatIsDown) {
  Rig rig;
  rig.put("hot");
  const std::size_t questions = rig.cluster->calls("batch_replicas");
  const Deadline soon = Deadline::after(*rig.clock, milliseconds(100));
  EXPECT_EQ(rig.store->replicate({{"hot", 2}}, {.deadline = soon, .hold = nullptr})[0],
            Reaction::kBackOff);
  EXPECT_EQ(rig.cluster->calls("batch_replicas"), questions);
}

TEST(MooncakeReplicas, AdminPagesThatDoNotAnswerAreNamedOnceWithTheRemedy) {
  Rig rig;
  rig.put("hot");
  rig.cluster->set_admin_fails(true);
  EXPECT_EQ(rig.replicate("hot"), Reaction::kBackOff);
  rig.clock->advance(seconds(11));
  EXPECT_EQ(rig.replicate("hot"), Reaction::kBackOff);
  EXPECT_EQ(rig.logger->count("MC_REPLICATION_ADMIN"), 1u);
  rig.cluster->set_admin_fails(false);
  rig.clock->advance(seconds(11));
  EXPECT_EQ(rig.replicate("hot"), Reaction::kOk);
}

TEST(MooncakeReplicas, StorageProcessesAreAskedForOnceInAWhileAndAnewWhenOneIsGone) {
  Rig rig(storages(3));
  for (const char* key : {"a", "b", "c"}) rig.put(key);
  EXPECT_EQ(rig.replicate("a"), Reaction::kOk);
  EXPECT_EQ(rig.replicate("b"), Reaction::kOk);
  EXPECT_EQ(rig.cluster->calls("segments"), 1u);
  rig.cluster->expire_storage(1);
  EXPECT_EQ(rig.replicate("c"), Reaction::kBackOff) << "the place that was remembered is gone";
  EXPECT_EQ(rig.replicate("c"), Reaction::kOk);
  EXPECT_EQ(rig.cluster->calls("segments"), 2u);
  EXPECT_EQ(rig.cluster->storages_of("c"), (Places{0, 2}));
}

TEST(MooncakeReplicas, DeadMasterIsDown) {
  Rig rig;
  rig.put("hot");
  rig.cluster->fail_master(-900);
  EXPECT_EQ(rig.replicate("hot"), Reaction::kDown);
}

TEST(MooncakeReplicas, ClientThatKnowsNoReplicasKeepsOneCopy) {
  FakeMooncakeOptions fake = storages(2);
  fake.knows_replicas = false;
  Rig rig(fake);
  EXPECT_EQ(rig.store->capabilities().max_replicas, 1u);
  EXPECT_EQ(rig.put("hot", 2).reaction, Reaction::kOk);
  EXPECT_EQ(rig.cluster->storages_of("hot"), (Places{0}));
  EXPECT_EQ(rig.replicate("hot"), Reaction::kCallerBug);
}

TEST(MooncakeReplicas, LosingEitherStorageLeavesAReplicatedObjectReadable) {
  for (const std::size_t victim : {0u, 1u}) {
    Rig rig;
    rig.put("hot", 2);
    rig.cluster->kill_storage(victim);
    EXPECT_EQ(rig.get("hot"), Reaction::kOk) << "not forgotten yet: " << victim;
    rig.cluster->expire_storage(victim);
    EXPECT_EQ(rig.get("hot"), Reaction::kOk) << "forgotten: " << victim;
  }
}

TEST(MooncakeReplicas, OnlyTheFirstFailureIsWaitedFor) {
  Rig rig;
  rig.put("hot", 2);
  rig.put("other hot", 2);
  rig.put("cold");
  rig.cluster->kill_storage(0);
  EXPECT_EQ(rig.get("hot"), Reaction::kOk);
  const std::size_t ordinary = rig.cluster->calls("batch_get_into");
  EXPECT_EQ(rig.get("other hot"), Reaction::kOk);
  EXPECT_EQ(rig.get("hot"), Reaction::kOk);
  EXPECT_EQ(rig.cluster->calls("batch_get_into"), ordinary) << "the dead one was asked again";
  EXPECT_EQ(rig.get("cold"), Reaction::kStale);
  rig.cluster->expire_storage(0);
  rig.clock->advance(seconds(11));
  const std::size_t questions = rig.cluster->calls("batch_replicas");
  EXPECT_EQ(rig.get("hot"), Reaction::kOk);
  EXPECT_EQ(rig.cluster->calls("batch_replicas"), questions) << "nobody is suspect any more";
}

TEST(MooncakeReplicas, MixedBatchIsReadFromWhereEachObjectIs) {
  Rig rig;
  rig.put("hot", 2);
  rig.put("cold");
  rig.cluster->kill_storage(0);
  for (int round = 0; round < 2; ++round) {
    Bytes hot(100);
    Bytes cold(100);
    Bytes absent(100);
    const std::vector<GetResult> results = rig.store->get(
        {get_item("cold", cold), get_item("hot", hot), get_item("absent", absent)}, {});
    EXPECT_EQ(results[0].reaction, Reaction::kStale);
    EXPECT_EQ(results[1].reaction, Reaction::kOk);
    EXPECT_EQ(results[1].bytes, 100u);
    EXPECT_TRUE(hot == payload_for("hot", 100));
    EXPECT_EQ(results[2].reaction, Reaction::kMiss);
  }
}

TEST(MooncakeReplicas, CopyElsewhereThatDoesNotFitIsACallerBug) {
  Rig rig;
  rig.put("hot", 2);
  rig.cluster->kill_storage(0);
  Bytes small(99, std::byte{7});
  const GetResult result = rig.store->get({GetItem{"hot", small.data(), 98}}, {})[0];
  EXPECT_EQ(result.reaction, Reaction::kCallerBug);
  EXPECT_EQ(small.back(), std::byte{7});
}

TEST(MooncakeReplicas, BytesThatCameAfterTheLeaseAreStale) {
  Rig rig;
  rig.put("hot", 2);
  rig.cluster->kill_storage(0);
  rig.cluster->set_script([&rig](std::string_view method,
                                 const std::vector<std::string>&) -> std::optional<MooncakeReply> {
    if (method == "read_replica") rig.clock->advance(seconds(10));
    return std::nullopt;
  });
  EXPECT_EQ(rig.get("hot"), Reaction::kStale);
}

TEST(MooncakeReplicas, BufferOfAReadThatWasGivenUpStaysOutOfUse) {
  Rig rig;
  rig.put("hot", 2);
  rig.cluster->kill_storage(0);
  rig.cluster->set_script([&rig](std::string_view method,
                                 const std::vector<std::string>&) -> std::optional<MooncakeReply> {
    if (method != "read_replica") return std::nullopt;
    rig.clock->advance(ReplicaReader::kGivenUpAfter);
    return MooncakeReply{{-800}, {}};
  });
  const auto hold = std::make_shared<int>(0);
  Bytes buffer(100);
  EXPECT_EQ(rig.store->get({get_item("hot", buffer)}, {Deadline::never(), hold})[0].reaction,
            Reaction::kStale);
  EXPECT_EQ(hold.use_count(), 2) << "the transfer may still write into the buffer";
}

}  // namespace
}  // namespace kvc
