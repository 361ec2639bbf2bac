#include "testing/store_conformance.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "testing/conformance_fixture.h"

namespace kvc::testlib {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::byte kFill{0xa5};

// An effect that says "this call stored it": the word for it depends on whether the store can tell.
void expect_stored(const ConformanceTest& test, const PutResult& result) {
  EXPECT_EQ(result.reaction, Reaction::kOk) << to_string(result.reaction);
  if (test.parameters().expected.put_tells_existing) {
    EXPECT_EQ(result.effect, PutEffect::kStored);
  } else {
    EXPECT_TRUE(result.effect == PutEffect::kStored || result.effect == PutEffect::kUnknown);
  }
}

void expect_existed(const ConformanceTest& test, const PutResult& result) {
  EXPECT_EQ(result.reaction, Reaction::kOk) << to_string(result.reaction);
  if (test.parameters().expected.put_tells_existing) {
    EXPECT_EQ(result.effect, PutEffect::kExisted);
  } else {
    EXPECT_TRUE(result.effect == PutEffect::kExisted || result.effect == PutEffect::kUnknown);
  }
}

bool all_fill(const Bytes& bytes, std::size_t from = 0) {
  for (std::size_t i = from; i < bytes.size(); ++i) {
    if (bytes[i] != kFill) return false;
  }
  return true;
}

void capabilities_are_as_stated(ConformanceTest& test) {
  const StoreCapabilities stated = test.store().capabilities();
  const StoreCapabilities& expected = test.parameters().expected;
  EXPECT_EQ(stated.atomic_publish, expected.atomic_publish);
  EXPECT_EQ(stated.put_tells_existing, expected.put_tells_existing);
  EXPECT_EQ(stated.lease, expected.lease);
  EXPECT_EQ(stated.max_object_bytes, expected.max_object_bytes);
  EXPECT_EQ(stated.shared_between_processes, expected.shared_between_processes);
  EXPECT_EQ(stated.max_replicas, expected.max_replicas);
}

void round_trips_every_size(ConformanceTest& test) {
  for (const std::size_t bytes :
       {std::size_t{1}, std::size_t{2}, std::size_t{7}, std::size_t{64}, std::size_t{127},
        std::size_t{128}, std::size_t{4095}, std::size_t{4096}, std::size_t{4097},
        std::size_t{65535}, std::size_t{65536}, std::size_t{65537}, kMiB - 1, kMiB, kMiB + 1,
        4 * kMiB, 8 * kMiB}) {
    if (bytes > test.parameters().largest_object_bytes) continue;
    const std::string key = test.key(std::to_string(bytes));
    const Bytes payload = payload_for(key, bytes);
    expect_stored(test, test.put(key, payload));
    EXPECT_EQ(test.exists(key), Reaction::kOk);
    test.expect_object(key, payload);
    EXPECT_EQ(test.remove(key), Reaction::kOk);
  }
}

void reads_into_a_larger_buffer(ConformanceTest& test) {
  const std::string key = test.key("object");
  const Bytes payload = payload_for(key, 1000);
  expect_stored(test, test.put(key, payload));
  Bytes buffer(5000, kFill);
  const std::vector<GetResult> results = test.store().get({get_item(key, buffer)}, {});
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].reaction, Reaction::kOk);
  EXPECT_EQ(results[0].bytes, payload.size());
  EXPECT_TRUE(std::equal(payload.begin(), payload.end(), buffer.begin()));
  EXPECT_TRUE(all_fill(buffer, payload.size())) << "bytes past the object were written";
}

void too_small_buffer_is_a_caller_bug(ConformanceTest& test) {
  const std::string key = test.key("object");
  expect_stored(test, test.put(key, payload_for(key, 70'000)));
  Bytes buffer(70'000, kFill);
  const std::vector<GetResult> results =
      test.store().get({GetItem{key, buffer.data(), 69'999}, GetItem{key, buffer.data(), 1}}, {});
  ASSERT_EQ(results.size(), 2u);
  EXPECT_EQ(results[0].reaction, Reaction::kCallerBug);
  EXPECT_EQ(results[1].reaction, Reaction::kCallerBug);
  EXPECT_EQ(buffer.back(), kFill) << "a byte past the stated capacity was written";
}

void absent_keys_are_misses(ConformanceTest& test) {
  const std::string key = test.key("never put");
  EXPECT_EQ(test.exists(key), Reaction::kMiss);
  EXPECT_EQ(test.remove(key), Reaction::kMiss);
  Bytes buffer(100, kFill);
  const std::vector<GetResult> results = test.store().get({get_item(key, buffer)}, {});
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].reaction, Reaction::kMiss);
  EXPECT_TRUE(all_fill(buffer));
}

void empty_batches_are_nothing(ConformanceTest& test) {
  EXPECT_TRUE(test.store().exists({}, {}).empty());
  EXPECT_TRUE(test.store().put({}, {}).empty());
  EXPECT_TRUE(test.store().get({}, {}).empty());
  EXPECT_TRUE(test.store().remove({}, {}).empty());
  EXPECT_TRUE(test.store().replicate({}, {}).empty());
}

void put_never_replaces(ConformanceTest& test) {
  const std::string key = test.key("object");
  const Bytes first = payload_for("first", 3000);
  expect_stored(test, test.put(key, first));
  for (const std::size_t bytes : {std::size_t{3000}, std::size_t{100}, std::size_t{9000}}) {
    expect_existed(test, test.put(key, payload_for("second", bytes)));
    test.expect_object(key, first);
  }
}

void remove_makes_room_for_other_bytes(ConformanceTest& test) {
  const std::string key = test.key("object");
  for (const char* version : {"first", "second", "third"}) {
    const Bytes payload = payload_for(version, 1000 + std::string_view(version).size());
    expect_stored(test, test.put(key, payload));
    test.expect_object(key, payload);
    EXPECT_EQ(test.remove(key), Reaction::kOk);
    EXPECT_EQ(test.exists(key), Reaction::kMiss);
    EXPECT_EQ(test.remove(key), Reaction::kMiss);
  }
}

void removes_what_is_leased(ConformanceTest& test) {
  const std::string key = test.key("object");
  const Bytes payload = payload_for(key, 1000);
  expect_stored(test, test.put(key, payload));
  EXPECT_EQ(test.exists(key), Reaction::kOk);
  test.expect_object(key, payload);
  EXPECT_EQ(test.remove(key), Reaction::kOk);
  EXPECT_EQ(test.exists(key), Reaction::kMiss);
}

void answers_each_item_of_a_mixed_get(ConformanceTest& test) {
  const std::string small = test.key("small");
  const std::string large = test.key("large");
  expect_stored(test, test.put(small, payload_for(small, 10)));
  expect_stored(test, test.put(large, payload_for(large, 5000)));
  Bytes buffers[6];
  for (Bytes& buffer : buffers) buffer.assign(5000, kFill);
  const std::vector<GetResult> results =
      test.store().get({get_item(small, buffers[0]), get_item(test.key("absent"), buffers[1]),
                        GetItem{large, buffers[2].data(), 100}, get_item("", buffers[3]),
                        GetItem{test.key("null"), nullptr, 100}, get_item(large, buffers[5])},
                       {});
  ASSERT_EQ(results.size(), 6u);
  const Reaction expected[] = {Reaction::kOk,        Reaction::kMiss,      Reaction::kCallerBug,
                               Reaction::kCallerBug, Reaction::kCallerBug, Reaction::kOk};
  for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(results[i].reaction, expected[i]) << i;
  EXPECT_EQ(results[0].bytes, 10u);
  EXPECT_EQ(results[5].bytes, 5000u);
  EXPECT_TRUE(buffers[5] == payload_for(large, 5000));
}

void answers_each_item_of_a_mixed_put(ConformanceTest& test) {
  const std::string good = test.key("good");
  const std::string zero = test.key("zero bytes");
  const std::string null = test.key("null");
  const std::string last = test.key("last");
  const Bytes payload = payload_for(good, 1000);
  const std::vector<PutResult> results = test.store().put(
      {put_item(good, payload), put_item("", payload), PutItem{zero, payload.data(), 0},
       PutItem{null, nullptr, 1000}, put_item(last, payload)},
      {});
  ASSERT_EQ(results.size(), 5u);
  expect_stored(test, results[0]);
  for (const std::size_t bad : {1u, 2u, 3u}) {
    EXPECT_EQ(results[bad].reaction, Reaction::kCallerBug) << bad;
    EXPECT_EQ(results[bad].effect, PutEffect::kNone) << bad;
  }
  expect_stored(test, results[4]);
  test.expect_object(good, payload);
  test.expect_object(last, payload);
  EXPECT_EQ(test.exists(zero), Reaction::kMiss);
  EXPECT_EQ(test.exists(null), Reaction::kMiss);
}

void empty_keys_are_caller_bugs(ConformanceTest& test) {
  const std::string key = test.key("object");
  expect_stored(test, test.put(key, payload_for(key, 10)));
  const std::vector<Reaction> present = test.store().exists({key, "", key}, {});
  EXPECT_EQ(present, (std::vector<Reaction>{Reaction::kOk, Reaction::kCallerBug, Reaction::kOk}));
  const std::vector<Reaction> removed = test.store().remove({"", key}, {});
  EXPECT_EQ(removed, (std::vector<Reaction>{Reaction::kCallerBug, Reaction::kOk}));
}

void refuses_oversized_objects(ConformanceTest& test) {
  const std::size_t bytes = test.parameters().expected.max_object_bytes + 1;
  // Never touched, so it costs address space only.
  const std::unique_ptr<void, void (*)(void*)> memory(std::calloc(bytes, 1), &std::free);
  ASSERT_NE(memory, nullptr);
  const auto* const data = static_cast<const std::byte*>(memory.get());
  const std::string large = test.key("oversized");
  const std::string small = test.key("small");
  const std::vector<PutResult> results =
      test.store().put({PutItem{large, data, bytes}, PutItem{small, data, 100}}, {});
  ASSERT_EQ(results.size(), 2u);
  EXPECT_EQ(results[0].reaction, Reaction::kCallerBug);
  EXPECT_EQ(results[0].effect, PutEffect::kNone);
  expect_stored(test, results[1]);
  EXPECT_EQ(test.exists(large), Reaction::kMiss);
}

void duplicate_keys_in_one_get_fill_every_buffer(ConformanceTest& test) {
  const std::string key = test.key("twice");
  const std::string other = test.key("other");
  const Bytes payload = payload_for(key, 5000);
  expect_stored(test, test.put(key, payload));
  expect_stored(test, test.put(other, payload_for(other, 5000)));
  Bytes first(5000, kFill);
  Bytes small(100, kFill);
  Bytes between(5000, kFill);
  Bytes larger(6000, kFill);
  Bytes last(5000, kFill);
  const std::vector<GetResult> results =
      test.store().get({get_item(key, first), get_item(key, small), get_item(other, between),
                        get_item(key, larger), get_item(key, last)},
                       {});
  ASSERT_EQ(results.size(), 5u);
  EXPECT_EQ(results[1].reaction, Reaction::kCallerBug);
  for (const std::size_t good : {0u, 2u, 3u, 4u}) {
    EXPECT_EQ(results[good].reaction, Reaction::kOk) << good;
    EXPECT_EQ(results[good].bytes, 5000u) << good;
  }
  EXPECT_TRUE(first == payload);
  EXPECT_TRUE(last == payload);
  EXPECT_TRUE(std::equal(payload.begin(), payload.end(), larger.begin()));
  EXPECT_TRUE(all_fill(larger, 5000));
  EXPECT_TRUE(between == payload_for(other, 5000));
}

void duplicate_absent_keys_are_each_a_miss(ConformanceTest& test) {
  const std::string key = test.key("absent");
  Bytes first(100, kFill);
  Bytes second(200, kFill);
  const std::vector<GetResult> results =
      test.store().get({get_item(key, first), get_item(key, second)}, {});
  ASSERT_EQ(results.size(), 2u);
  EXPECT_EQ(results[0].reaction, Reaction::kMiss);
  EXPECT_EQ(results[1].reaction, Reaction::kMiss);
  EXPECT_TRUE(all_fill(first) && all_fill(second));
}

void duplicate_keys_in_one_put_keep_the_first(ConformanceTest& test) {
  const std::string key = test.key("twice");
  const std::string other = test.key("other");
  const Bytes first = payload_for("first", 3000);
  const Bytes second = payload_for("second", 3000);
  const Bytes third = payload_for("third", 200);
  const std::vector<PutResult> results = test.store().put(
      {put_item(key, first), put_item(other, second), put_item(key, second), put_item(key, third)},
      {});
  ASSERT_EQ(results.size(), 4u);
  expect_stored(test, results[0]);
  expect_stored(test, results[1]);
  expect_existed(test, results[2]);
  expect_existed(test, results[3]);
  test.expect_object(key, first);
  test.expect_object(other, second);
}

void duplicate_keys_in_exists_and_remove(ConformanceTest& test) {
  const std::string key = test.key("twice");
  expect_stored(test, test.put(key, payload_for(key, 10)));
  EXPECT_EQ(test.store().exists({key, key, key}, {}), std::vector<Reaction>(3, Reaction::kOk));
  EXPECT_EQ(test.store().remove({key, key}, {}),
            (std::vector<Reaction>{Reaction::kOk, Reaction::kMiss}));
}

void unusual_keys_are_told_apart(ConformanceTest& test) {
  const std::vector<std::string> names = {"a",
                                          "A",
                                          "a ",
                                          " a",
                                          "a/",
                                          "a//b",
                                          "a/b",
                                          "%61",
                                          "a\tb",
                                          "\xc3\xa9",
                                          "\xff\xfe",
                                          std::string(1000, 'x'),
                                          std::string(1000, 'x') + "y"};
  for (const std::string& name : names) {
    expect_stored(test, test.put(test.key(name), payload_for(name, 300)));
  }
  for (const std::string& name : names) test.expect_object(test.key(name), payload_for(name, 300));
}

void serves_large_batches(ConformanceTest& test) {
  constexpr std::size_t kCount = 3000;
  constexpr std::size_t kBytes = 512;
  Bytes sent(kCount * kBytes);
  std::vector<std::string> keys;
  std::vector<PutItem> puts;
  for (std::size_t i = 0; i < kCount; ++i) {
    keys.push_back(test.key(std::to_string(i)));
    const Bytes payload = payload_for(keys[i], kBytes);
    std::copy(payload.begin(), payload.end(),
              sent.begin() + static_cast<std::ptrdiff_t>(i * kBytes));
    puts.push_back({keys[i], sent.data() + i * kBytes, kBytes});
  }
  const std::vector<PutResult> stored = test.store().put(std::move(puts), {});
  ASSERT_EQ(stored.size(), kCount);
  for (const PutResult& result : stored) expect_stored(test, result);
  EXPECT_EQ(test.store().exists(keys, {}), std::vector<Reaction>(kCount, Reaction::kOk));

  Bytes received(kCount * kBytes, kFill);
  std::vector<GetItem> gets;
  for (std::size_t i = 0; i < kCount; ++i) {
    gets.push_back({keys[i], received.data() + i * kBytes, kBytes});
  }
  const std::vector<GetResult> read = test.store().get(std::move(gets), {});
  ASSERT_EQ(read.size(), kCount);
  for (const GetResult& result : read) {
    EXPECT_EQ(result.reaction, Reaction::kOk);
    EXPECT_EQ(result.bytes, kBytes);
  }
  EXPECT_TRUE(received == sent);
  EXPECT_EQ(test.store().remove(keys, {}), std::vector<Reaction>(kCount, Reaction::kOk));
  EXPECT_EQ(test.store().exists(keys, {}), std::vector<Reaction>(kCount, Reaction::kMiss));
}

CallContext within(Duration budget) {
  return {.deadline = Deadline::after(*system_clock(), budget), .hold = nullptr};
}

void copies_are_of_the_same_object(ConformanceTest& test) {
  const std::string key = test.key("object");
  const std::string absent = test.key("absent");
  const Bytes payload = payload_for(key, 5000);
  PutItem item = put_item(key, payload);
  item.replicas = 3;
  const std::vector<PutResult> stored = test.store().put({item}, {});
  ASSERT_EQ(stored.size(), 1u);
  expect_stored(test, stored[0]);
  const std::vector<Reaction> reactions = test.store().replicate(
      {{key, 2}, {absent, 2}, {"", 2}, {key, 2}, {key, 1}}, within(std::chrono::seconds(3)));
  ASSERT_EQ(reactions.size(), 5u);
  if (test.parameters().expected.max_replicas == 1) {
    EXPECT_EQ(reactions, std::vector<Reaction>(5, Reaction::kCallerBug));
  } else {
    // How many places there are, nobody promises.
    EXPECT_TRUE(reactions[0] == Reaction::kOk || reactions[0] == Reaction::kBackOff);
    EXPECT_EQ(reactions[1], Reaction::kMiss);
    EXPECT_EQ(reactions[2], Reaction::kCallerBug);
    EXPECT_EQ(reactions[3], reactions[0]);
    EXPECT_EQ(reactions[4], reactions[0]);
  }
  test.expect_object(key, payload);
  EXPECT_EQ(test.exists(absent), Reaction::kMiss);
  expect_existed(test, test.put(key, payload_for("other", 100)));
  EXPECT_EQ(test.remove(key), Reaction::kOk);
  EXPECT_EQ(test.exists(key), Reaction::kMiss);
}

void full_store_keeps_serving(ConformanceTest& test) {
  const std::size_t count = 2 * test.parameters().capacity_bytes / kMiB;
  std::size_t accepted = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::string key = test.key(std::to_string(i));
    const PutResult result = test.put(key, payload_for(key, kMiB));
    ASSERT_TRUE(result.reaction == Reaction::kOk || result.reaction == Reaction::kBackOff)
        << to_string(result.reaction);
    if (result.reaction == Reaction::kBackOff) {
      EXPECT_EQ(result.effect, PutEffect::kNone);
    }
    if (result.reaction == Reaction::kOk) ++accepted;
  }
  EXPECT_GT(accepted, count / 4);
  std::size_t served = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::string key = test.key(std::to_string(i));
    Bytes buffer(kMiB, kFill);
    const std::vector<GetResult> results = test.store().get({get_item(key, buffer)}, {});
    ASSERT_EQ(results.size(), 1u);
    if (results[0].reaction == Reaction::kOk) {
      ++served;
      EXPECT_TRUE(buffer == payload_for(key, kMiB)) << key;
    } else {
      EXPECT_EQ(results[0].reaction, Reaction::kMiss);
    }
  }
  EXPECT_GT(served, count / 8);
  EXPECT_LT(served, count);
}

void holds_are_released_on_return(ConformanceTest& test) {
  const std::string key = test.key("object");
  const Bytes payload = payload_for(key, 1000);
  Bytes buffer(1000);
  const auto hold = std::make_shared<int>(0);
  const CallContext context{Deadline::never(), hold};
  test.store().put({put_item(key, payload)}, context);
  EXPECT_EQ(hold.use_count(), 2);
  test.store().get({get_item(key, buffer)}, context);
  EXPECT_EQ(hold.use_count(), 2);
  test.store().exists({key}, context);
  EXPECT_EQ(hold.use_count(), 2);
  test.store().remove({key}, context);
  EXPECT_EQ(hold.use_count(), 2);
}

void registers_memory_once(ConformanceTest& test) {
  Bytes memory(8192);
  const std::span<std::byte> whole(memory);
  Store& store = test.store();
  EXPECT_TRUE(store.register_memory(whole).ok());
  EXPECT_EQ(store.register_memory(whole).code(), Code::kInvalid);
  EXPECT_EQ(store.register_memory(whole.subspan(4096)).code(), Code::kInvalid);
  EXPECT_EQ(store.register_memory(whole.subspan(0, 0)).code(), Code::kInvalid);
  EXPECT_EQ(store.unregister_memory(whole.subspan(4096)).code(), Code::kInvalid);

  const std::string key = test.key("object");
  const Bytes payload = payload_for(key, 4096);
  std::copy(payload.begin(), payload.end(), memory.begin());
  const std::vector<PutResult> puts = store.put({PutItem{key, memory.data(), 4096}}, {});
  ASSERT_EQ(puts.size(), 1u);
  expect_stored(test, puts[0]);
  const std::vector<GetResult> gets = store.get({GetItem{key, memory.data() + 4096, 4096}}, {});
  ASSERT_EQ(gets.size(), 1u);
  EXPECT_EQ(gets[0].reaction, Reaction::kOk);
  EXPECT_TRUE(std::equal(payload.begin(), payload.end(), memory.begin() + 4096));

  EXPECT_TRUE(store.unregister_memory(whole).ok());
  EXPECT_EQ(store.unregister_memory(whole).code(), Code::kInvalid);
  EXPECT_TRUE(store.register_memory(whole).ok()) << "a second life of the same memory";
  EXPECT_TRUE(store.unregister_memory(whole).ok());
}

void calls_after_close_are_down(ConformanceTest& test) {
  const std::string key = test.key("object");
  expect_stored(test, test.put(key, payload_for(key, 100)));
  EXPECT_EQ(test.remove(key), Reaction::kOk);
  test.store().close(Deadline::never());
  test.expect_down();
  Bytes memory(4096);
  EXPECT_EQ(test.store().register_memory(memory).code(), Code::kUnavailable);
  EXPECT_EQ(test.store().unregister_memory(memory).code(), Code::kUnavailable);
  test.store().close(Deadline::never());
  test.expect_down();
}

void passed_deadline_has_no_effect(ConformanceTest& test) {
  const std::string key = test.key("object");
  const std::string late = test.key("late");
  const Bytes payload = payload_for(key, 100);
  expect_stored(test, test.put(key, payload));
  const CallContext context{Deadline{Instant{}}, nullptr};
  const std::vector<PutResult> puts = test.store().put({put_item(late, payload)}, context);
  ASSERT_EQ(puts.size(), 1u);
  EXPECT_EQ(puts[0].reaction, Reaction::kDown);
  EXPECT_EQ(puts[0].effect, PutEffect::kNone);
  Bytes buffer(100, kFill);
  const std::vector<GetResult> gets = test.store().get({get_item(key, buffer)}, context);
  ASSERT_EQ(gets.size(), 1u);
  EXPECT_EQ(gets[0].reaction, Reaction::kDown);
  EXPECT_TRUE(all_fill(buffer));
  EXPECT_EQ(test.store().exists({key}, context), std::vector<Reaction>(1, Reaction::kDown));
  EXPECT_EQ(test.store().remove({key}, context), std::vector<Reaction>(1, Reaction::kDown));
  EXPECT_EQ(test.exists(late), Reaction::kMiss);
  test.expect_object(key, payload);
}

class CaseRunner final : public ConformanceTest {
 public:
  CaseRunner(std::shared_ptr<const StoreConformance> parameters, void (*body)(ConformanceTest&))
      : ConformanceTest(std::move(parameters)), body_(body) {}
  void TestBody() override { body_(*this); }

 private:
  void (*const body_)(ConformanceTest&);
};

}  // namespace

std::vector<ConformanceCase> single_caller_cases() {
  return {
      {"CapabilitiesAreAsStated", &capabilities_are_as_stated},
      {"RoundTripsEverySize", &round_trips_every_size},
      {"ReadsIntoALargerBuffer", &reads_into_a_larger_buffer},
      {"TooSmallBufferIsACallerBug", &too_small_buffer_is_a_caller_bug},
      {"AbsentKeysAreMisses", &absent_keys_are_misses},
      {"EmptyBatchesAreNothing", &empty_batches_are_nothing},
      {"PutNeverReplaces", &put_never_replaces},
      {"RemoveMakesRoomForOtherBytes", &remove_makes_room_for_other_bytes},
      {"RemovesWhatIsLeased", &removes_what_is_leased},
      {"AnswersEachItemOfAMixedGet", &answers_each_item_of_a_mixed_get},
      {"AnswersEachItemOfAMixedPut", &answers_each_item_of_a_mixed_put},
      {"EmptyKeysAreCallerBugs", &empty_keys_are_caller_bugs},
      {"RefusesOversizedObjects", &refuses_oversized_objects,
       [](const StoreConformance& store) { return store.expected.max_object_bytes > 0; }},
      {"DuplicateKeysInOneGetFillEveryBuffer", &duplicate_keys_in_one_get_fill_every_buffer},
      {"DuplicateAbsentKeysAreEachAMiss", &duplicate_absent_keys_are_each_a_miss},
      {"DuplicateKeysInOnePutKeepTheFirst", &duplicate_keys_in_one_put_keep_the_first},
      {"DuplicateKeysInExistsAndRemove", &duplicate_keys_in_exists_and_remove},
      {"UnusualKeysAreToldApart", &unusual_keys_are_told_apart},
      {"ServesLargeBatches", &serves_large_batches},
      {"CopiesAreOfTheSameObject", &copies_are_of_the_same_object},
      {"FullStoreKeepsServing", &full_store_keeps_serving,
       [](const StoreConformance& store) { return store.capacity_bytes > 0; }},
      {"HoldsAreReleasedOnReturn", &holds_are_released_on_return},
      {"RegistersMemoryOnce", &registers_memory_once},
      {"CallsAfterCloseAreDown", &calls_after_close_are_down},
      {"PassedDeadlineHasNoEffect", &passed_deadline_has_no_effect,
       [](const StoreConformance& store) { return store.looks_at_deadlines; }},
  };
}

bool register_store_conformance(StoreConformance parameters) {
  const auto shared = std::make_shared<const StoreConformance>(std::move(parameters));
  for (const auto& cases : {single_caller_cases(), concurrent_cases()}) {
    for (const ConformanceCase& one : cases) {
      if (one.applies != nullptr && !one.applies(*shared)) continue;
      ::testing::RegisterTest(
          shared->name.c_str(), one.name, nullptr, nullptr, __FILE__, __LINE__,
          [shared, body = one.body]() -> ConformanceTest* { return new CaseRunner(shared, body); });
    }
  }
  return true;
}

}  // namespace kvc::testlib
