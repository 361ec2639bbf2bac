#include "store/memory/memory_store.h"

#include <gtest/gtest.h>

#include <utility>

#include "testing/conformance_fixture.h"

namespace kvc {
namespace {

using testlib::Bytes;
using testlib::payload_for;
using testlib::put_item;

constexpr std::size_t kCapacity = std::size_t{64} << 20;

testlib::StoreConformance conformance(std::string name, bool atomic) {
  testlib::StoreConformance parameters;
  parameters.name = std::move(name);
  parameters.open = [atomic] {
    MemoryStoreOptions options;
    options.capacity_bytes = kCapacity;
    options.atomic_publish = atomic;
    return make_memory_store(std::move(options));
  };
  parameters.expected.atomic_publish = atomic;
  parameters.expected.put_tells_existing = true;
  parameters.expected.max_object_bytes = kCapacity;
  parameters.capacity_bytes = kCapacity;
  return parameters;
}

const bool kAtomicIsRegistered = register_store_conformance(conformance("MemoryAtomic", true));
const bool kNonAtomicIsRegistered =
    register_store_conformance(conformance("MemoryNonAtomic", false));

std::shared_ptr<MemoryStore> small_store(std::size_t capacity_bytes) {
  MemoryStoreOptions options;
  options.capacity_bytes = capacity_bytes;
  return make_memory_store(std::move(options));
}

PutResult put(Store& store, const std::string& key, const Bytes& payload) {
  return store.put({put_item(key, payload)}, {})[0];
}

Reaction exists(Store& store, const std::string& key) { return store.exists({key}, {})[0]; }

TEST(MemoryStore, EvictsTheLeastRecentlyUsedWithinItsCapacity) {
  const auto store = small_store(3000);
  const Bytes payload = payload_for("object", 1000);
  for (const char* key : {"a", "b", "c"}) put(*store, key, payload);
  EXPECT_EQ(exists(*store, "a"), Reaction::kOk);  // a use: b is the oldest now
  put(*store, "d", payload);
  EXPECT_EQ(store->keys(), (std::vector<std::string>{"a", "c", "d"}));
  EXPECT_EQ(store->bytes_used(), 3000u);
  EXPECT_EQ(store->evicted(), 1u);

  put(*store, "large", payload_for("large", 2500));
  EXPECT_EQ(store->keys(), (std::vector<std::string>{"large"}));
  EXPECT_EQ(store->bytes_used(), 2500u);
}

TEST(MemoryStore, ReadingProtectsFromEviction) {
  const auto store = small_store(2000);
  const Bytes payload = payload_for("object", 1000);
  put(*store, "a", payload);
  put(*store, "b", payload);
  Bytes buffer(1000);
  EXPECT_EQ(store->get({testlib::get_item("a", buffer)}, {})[0].reaction, Reaction::kOk);
  put(*store, "c", payload);
  EXPECT_EQ(store->keys(), (std::vector<std::string>{"a", "c"}));
}

TEST(MemoryStore, NumberOfObjectsIsBoundedToo) {
  MemoryStoreOptions options;
  options.max_objects = 2;
  const auto store = make_memory_store(std::move(options));
  for (const char* key : {"a", "b", "c"}) put(*store, key, payload_for(key, 1));
  EXPECT_EQ(store->keys(), (std::vector<std::string>{"b", "c"}));
}

TEST(MemoryStore, ObjectOfExactlyTheCapacityFits) {
  const auto store = small_store(1000);
  put(*store, "a", payload_for("a", 400));
  EXPECT_EQ(put(*store, "whole", payload_for("whole", 1000)).effect, PutEffect::kStored);
  EXPECT_EQ(put(*store, "more", payload_for("more", 1001)).reaction, Reaction::kCallerBug);
  EXPECT_EQ(store->keys(), (std::vector<std::string>{"whole"}));
}

TEST(MemoryStore, RemoveAndCloseGiveMemoryBack) {
  const auto store = small_store(3000);
  put(*store, "a", payload_for("a", 1000));
  put(*store, "b", payload_for("b", 500));
  store->remove({"a"}, {});
  EXPECT_EQ(store->bytes_used(), 500u);
  store->close(Deadline::never());
  EXPECT_EQ(store->bytes_used(), 0u);
  EXPECT_TRUE(store->keys().empty());
}

// The two steps of a non-atomic put, seen from between them.
struct HalfWay {
  std::shared_ptr<MemoryStore> store;
  std::function<bool(std::string_view)> look;  // called between the steps

  explicit HalfWay(std::size_t capacity_bytes = 1 << 20) {
    MemoryStoreOptions options;
    options.capacity_bytes = capacity_bytes;
    options.atomic_publish = false;
    options.between_steps = [this](std::string_view key) { return look ? look(key) : true; };
    store = make_memory_store(std::move(options));
  }
};

TEST(MemoryStoreNonAtomic, ReaderBetweenTheStepsSeesHalfAnObject) {
  HalfWay half;
  const Bytes payload = payload_for("object", 1000);
  int looked = 0;
  half.look = [&](std::string_view key) {
    ++looked;
    EXPECT_EQ(key, "object");
    EXPECT_EQ(exists(*half.store, "object"), Reaction::kOk);
    Bytes buffer(1000, std::byte{0xa5});
    const GetResult result = half.store->get({testlib::get_item("object", buffer)}, {})[0];
    EXPECT_EQ(result.reaction, Reaction::kOk);
    EXPECT_EQ(result.bytes, 500u);
    EXPECT_TRUE(std::equal(buffer.begin(), buffer.begin() + 500, payload.begin()));
    EXPECT_EQ(buffer[500], std::byte{0xa5});
    EXPECT_EQ(put(*half.store, "object", payload).effect, PutEffect::kExisted);
    return true;
  };
  EXPECT_EQ(put(*half.store, "object", payload).effect, PutEffect::kStored);
  EXPECT_EQ(looked, 1);
  Bytes buffer(1000);
  EXPECT_EQ(half.store->get({testlib::get_item("object", buffer)}, {})[0].bytes, 1000u);
  EXPECT_TRUE(buffer == payload);
}

TEST(MemoryStoreNonAtomic, WriterThatDiesLeavesHalfAnObjectUntilItIsRemoved) {
  HalfWay half;
  const Bytes payload = payload_for("object", 1000);
  half.look = [](std::string_view) { return false; };
  const PutResult died = put(*half.store, "object", payload);
  EXPECT_EQ(died.reaction, Reaction::kDown);
  EXPECT_EQ(died.effect, PutEffect::kUnknown);
  half.look = nullptr;
  EXPECT_EQ(put(*half.store, "object", payload).effect, PutEffect::kExisted);
  Bytes buffer(1000);
  EXPECT_EQ(half.store->get({testlib::get_item("object", buffer)}, {})[0].bytes, 500u);
  EXPECT_EQ(half.store->remove({"object"}, {})[0], Reaction::kOk);
  EXPECT_EQ(put(*half.store, "object", payload).effect, PutEffect::kStored);
  EXPECT_EQ(half.store->get({testlib::get_item("object", buffer)}, {})[0].bytes, 1000u);
}

TEST(MemoryStoreNonAtomic, SecondStepDoesNotCompleteALaterObjectOfTheSameKey) {
  HalfWay half;
  const Bytes first = payload_for("first", 1000);
  const Bytes second = payload_for("second", 1000);
  bool nested = false;
  half.look = [&](std::string_view) {
    if (nested) return false;  // the second writer dies half way
    nested = true;
    half.store->remove({"object"}, {});
    put(*half.store, "object", second);
    return true;
  };
  EXPECT_EQ(put(*half.store, "object", first).effect, PutEffect::kStored);
  Bytes buffer(1000);
  EXPECT_EQ(half.store->get({testlib::get_item("object", buffer)}, {})[0].bytes, 500u);
}

TEST(MemoryStoreNonAtomic, ObjectEvictedBetweenTheStepsStaysAway) {
  HalfWay half(1000);
  bool nested = false;
  half.look = [&](std::string_view) {
    if (!nested) {
      nested = true;
      put(*half.store, "other", payload_for("other", 1000));
    }
    return true;
  };
  put(*half.store, "object", payload_for("object", 1000));
  EXPECT_EQ(half.store->keys(), (std::vector<std::string>{"other"}));
  EXPECT_EQ(half.store->bytes_used(), 1000u);
}

}  // namespace
}  // namespace kvc
