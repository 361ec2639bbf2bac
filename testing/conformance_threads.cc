#include <algorithm>
#include <atomic>
#include <functional>
#include <utility>

#include "base/random.h"
#include "os/thread.h"
#include "testing/conformance_fixture.h"
#include "testing/seed.h"

namespace kvc::testlib {
namespace {

constexpr int kThreads = 4;

/// Runs `body(0)` to `body(count - 1)` on threads of their own and waits for all.
void run_together(int count, const std::function<void(int)>& body) {
  std::vector<Thread> threads;
  threads.reserve(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    Result<Thread> thread = Thread::start("conformance", [&body, i] { body(i); });
    ASSERT_TRUE(thread.ok()) << thread.status().to_string();
    threads.push_back(std::move(thread).value());
  }
  for (Thread& thread : threads) thread.join();
}

void concurrent_puts_of_one_key_leave_one_object(ConformanceTest& test) {
  for (int round = 0; round < 10; ++round) {
    const std::string key = test.key(std::to_string(round));
    std::vector<Bytes> payloads;
    payloads.reserve(kThreads);
    for (int i = 0; i < kThreads; ++i) {
      payloads.push_back(payload_for(key + std::to_string(i), 50'000));
    }
    std::atomic<int> stored{0};
    std::atomic<int> failed{0};
    run_together(kThreads, [&](int i) {
      const PutResult result = test.put(key, payloads[static_cast<std::size_t>(i)]);
      if (result.reaction != Reaction::kOk) failed.fetch_add(1);
      if (result.effect == PutEffect::kStored) stored.fetch_add(1);
    });
    EXPECT_EQ(failed.load(), 0);
    if (test.parameters().expected.put_tells_existing) {
      EXPECT_EQ(stored.load(), 1);
    }
    Bytes buffer(50'000);
    const std::vector<GetResult> results = test.store().get({get_item(key, buffer)}, {});
    ASSERT_EQ(results.size(), 1u);
    ASSERT_EQ(results[0].reaction, Reaction::kOk);
    int equal = 0;
    for (const Bytes& payload : payloads) equal += buffer == payload ? 1 : 0;
    EXPECT_EQ(equal, 1) << "the object is nobody's payload";
  }
}

void readers_see_nothing_or_the_whole_object(ConformanceTest& test) {
  constexpr std::size_t kBytes = 300'000;
  const int count = test.parameters().calls_per_thread / 4;
  std::vector<std::string> keys;
  std::vector<Bytes> payloads;
  for (int i = 0; i < count; ++i) {
    keys.push_back(test.key(std::to_string(i)));
    payloads.push_back(payload_for(keys.back(), kBytes));
  }
  std::atomic<int> written{0};
  std::atomic<int> wrong{0};
  run_together(3, [&](int who) {
    if (who == 0) {
      for (std::size_t i = 0; i < keys.size(); ++i) {
        if (test.put(keys[i], payloads[i]).reaction != Reaction::kOk) wrong.fetch_add(1);
        written.fetch_add(1);
      }
      return;
    }
    Bytes buffer(kBytes);
    for (int seen = 0; seen < count; seen = written.load()) {
      // The object that is being written now, or is next.
      const auto at = static_cast<std::size_t>(std::min(written.load(), count - 1));
      const std::vector<GetResult> results = test.store().get({get_item(keys[at], buffer)}, {});
      const GetResult result = results.size() == 1 ? results[0] : GetResult{};
      if (result.reaction == Reaction::kMiss) continue;
      const bool whole =
          result.reaction == Reaction::kOk && result.bytes == kBytes && buffer == payloads[at];
      if (!whole) wrong.fetch_add(1);
    }
  });
  EXPECT_EQ(wrong.load(), 0);
}

void threads_do_not_disturb_each_other(ConformanceTest& test) {
  const std::uint64_t seed = test_seed(20240607);
  constexpr std::uint64_t kKeys = 24;
  std::vector<std::string> keys;
  for (std::uint64_t i = 0; i < kKeys; ++i) keys.push_back(test.key(std::to_string(i)));
  // What a key holds is a function of the key, so every object that is found can be judged, whoever
  // put it. Removal is left out: bytes read while an object is removed are not promised.
  const auto size_of = [&](std::size_t i) { return 1000 + 977 * i; };
  std::atomic<int> wrong{0};
  run_together(kThreads, [&](int who) {
    Random random(seed + static_cast<std::uint64_t>(who));
    for (int call = 0; call < test.parameters().calls_per_thread; ++call) {
      const auto i = static_cast<std::size_t>(random.below(kKeys));
      const auto j = static_cast<std::size_t>(random.below(kKeys));
      const Bytes first = payload_for(keys[i], size_of(i));
      const Bytes second = payload_for(keys[j], size_of(j));
      if (random.below(3) == 0) {
        const std::vector<PutResult> results =
            test.store().put({put_item(keys[i], first), put_item(keys[j], second)}, {});
        for (const PutResult& result : results) wrong += result.reaction != Reaction::kOk ? 1 : 0;
        continue;
      }
      Bytes buffers[2] = {Bytes(first.size()), Bytes(second.size())};
      const std::vector<GetResult> results =
          test.store().get({get_item(keys[i], buffers[0]), get_item(keys[j], buffers[1])}, {});
      if (results.size() != 2) {
        wrong.fetch_add(1);
        continue;
      }
      const Bytes* const expected[2] = {&first, &second};
      for (std::size_t at = 0; at < 2; ++at) {
        if (results[at].reaction == Reaction::kMiss) continue;
        const bool partial =
            !test.parameters().expected.atomic_publish && results[at].bytes < expected[at]->size();
        const bool good = results[at].reaction == Reaction::kOk && buffers[at] == *expected[at];
        if (!good && !partial) wrong.fetch_add(1);
      }
    }
  });
  EXPECT_EQ(wrong.load(), 0);
}

void close_ends_calls_of_other_threads_too(ConformanceTest& test) {
  std::atomic<int> wrong{0};
  run_together(kThreads, [&](int who) {
    const std::string key = test.key(std::to_string(who));
    const Bytes payload = payload_for(key, 10'000);
    for (int call = 0; call < 50; ++call) {
      if (who == 0 && call == 25) test.store().close(Deadline::never());
      Bytes buffer(10'000);
      const PutResult put = test.put(key, payload);
      const std::vector<GetResult> got = test.store().get({get_item(key, buffer)}, {});
      const bool lawful = put.reaction == Reaction::kOk || put.reaction == Reaction::kDown;
      const bool right =
          got.size() == 1 && (got[0].reaction == Reaction::kDown ||
                              (got[0].reaction == Reaction::kOk && buffer == payload));
      if (!lawful || !right) wrong.fetch_add(1);
    }
  });
  EXPECT_EQ(wrong.load(), 0);
  test.expect_down();
}

}  // namespace

std::vector<ConformanceCase> concurrent_cases() {
  return {
      {"ConcurrentPutsOfOneKeyLeaveOneObject", &concurrent_puts_of_one_key_leave_one_object},
      {"ReadersSeeNothingOrTheWholeObject", &readers_see_nothing_or_the_whole_object,
       [](const StoreConformance& store) { return store.expected.atomic_publish; }},
      {"ThreadsDoNotDisturbEachOther", &threads_do_not_disturb_each_other},
      {"CloseEndsCallsOfOtherThreadsToo", &close_ends_calls_of_other_threads_too},
  };
}

}  // namespace kvc::testlib
