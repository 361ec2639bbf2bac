#include "store/mooncake/mooncake_store.h"

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <utility>

#include "os/thread.h"
#include "store/wrap/breaker_store.h"
#include "store/wrap/deadline_store.h"
#include "testing/collecting_logger.h"
#include "testing/conformance_fixture.h"
#include "testing/fake_mooncake_client.h"
#include "testing/sim_clock.h"

namespace kvc {
namespace {

using std::chrono::milliseconds;
using testlib::Bytes;
using testlib::CollectingLogger;
using testlib::FakeMooncakeClient;
using testlib::FakeMooncakeCluster;
using testlib::FakeMooncakeOptions;
using testlib::get_item;
using testlib::payload_for;
using testlib::put_item;
using testlib::SimClock;

constexpr std::size_t kMaxObject = std::size_t{32} << 20;

MooncakeStoreOptions store_options() {
  MooncakeStoreOptions options;
  options.instance = "test";
  options.max_object_bytes = kMaxObject;
  options.canary_bytes = 1000;
  return options;
}

std::shared_ptr<Store> open_fake(const MooncakeStoreOptions& options) {
  const auto cluster = std::make_shared<FakeMooncakeCluster>(FakeMooncakeOptions{});
  Result<std::shared_ptr<Store>> store = open_mooncake_store(
      std::make_shared<FakeMooncakeClient>(cluster), options, make_null_logger(), system_clock());
  EXPECT_TRUE(store.ok()) << store.status().to_string();
  return store.ok() ? *store : nullptr;
}

bool register_suites() {
  testlib::StoreConformance parameters;
  parameters.expected.atomic_publish = true;
  parameters.expected.put_tells_existing = false;
  parameters.expected.lease = std::chrono::seconds(10);
  parameters.expected.max_object_bytes = kMaxObject;
  parameters.expected.shared_between_processes = true;
  parameters.expected.max_replicas = MooncakeStoreOptions{}.max_replicas;
  parameters.looks_at_deadlines = true;
  parameters.capacity_bytes = FakeMooncakeOptions{}.segment_bytes;
  parameters.name = "MooncakeFake";
  parameters.open = [] { return open_fake(store_options()); };
  register_store_conformance(parameters);

  // Every batch in many small calls, and threads that wait for each other's.
  parameters.name = "MooncakeFakeInSmallCalls";
  parameters.open = [] {
    MooncakeStoreOptions options = store_options();
    options.max_call_buffers = 7;
    options.max_call_bytes = 100'000;
    options.max_call_keys = 5;
    options.budget = std::make_shared<TransferBudget>(TransferBudgetLimits{9, 200'000});
    return open_fake(options);
  };
  register_store_conformance(parameters);

  // As production stacks it.
  parameters.name = "BreakerOverDeadlineOverMooncakeFake";
  parameters.open = [] {
    ThreadPoolOptions pool;
    pool.threads = 4;
    const auto counters = std::make_shared<StoreCallCounters>();
    return make_breaker_store(make_deadline_store(open_fake(store_options()),
                                                  make_thread_pool(pool), system_clock(), counters),
                              system_clock(), make_null_logger(), counters);
  };
  return register_store_conformance(parameters);
}

const bool kAreRegistered = register_suites();

struct Rig {
  explicit Rig(MooncakeStoreOptions options = store_options(), FakeMooncakeOptions fake = {})
      : cluster(std::make_shared<FakeMooncakeCluster>(std::move(fake))),
        client(std::make_shared<FakeMooncakeClient>(cluster)) {
    Result<std::shared_ptr<Store>> opened =
        open_mooncake_store(client, std::move(options), logger, clock);
    EXPECT_TRUE(opened.ok()) << opened.status().to_string();
    store = *opened;
    calls_of_the_canary = cluster->calls("batch_put_from");
  }

  PutResult put(const std::string& key, std::size_t bytes = 100) {
    const Bytes payload = payload_for(key, bytes);
    return store->put({put_item(key, payload)}, {})[0];
  }
  GetResult get(const std::string& key, std::size_t capacity = 100) {
    buffer.assign(capacity, std::byte{0});
    return store->get({get_item(key, buffer)}, {})[0];
  }
  Reaction exists(const std::string& key) { return store->exists({key}, {})[0]; }
  Reaction remove(const std::string& key) { return store->remove({key}, {})[0]; }
  /// Calls of batch_put_from since the store was opened.
  std::size_t puts() const { return cluster->calls("batch_put_from") - calls_of_the_canary; }

  void answer(std::string method, const MooncakeReply& reply) {
    cluster->set_script([method = std::move(method), reply](
                            std::string_view called,
                            const std::vector<std::string>&) -> std::optional<MooncakeReply> {
      if (called != method) return std::nullopt;
      return reply;
    });
  }

  std::shared_ptr<SimClock> clock = std::make_shared<SimClock>();
  std::shared_ptr<CollectingLogger> logger = std::make_shared<CollectingLogger>();
  std::shared_ptr<FakeMooncakeCluster> cluster;
  std::shared_ptr<FakeMooncakeClient> client;
  std::shared_ptr<Store> store;
  std::size_t calls_of_the_canary = 0;
  Bytes buffer;
};

TEST(MooncakeStore, PutOfAnExistingKeyAnswersOkAndKeepsTheOldBytes) {
  Rig rig;
  const Bytes first = payload_for("first", 100);
  const Bytes second = payload_for("second", 50);
  rig.store->put({put_item("key", first)}, {});
  const PutResult result = rig.store->put({put_item("key", second)}, {})[0];
  EXPECT_EQ(result.reaction, Reaction::kOk);
  EXPECT_EQ(result.effect, PutEffect::kUnknown) << "the store does not tell";
  rig.get("key");
  EXPECT_TRUE(rig.buffer == first);
}

TEST(MooncakeStore, HalfWrittenKeyTakesPutsButIsAMissUntilItIsDiscarded) {
  Rig rig;
  rig.cluster->begin_foreign_put("key");
  EXPECT_EQ(rig.put("key").reaction, Reaction::kOk);
  EXPECT_EQ(rig.exists("key"), Reaction::kMiss);
  EXPECT_EQ(rig.get("key").reaction, Reaction::kMiss);
  EXPECT_EQ(rig.remove("key"), Reaction::kMiss);
  rig.cluster->discard_foreign_put("key");
  EXPECT_EQ(rig.put("key").reaction, Reaction::kOk);
  EXPECT_EQ(rig.get("key").bytes, 100u);
}

TEST(MooncakeStore, OverlargeObjectNeverReachesTheStoreThatWouldEvictForIt) {
  MooncakeStoreOptions options = store_options();
  options.max_object_bytes = 1000;
  FakeMooncakeOptions fake;
  fake.segment_bytes = 10'000;
  Rig rig(options, fake);
  rig.put("small", 1000);
  EXPECT_EQ(rig.put("large", 1001).reaction, Reaction::kCallerBug);
  EXPECT_EQ(rig.puts(), 1u);
  EXPECT_EQ(rig.cluster->evicted(), 0u);
  EXPECT_EQ(rig.store->capabilities().max_object_bytes, 1000u);
}

TEST(MooncakeStore, FullStorePausesPutsAndKeepsServingReads) {
  Rig rig;
  rig.put("before");
  rig.answer("batch_put_from", {{-200}, {}});
  const PutResult refused = rig.put("a");
  EXPECT_EQ(refused.reaction, Reaction::kBackOff);
  EXPECT_EQ(refused.effect, PutEffect::kNone);
  EXPECT_EQ(rig.puts(), 2u);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(rig.put("b").reaction, Reaction::kBackOff);
  EXPECT_EQ(rig.puts(), 2u) << "asked again during the pause";
  EXPECT_EQ(rig.get("before").reaction, Reaction::kOk);
  rig.clock->advance(milliseconds(100));
  EXPECT_EQ(rig.put("c").reaction, Reaction::kBackOff);
  EXPECT_EQ(rig.puts(), 3u);
  rig.clock->advance(milliseconds(199));
  rig.put("d");
  EXPECT_EQ(rig.puts(), 3u) << "the second pause is twice as long";
  rig.clock->advance(milliseconds(1));
  rig.cluster->set_script(nullptr);
  EXPECT_EQ(rig.put("e").reaction, Reaction::kOk);
  EXPECT_EQ(rig.put("f").reaction, Reaction::kOk);
  EXPECT_EQ(rig.logger->count("no room"), 1u);
  EXPECT_EQ(rig.logger->count("has room again"), 1u);
}

TEST(MooncakeStore, RefusalStopsTheRestOfTheBatchAtOnce) {
  MooncakeStoreOptions options = store_options();
  options.max_call_buffers = 2;
  Rig rig(options);
  rig.answer("batch_put_from", {{0, -200}, {}});
  const Bytes payload = payload_for("x", 10);
  const auto results = rig.store->put({put_item("a", payload), put_item("b", payload),
                                       put_item("c", payload), put_item("d", payload)},
                                      {});
  EXPECT_EQ(rig.puts(), 1u);
  EXPECT_EQ(results[0].reaction, Reaction::kOk);
  for (std::size_t i = 1; i < results.size(); ++i) {
    EXPECT_EQ(results[i].reaction, Reaction::kBackOff) << i;
    EXPECT_EQ(results[i].effect, PutEffect::kNone) << i;
  }
}

TEST(MooncakeStore, LargeBatchesAreCutAtBuffersBytesAndKeys) {
  MooncakeStoreOptions options = store_options();
  options.max_call_buffers = 10;
  options.max_call_bytes = 1000;
  options.max_call_keys = 16;
  Rig rig(options);
  const Bytes payload = payload_for("x", 300);
  std::vector<PutItem> puts;
  std::vector<std::string> keys;
  puts.reserve(50);
  keys.reserve(50);
  for (int i = 0; i < 50; ++i) keys.push_back(std::to_string(i));
  for (const std::string& key : keys) puts.push_back({key, payload.data(), 300});
  rig.store->put(puts, {});
  EXPECT_EQ(rig.cluster->largest_call("batch_put_from"), 3u);
  EXPECT_EQ(rig.puts(), 17u);
  for (PutItem& item : puts) item = {item.key + "small", payload.data(), 1};
  rig.store->put(puts, {});
  EXPECT_EQ(rig.cluster->largest_call("batch_put_from"), 10u);
  EXPECT_EQ(rig.puts(), 22u);
  EXPECT_EQ(rig.store->exists(keys, {}), std::vector<Reaction>(50, Reaction::kOk));
  EXPECT_EQ(rig.cluster->largest_call("batch_is_exist"), 16u);
}

TEST(MooncakeStore, ObjectsThatTheClientSlicesCountAsSeveralBuffers) {
  MooncakeStoreOptions options = store_options();
  options.max_call_buffers = 3;
  Rig rig(options);
  Bytes memory(17u << 20);
  rig.store->get({GetItem{"a", memory.data(), 17u << 20}, GetItem{"b", memory.data(), 17u << 20},
                  GetItem{"c", memory.data(), 100}},
                 {});
  // 2 + 2 is above 3; 2 + 1 is not.
  EXPECT_EQ(rig.cluster->calls("batch_get_into"), 1u + 2u);
  EXPECT_EQ(rig.cluster->largest_call("batch_get_into"), 2u);
}

TEST(MooncakeStore, AllCallsOfTheProcessTogetherStayWithinTheBudget) {
  const auto budget = std::make_shared<TransferBudget>(TransferBudgetLimits{100, 1 << 20});
  const auto cluster = std::make_shared<FakeMooncakeCluster>(FakeMooncakeOptions{});
  std::vector<Thread> threads;
  std::atomic<int> failed{0};
  for (int who = 0; who < 4; ++who) {
    MooncakeStoreOptions options = store_options();
    options.instance += std::to_string(who);
    options.budget = budget;
    options.max_call_buffers = 70;
    auto store = open_mooncake_store(std::make_shared<FakeMooncakeClient>(cluster), options,
                                     make_null_logger(), system_clock());
    ASSERT_TRUE(store.ok());
    Result<Thread> thread = Thread::start("store", [&, who, mine = *store] {
      const Bytes payload = payload_for("x", 200);
      std::vector<PutItem> items;
      items.reserve(500);
      for (int i = 0; i < 500; ++i) {
        items.push_back({std::to_string(who) + "/" + std::to_string(i), payload.data(), 200});
      }
      for (const PutResult& result : mine->put(items, {})) {
        if (result.reaction != Reaction::kOk) failed.fetch_add(1);
      }
    });
    ASSERT_TRUE(thread.ok());
    threads.push_back(std::move(thread).value());
  }
  for (Thread& thread : threads) thread.join();
  EXPECT_EQ(failed.load(), 0);
  EXPECT_GT(cluster->most_buffers_in_flight(), 1u);
  EXPECT_LE(cluster->most_buffers_in_flight(), 100u);
}

TEST(MooncakeStore, CallThatFindsNoRoomInTheBudgetByItsDeadlineIsNotMade) {
  MooncakeStoreOptions options = store_options();
  options.budget = std::make_shared<TransferBudget>(TransferBudgetLimits{10, 1000});
  Rig rig(options);
  const auto taken = options.budget->acquire(10, 10, Deadline::never(), *rig.clock);
  rig.clock->set_tick(milliseconds(10));
  const Bytes payload = payload_for("x", 10);
  const CallContext context{Deadline::after(*rig.clock, std::chrono::seconds(1)), nullptr};
  const PutResult result = rig.store->put({put_item("key", payload)}, context)[0];
  EXPECT_EQ(result.reaction, Reaction::kDown);
  EXPECT_EQ(result.effect, PutEffect::kNone);
  EXPECT_EQ(rig.puts(), 0u);
}

TEST(MooncakeStore, NoPartOfABatchBeginsAfterTheDeadline) {
  MooncakeStoreOptions options = store_options();
  options.max_call_buffers = 1;
  options.max_call_keys = 1;
  Rig rig(options);
  rig.client->during_call = [&] { rig.clock->advance(milliseconds(600)); };
  const auto context = [&] {
    return CallContext{Deadline::after(*rig.clock, std::chrono::seconds(1)), nullptr};
  };
  const Bytes payload = payload_for("x", 10);
  const auto puts = rig.store->put(
      {put_item("a", payload), put_item("b", payload), put_item("c", payload)}, context());
  EXPECT_EQ(puts[1].reaction, Reaction::kOk);
  EXPECT_EQ(puts[2].reaction, Reaction::kDown);
  EXPECT_EQ(puts[2].effect, PutEffect::kNone);
  EXPECT_EQ(rig.store->exists({"a", "b", "c"}, context()),
            (std::vector<Reaction>{Reaction::kOk, Reaction::kOk, Reaction::kDown}));
}

TEST(MooncakeStore, DeadMasterIsAskedOncePerBatch) {
  MooncakeStoreOptions options = store_options();
  options.max_call_buffers = 1;
  options.max_call_keys = 1;
  Rig rig(options);
  rig.put("a");
  const std::size_t gets = rig.cluster->calls("batch_get_into");
  const std::size_t probes = rig.cluster->calls("batch_is_exist");
  for (const std::int64_t code : {-900, -901}) {
    rig.cluster->fail_master(code);
    const Bytes payload = payload_for("x", 10);
    const auto puts = rig.store->put(
        {put_item("b", payload), put_item("b", payload), put_item("c", payload)}, {});
    for (const PutResult& result : puts) EXPECT_EQ(result.reaction, Reaction::kDown);
    EXPECT_EQ(puts[0].effect, PutEffect::kUnknown) << "the reply may have been lost";
    EXPECT_EQ(puts[2].effect, PutEffect::kNone);
    EXPECT_EQ(rig.store->exists({"a", "b"}, {}), std::vector<Reaction>(2, Reaction::kDown));
    Bytes buffers[2] = {Bytes(10), Bytes(10)};
    for (const GetResult& result :
         rig.store->get({get_item("a", buffers[0]), get_item("b", buffers[1])}, {})) {
      EXPECT_EQ(result.reaction, Reaction::kDown);
    }
  }
  EXPECT_EQ(rig.puts(), 1u + 2u);
  EXPECT_EQ(rig.cluster->calls("batch_get_into"), gets + 2);
  EXPECT_EQ(rig.cluster->calls("batch_is_exist"), probes + 2);
  rig.cluster->restore_master();
  EXPECT_EQ(rig.exists("a"), Reaction::kOk);
}

TEST(MooncakeStore, DeadStorageIsStaleUntilItExpiresThenAMiss) {
  Rig rig;
  rig.put("key");
  rig.cluster->kill_storage();
  EXPECT_EQ(rig.exists("key"), Reaction::kOk) << "the master does not know yet";
  EXPECT_EQ(rig.get("key").reaction, Reaction::kStale);
  EXPECT_EQ(rig.get("key").bytes, 0u);
  EXPECT_EQ(rig.put("other").reaction, Reaction::kStale);
  rig.cluster->expire_storage();
  EXPECT_EQ(rig.exists("key"), Reaction::kMiss);
  EXPECT_EQ(rig.get("key").reaction, Reaction::kMiss);
  EXPECT_EQ(rig.put("other").reaction, Reaction::kBackOff);
  rig.cluster->start_storage();
  rig.clock->advance(milliseconds(100));
  EXPECT_EQ(rig.put("key").reaction, Reaction::kOk);
  EXPECT_EQ(rig.get("key").reaction, Reaction::kOk);
}

TEST(MooncakeStore, AnswerOfAWrongLengthFailsTheWholeCall) {
  for (const MooncakeReply& reply :
       {MooncakeReply{{}, {}}, MooncakeReply{{100}, {}}, MooncakeReply{{100, 100, 100}, {}},
        MooncakeReply{{100, 100}, "TypeError: an answer that is no list of numbers"}}) {
    Rig rig;
    Bytes buffers[2] = {Bytes(100), Bytes(100)};
    rig.answer("batch_get_into", reply);
    for (const GetResult& result :
         rig.store->get({get_item("a", buffers[0]), get_item("b", buffers[1])}, {})) {
      EXPECT_EQ(result.reaction, Reaction::kDown);
      EXPECT_EQ(result.bytes, 0u);
    }
    rig.answer("batch_is_exist", reply);
    EXPECT_EQ(rig.store->exists({"a", "b"}, {}), std::vector<Reaction>(2, Reaction::kDown));
    rig.answer("batch_remove", reply);
    EXPECT_EQ(rig.store->remove({"a", "b"}, {}), std::vector<Reaction>(2, Reaction::kDown));
    rig.answer("batch_put_from", reply);
    for (const PutResult& result :
         rig.store->put({put_item("a", buffers[0]), put_item("b", buffers[1])}, {})) {
      EXPECT_EQ(result.reaction, Reaction::kDown);
      EXPECT_EQ(result.effect, PutEffect::kUnknown);
    }
    EXPECT_GE(rig.logger->count("failed as a whole"), 1u);
    EXPECT_LE(rig.logger->count("failed as a whole"), 1u) << "each reason is logged once";
  }
}

TEST(MooncakeStore, UnknownCodeIsAFailedReadAndLoggedOnce) {
  Rig rig;
  for (const char* method : {"batch_get_into", "batch_is_exist", "batch_remove"}) {
    rig.answer(method, {{-12345}, {}});
    const Reaction reaction = std::string_view(method) == "batch_get_into"   ? rig.get("a").reaction
                              : std::string_view(method) == "batch_is_exist" ? rig.exists("a")
                                                                             : rig.remove("a");
    EXPECT_EQ(reaction, Reaction::kStale) << method;
  }
  EXPECT_EQ(rig.logger->count("-12345"), 1u);
}

TEST(MooncakeStore, ImpossibleSizesAreFailedReads) {
  Rig rig;
  for (const std::int64_t bytes : {0, 101, 1 << 30}) {
    rig.answer("batch_get_into", {{bytes}, {}});
    const GetResult result = rig.get("a", 100);
    EXPECT_EQ(result.reaction, Reaction::kStale) << bytes;
    EXPECT_EQ(result.bytes, 0u);
  }
}

TEST(MooncakeStore, EachKeyOccursOnceInACall) {
  Rig rig;
  std::size_t repeats = 0;
  rig.cluster->set_script(
      [&](std::string_view method,
          const std::vector<std::string>& keys) -> std::optional<MooncakeReply> {
        if (method == "batch_put_from" || method == "batch_get_into") {
          repeats += keys.size() - std::set<std::string>(keys.begin(), keys.end()).size();
        }
        return std::nullopt;
      });
  const Bytes payload = payload_for("x", 100);
  rig.store->put({put_item("a", payload), put_item("a", payload), put_item("b", payload),
                  put_item("a", payload)},
                 {});
  EXPECT_EQ(rig.puts(), 1u) << "what is stored need not be put again";
  const std::size_t gets = rig.cluster->calls("batch_get_into");
  Bytes buffers[3] = {Bytes(100), Bytes(100), Bytes(200)};
  rig.store->get({get_item("a", buffers[0]), get_item("a", buffers[1]), get_item("a", buffers[2])},
                 {});
  EXPECT_EQ(rig.cluster->calls("batch_get_into"), gets + 1) << "repeats are copied";
  EXPECT_EQ(repeats, 0u);
}

TEST(MooncakeStore, RepeatOfARefusedPutIsTriedOnItsOwn) {
  Rig rig;
  rig.cluster->set_script([&](std::string_view method,
                              const std::vector<std::string>&) -> std::optional<MooncakeReply> {
    if (method != "batch_put_from" || rig.puts() > 1) return std::nullopt;
    return MooncakeReply{{-600}, {}};
  });
  const Bytes payload = payload_for("x", 100);
  const auto results = rig.store->put({put_item("a", payload), put_item("a", payload)}, {});
  EXPECT_EQ(results[0].reaction, Reaction::kCallerBug);
  EXPECT_EQ(results[1].reaction, Reaction::kOk);
  EXPECT_EQ(rig.puts(), 2u);
}

TEST(MooncakeStore, MalformedItemsNeverReachTheClient) {
  Rig rig;
  const std::size_t gets = rig.cluster->calls("batch_get_into");
  const std::size_t probes = rig.cluster->calls("batch_is_exist");
  Bytes buffer(10);
  rig.store->put({put_item("", buffer), PutItem{"a", nullptr, 1}, PutItem{"a", buffer.data(), 0}},
                 {});
  rig.store->get({get_item("", buffer), GetItem{"a", nullptr, 1}, GetItem{"a", buffer.data(), 0}},
                 {});
  rig.store->exists({"", ""}, {});
  EXPECT_EQ(rig.puts(), 0u);
  EXPECT_EQ(rig.cluster->calls("batch_get_into"), gets);
  EXPECT_EQ(rig.cluster->calls("batch_is_exist"), probes);
}

TEST(MooncakeStore, BuffersOfATransferThatTheClientGaveUpAreNeverReleased) {
  Rig rig;
  std::vector<std::byte> bytes(100, std::byte{1});
  for (const bool stalls : {false, true}) {
    rig.client->during_call = [&] {
      if (stalls) rig.clock->advance(std::chrono::seconds(60));
    };
    auto hold = std::make_shared<int>(0);
    const std::weak_ptr<int> held = hold;
    (void)rig.store->put({{stalls ? "b" : "a", bytes.data(), bytes.size()}},
                         {.deadline = Deadline::never(), .hold = std::move(hold)});
    EXPECT_EQ(held.expired(), !stalls);
    hold = std::make_shared<int>(0);
    const std::weak_ptr<int> held_by_get = hold;
    (void)rig.store->get({{"a", bytes.data(), bytes.size()}},
                         {.deadline = Deadline::never(), .hold = std::move(hold)});
    EXPECT_EQ(held_by_get.expired(), !stalls);
  }
}

/// A call of another thread that is inside the client.
class CallInside {
 public:
  explicit CallInside(Rig& rig) {
    rig.client->during_call = [this] {
      inside_.store(true);
      while (!go_.load()) {
      }
    };
    caller_ = Thread::start("caller", [&rig] { rig.exists("key"); });
    EXPECT_TRUE(caller_.ok());
    while (caller_.ok() && !inside_.load()) {
    }
  }
  /// ... and wait until it is over. REQUIRES: called once.
  void let_go() {
    go_.store(true);
    caller_->join();
  }

 private:
  std::atomic<bool> inside_{false};
  std::atomic<bool> go_{false};
  Result<Thread> caller_ = Status(Code::kUnavailable, "not started");
};

TEST(MooncakeStore, CloseWaitsForCallsAndNoCallFollows) {
  Rig rig;
  CallInside call(rig);
  Result<Thread> closer = Thread::start("closer", [&] { rig.store->close(Deadline::never()); });
  ASSERT_TRUE(closer.ok());
  // From some point on calls are refused although the first is still inside.
  const std::size_t probes = rig.cluster->calls("batch_remove");
  call.let_go();
  closer->join();
  EXPECT_TRUE(rig.client->is_closed());
  EXPECT_EQ(rig.remove("key"), Reaction::kDown);
  EXPECT_EQ(rig.cluster->calls("batch_remove"), probes);
}

TEST(MooncakeStore, CloseThatGivesUpLeavesClosingToTheLastCall) {
  Rig rig;
  CallInside call(rig);
  rig.clock->set_tick(milliseconds(10));
  rig.store->close(Deadline::after(*rig.clock, std::chrono::seconds(1)));
  EXPECT_FALSE(rig.client->is_closed()) << "closed under a call";
  EXPECT_EQ(rig.remove("key"), Reaction::kDown);
  call.let_go();
  EXPECT_TRUE(rig.client->is_closed());
  rig.store->close(Deadline::never());
}

TEST(MooncakeStore, DroppingTheStoreClosesTheClientOnce) {
  Rig rig;
  rig.store.reset();
  EXPECT_TRUE(rig.client->is_closed());
}

TEST(MooncakeStore, FailedRegistrationIsRolledBackAndNamed) {
  Rig rig;
  Bytes memory(100);
  rig.answer("register_buffer", {{-600}, {}});
  const Status status = rig.store->register_memory(memory);
  EXPECT_EQ(status.code(), Code::kInvalid);
  EXPECT_NE(status.message().find("registering 100 bytes"), std::string::npos);
  rig.answer("register_buffer", {{}, "MemoryError"});
  EXPECT_EQ(rig.store->register_memory(memory).code(), Code::kUnavailable);
  rig.cluster->set_script(nullptr);
  EXPECT_TRUE(rig.store->register_memory(memory).ok());
  EXPECT_TRUE(rig.store->unregister_memory(memory).ok());
}

TEST(MooncakeStore, WorksWhereMemoryMustBeRegistered) {
  FakeMooncakeOptions rdma;
  rdma.requires_registration = true;
  Rig rig(store_options(), rdma);
  Bytes memory(400);
  ASSERT_TRUE(rig.store->register_memory(memory).ok());
  rig.store->put({PutItem{"a", memory.data(), 100}}, {});
  const auto results = rig.store->get(
      {GetItem{"a", memory.data() + 100, 100}, GetItem{"a", memory.data() + 200, 100}}, {});
  EXPECT_EQ(results[0].bytes, 100u);
  EXPECT_EQ(results[1].bytes, 100u);
  EXPECT_TRUE(rig.store->unregister_memory(memory).ok());
}

TEST(MooncakeStore, FailedCanaryClosesTheClientAndNoStoreOpens) {
  FakeMooncakeOptions empty;
  empty.segment_bytes = 0;
  const auto client =
      std::make_shared<FakeMooncakeClient>(std::make_shared<FakeMooncakeCluster>(empty));
  const auto clock = std::make_shared<SimClock>(milliseconds(10));
  const auto store = open_mooncake_store(client, store_options(), make_null_logger(), clock);
  EXPECT_EQ(store.status().code(), Code::kExhausted);
  EXPECT_TRUE(client->is_closed());
}

TEST(MooncakeStore, OptionsThatCannotWorkAreRefused) {
  const auto client = std::make_shared<FakeMooncakeClient>(
      std::make_shared<FakeMooncakeCluster>(FakeMooncakeOptions{}));
  MooncakeStoreOptions nameless = store_options();
  nameless.instance.clear();
  MooncakeStoreOptions no_canary = store_options();
  no_canary.canary_bytes = 0;
  for (const MooncakeStoreOptions& options : {nameless, no_canary}) {
    EXPECT_EQ(
        open_mooncake_store(client, options, make_null_logger(), system_clock()).status().code(),
        Code::kInvalid);
  }
}

TEST(MooncakeStore, StatesItsCapabilities) {
  Rig rig;
  const StoreCapabilities capabilities = rig.store->capabilities();
  EXPECT_TRUE(capabilities.atomic_publish);
  EXPECT_FALSE(capabilities.put_tells_existing);
  EXPECT_EQ(capabilities.lease, std::chrono::seconds(10));
  EXPECT_TRUE(capabilities.shared_between_processes);
}

}  // namespace
}  // namespace kvc
