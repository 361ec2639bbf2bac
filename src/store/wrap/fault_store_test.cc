#include "store/wrap/fault_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "store/memory/memory_store.h"
#include "testing/conformance_fixture.h"
#include "testing/gated_store.h"
#include "testing/seed.h"

namespace kvc {
namespace {

using testlib::Bytes;
using testlib::get_item;
using testlib::payload_for;
using testlib::put_item;

constexpr std::size_t kCapacity = std::size_t{64} << 20;

MemoryStoreOptions memory_options() {
  MemoryStoreOptions options;
  options.capacity_bytes = kCapacity;
  return options;
}

testlib::StoreConformance conformance() {
  testlib::StoreConformance parameters;
  parameters.name = "FaultWithoutRules";
  parameters.open = [] { return make_fault_store(make_memory_store(memory_options()), {}); };
  parameters.expected.atomic_publish = true;
  parameters.expected.put_tells_existing = true;
  parameters.expected.max_object_bytes = kCapacity;
  parameters.capacity_bytes = kCapacity;
  return parameters;
}

const bool kIsRegistered = register_store_conformance(conformance());

std::shared_ptr<FaultStore> faulty(const std::shared_ptr<Store>& inner, FaultRule rule,
                                   std::uint64_t seed = 1) {
  FaultStoreOptions options;
  options.seed = seed;
  options.rules = {std::move(rule)};
  return make_fault_store(inner, std::move(options));
}

struct Rig {
  std::shared_ptr<MemoryStore> memory = make_memory_store({});
  Bytes payload = payload_for("object", 1000);
  Bytes buffer = Bytes(1000);

  void put_directly(const std::string& key) { memory->put({put_item(key, payload)}, {}); }
  GetResult get(Store& store, const std::string& key) {
    return store.get({get_item(key, buffer)}, {})[0];
  }
  std::size_t bits_that_differ() const {
    std::size_t bits = 0;
    for (std::size_t i = 0; i < payload.size(); ++i) {
      bits += static_cast<std::size_t>(
          __builtin_popcount(std::to_integer<unsigned>(payload[i] ^ buffer[i])));
    }
    return bits;
  }
};

TEST(FaultStore, ErrorIsAnsweredWithoutAskingTheInnerStore) {
  Rig rig;
  const auto store = faulty(
      rig.memory, {.kind = FaultKind::kError, .key_part = "bad", .reaction = Reaction::kBackOff});
  const auto results =
      store->put({put_item("good", rig.payload), put_item("bad", rig.payload)}, {});
  EXPECT_EQ(results[0].effect, PutEffect::kStored);
  EXPECT_EQ(results[1].reaction, Reaction::kBackOff);
  EXPECT_EQ(results[1].effect, PutEffect::kNone);
  EXPECT_EQ(rig.memory->keys(), (std::vector<std::string>{"good"}));
  EXPECT_EQ(store->exists({"bad", "good"}, {}),
            (std::vector<Reaction>{Reaction::kBackOff, Reaction::kOk}));
  EXPECT_EQ(store->fired(), (std::vector<std::uint64_t>{2}));
}

TEST(FaultStore, LostReplyHasTakenEffect) {
  Rig rig;
  const auto store = faulty(rig.memory, {.kind = FaultKind::kLoseReply});
  const PutResult result = store->put({put_item("key", rig.payload)}, {})[0];
  EXPECT_EQ(result.reaction, Reaction::kDown);
  EXPECT_EQ(result.effect, PutEffect::kUnknown);
  EXPECT_EQ(rig.memory->keys(), (std::vector<std::string>{"key"}));
  EXPECT_EQ(rig.get(*store, "key").reaction, Reaction::kDown);
  EXPECT_EQ(store->remove({"key"}, {})[0], Reaction::kDown);
  EXPECT_TRUE(rig.memory->keys().empty());
}

TEST(FaultStore, CorruptGetFlipsOneBitOfWhatIsRead) {
  Rig rig;
  rig.put_directly("key");
  const auto store = faulty(rig.memory, {.kind = FaultKind::kCorrupt, .op = StoreOp::kGet});
  EXPECT_EQ(rig.get(*store, "key").reaction, Reaction::kOk);
  EXPECT_EQ(rig.bits_that_differ(), 1u);
  EXPECT_EQ(rig.get(*rig.memory, "key").reaction, Reaction::kOk);
  EXPECT_EQ(rig.bits_that_differ(), 0u);
}

TEST(FaultStore, CorruptPutFlipsOneBitOfWhatIsStoredAndLeavesTheSourceAlone) {
  Rig rig;
  const auto store = faulty(rig.memory, {.kind = FaultKind::kCorrupt, .op = StoreOp::kPut});
  const auto hold = std::make_shared<int>(0);
  store->put({put_item("key", rig.payload)}, {Deadline::never(), hold});
  EXPECT_EQ(hold.use_count(), 1);
  EXPECT_TRUE(rig.payload == payload_for("object", 1000));
  rig.get(*rig.memory, "key");
  EXPECT_EQ(rig.bits_that_differ(), 1u);
}

TEST(FaultStore, ShortenedObjectsLackTheirEnd) {
  Rig rig;
  rig.put_directly("key");
  const auto reader = faulty(rig.memory, {.kind = FaultKind::kShorten, .op = StoreOp::kGet});
  const GetResult read = rig.get(*reader, "key");
  EXPECT_EQ(read.reaction, Reaction::kOk);
  EXPECT_LT(read.bytes, 1000u);
  const auto writer = faulty(rig.memory, {.kind = FaultKind::kShorten, .op = StoreOp::kPut});
  writer->put({put_item("short", rig.payload)}, {});
  const std::size_t stored = rig.get(*rig.memory, "short").bytes;
  EXPECT_GT(stored, 0u);
  EXPECT_LT(stored, 1000u);
  EXPECT_TRUE(std::equal(rig.buffer.begin(),
                         rig.buffer.begin() + static_cast<std::ptrdiff_t>(stored),
                         rig.payload.begin()));
}

TEST(FaultStore, SkipAndLimitChooseWhichOnesFire) {
  Rig rig;
  const auto store = faulty(
      rig.memory, {.kind = FaultKind::kError, .op = StoreOp::kExists, .skip = 2, .limit = 1});
  std::vector<Reaction> seen;
  seen.reserve(5);
  for (int i = 0; i < 5; ++i) seen.push_back(store->exists({"key"}, {})[0]);
  EXPECT_EQ(seen, (std::vector<Reaction>{Reaction::kMiss, Reaction::kMiss, Reaction::kDown,
                                         Reaction::kMiss, Reaction::kMiss}));
}

TEST(FaultStore, FirstRuleThatFiresDecides) {
  Rig rig;
  FaultStoreOptions options;
  options.rules = {
      {.kind = FaultKind::kError, .reaction = Reaction::kStale, .limit = 1},
      {.kind = FaultKind::kError, .reaction = Reaction::kBackOff},
  };
  const auto store = make_fault_store(rig.memory, options);
  EXPECT_EQ(store->exists({"a", "b"}, {}),
            (std::vector<Reaction>{Reaction::kStale, Reaction::kBackOff}));
  EXPECT_EQ(store->fired(), (std::vector<std::uint64_t>{1, 1}));
}

TEST(FaultStore, CallsTheHookForEveryItemBeforeTheInnerStore) {
  const auto gate = std::make_shared<testlib::GatedStore>(make_memory_store({}));
  std::vector<std::string> seen;
  FaultStoreOptions options;
  options.before_item = [&](StoreOp op, const std::string& key) {
    EXPECT_TRUE(gate->calls().empty());
    seen.push_back(std::string(to_string(op)) + " " + key);
  };
  make_fault_store(gate, options)->remove({"a", "b"}, {});
  EXPECT_EQ(seen, (std::vector<std::string>{"remove a", "remove b"}));
  EXPECT_EQ(gate->calls().size(), 1u);
}

/// Which of 300 keys fail, asked for in the order of `keys`, in batches of `batch`.
std::vector<std::string> failures(std::uint64_t seed, std::vector<std::string> keys,
                                  std::size_t batch) {
  const auto store =
      faulty(make_memory_store({}), {.kind = FaultKind::kError, .chance = 100'000}, seed);
  std::vector<std::string> failed;
  for (std::size_t from = 0; from < keys.size(); from += batch) {
    const std::vector<std::string> part(
        keys.begin() + static_cast<std::ptrdiff_t>(from),
        keys.begin() + static_cast<std::ptrdiff_t>(std::min(from + batch, keys.size())));
    const std::vector<Reaction> reactions = store->exists(part, {});
    for (std::size_t i = 0; i < part.size(); ++i) {
      if (reactions[i] == Reaction::kDown) failed.push_back(part[i]);
    }
  }
  std::sort(failed.begin(), failed.end());
  return failed;
}

TEST(FaultStore, SameSeedGivesTheSameFaultsInAnyOrderAndBatching) {
  const std::uint64_t seed = testlib::test_seed(7);
  std::vector<std::string> keys;
  keys.reserve(300);
  for (int i = 0; i < 300; ++i) keys.push_back("key" + std::to_string(i));
  const std::vector<std::string> failed = failures(seed, keys, 300);
  EXPECT_GT(failed.size(), 5u);
  EXPECT_LT(failed.size(), 90u);
  std::reverse(keys.begin(), keys.end());
  EXPECT_EQ(failures(seed, keys, 7), failed);
  EXPECT_NE(failures(seed + 1, keys, 7), failed);
}

TEST(FaultStore, OperationsDrawApart) {
  Rig rig;
  rig.put_directly("key");
  const auto store = faulty(rig.memory, {.chance = 500'000});
  std::vector<bool> probes;
  std::vector<bool> replicas;
  for (int i = 0; i < 66; ++i) {
    probes.push_back(store->exists({"key"}, {})[0] == Reaction::kDown);
    replicas.push_back(store->replicate({{"key", 1}}, {})[0] == Reaction::kDown);
  }
  for (const std::size_t apart : {0u, 1u, 2u}) {
    int same = 0;
    for (std::size_t i = 0; i < 64; ++i) same += probes[i + apart] == replicas[i + 1] ? 1 : 0;
    EXPECT_LT(same, 64) << apart;
  }
}

TEST(FaultStore, RepeatedCallsOnOneKeyDrawAnew) {
  Rig rig;
  const auto store = faulty(rig.memory, {.kind = FaultKind::kError, .chance = 500'000});
  int down = 0;
  for (int i = 0; i < 200; ++i) down += store->exists({"key"}, {})[0] == Reaction::kDown ? 1 : 0;
  EXPECT_GT(down, 50);
  EXPECT_LT(down, 150);
}

}  // namespace
}  // namespace kvc
