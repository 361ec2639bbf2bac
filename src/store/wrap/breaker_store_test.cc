#include "store/wrap/breaker_store.h"

#include <gtest/gtest.h>

#include <utility>

#include "os/thread.h"
#include "store/memory/memory_store.h"
#include "store/wrap/deadline_store.h"
#include "store/wrap/fault_store.h"
#include "testing/collecting_logger.h"
#include "testing/conformance_fixture.h"
#include "testing/gated_store.h"
#include "testing/sim_clock.h"

namespace kvc {
namespace {

using std::chrono::milliseconds;
using testlib::CollectingLogger;
using testlib::GatedStore;
using testlib::GatePoint;
using testlib::SimClock;

constexpr std::size_t kCapacity = std::size_t{64} << 20;

MemoryStoreOptions memory_options() {
  MemoryStoreOptions options;
  options.capacity_bytes = kCapacity;
  return options;
}

testlib::StoreConformance conformance(std::string name) {
  testlib::StoreConformance parameters;
  parameters.name = std::move(name);
  parameters.expected.atomic_publish = true;
  parameters.expected.put_tells_existing = true;
  parameters.expected.max_object_bytes = kCapacity;
  parameters.capacity_bytes = kCapacity;
  parameters.looks_at_deadlines = true;
  return parameters;
}

bool register_suites() {
  testlib::StoreConformance breaker = conformance("Breaker");
  breaker.open = [] {
    return make_breaker_store(make_memory_store(memory_options()), system_clock(),
                              make_null_logger(), std::make_shared<StoreCallCounters>());
  };
  register_store_conformance(std::move(breaker));
  // The order in which production stacks them.
  testlib::StoreConformance stack = conformance("BreakerOverDeadline");
  stack.open = [] {
    ThreadPoolOptions options;
    options.threads = 4;
    const auto counters = std::make_shared<StoreCallCounters>();
    return make_breaker_store(
        make_deadline_store(make_memory_store(memory_options()), make_thread_pool(options),
                            system_clock(), counters),
        system_clock(), make_null_logger(), counters);
  };
  return register_store_conformance(std::move(stack));
}

const bool kAreRegistered = register_suites();

struct Rig {
  Rig() {
    BreakerStoreOptions options;
    options.failures_to_open = 3;
    options.first_pause = milliseconds(100);
    options.longest_pause = milliseconds(350);
    store = make_breaker_store(gate, clock, logger, counters, options);
  }

  Reaction call() { return store->exists({"key"}, {})[0]; }
  std::size_t calls() const { return gate->calls().size(); }
  void open() {
    gate->answer_with(Reaction::kDown);
    for (int i = 0; i < 3; ++i) call();
  }
  /// One call when `pause` has nearly passed, which must be refused, one when it has.
  void expect_probe_after(milliseconds pause) {
    const std::size_t before = calls();
    clock->advance(pause - milliseconds(1));
    EXPECT_EQ(call(), Reaction::kDown);
    EXPECT_EQ(calls(), before);
    clock->advance(milliseconds(1));
    call();
    EXPECT_EQ(calls(), before + 1);
  }

  std::shared_ptr<GatedStore> gate = std::make_shared<GatedStore>(make_memory_store({}));
  std::shared_ptr<SimClock> clock = std::make_shared<SimClock>();
  std::shared_ptr<CollectingLogger> logger = std::make_shared<CollectingLogger>();
  std::shared_ptr<StoreCallCounters> counters = std::make_shared<StoreCallCounters>();
  std::shared_ptr<Store> store;
};

TEST(BreakerStore, OpensAfterFailuresInARowAndSaysSoOnce) {
  Rig rig;
  rig.gate->answer_with(Reaction::kDown);
  EXPECT_EQ(rig.call(), Reaction::kDown);
  EXPECT_EQ(rig.call(), Reaction::kDown);
  EXPECT_EQ(rig.calls(), 2u);
  EXPECT_EQ(rig.logger->count("down"), 0u);
  rig.call();
  EXPECT_EQ(rig.calls(), 3u);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(rig.call(), Reaction::kDown);
  EXPECT_EQ(rig.calls(), 3u) << "the store was asked while the breaker was open";
  EXPECT_EQ(rig.counters->refused.load(), 5u);
  EXPECT_EQ(rig.counters->breaker_opened.load(), 1u);
  EXPECT_EQ(rig.logger->count("counts as down"), 1u);
}

TEST(BreakerStore, AnyAnswerBetweenFailuresStartsTheCountAnew) {
  for (const Reaction good :
       {Reaction::kOk, Reaction::kMiss, Reaction::kBackOff, Reaction::kStale}) {
    Rig rig;
    for (int round = 0; round < 4; ++round) {
      rig.gate->answer_with(Reaction::kDown);
      rig.call();
      rig.call();
      rig.gate->answer_with(good);
      rig.call();
    }
    EXPECT_EQ(rig.calls(), 12u) << to_string(good);
  }
}

TEST(BreakerStore, OneDownItemMakesTheCallAFailure) {
  const auto faults = [] {
    FaultStoreOptions options;
    options.rules = {{.kind = FaultKind::kError, .key_part = "bad"}};
    return options;
  }();
  const auto counters = std::make_shared<StoreCallCounters>();
  const auto store =
      make_breaker_store(make_fault_store(make_memory_store({}), faults), system_clock(),
                         make_null_logger(), counters, {.failures_to_open = 2});
  store->exists({"good", "bad"}, {});
  store->exists({"good", "bad"}, {});
  EXPECT_EQ(counters->breaker_opened.load(), 1u);
}

TEST(BreakerStore, PauseDoublesUpToItsLimitAndOneGoodProbeClosesIt) {
  Rig rig;
  rig.open();
  rig.expect_probe_after(milliseconds(100));
  rig.expect_probe_after(milliseconds(200));
  rig.expect_probe_after(milliseconds(350));
  rig.expect_probe_after(milliseconds(350));
  rig.gate->answer_with(Reaction::kOk);
  rig.clock->advance(milliseconds(350));
  EXPECT_EQ(rig.call(), Reaction::kMiss);
  EXPECT_EQ(rig.call(), Reaction::kMiss);
  EXPECT_EQ(rig.logger->count("counts as down"), 1u);
  EXPECT_EQ(rig.logger->count("answers again after 1350 ms"), 1u);
  // The next outage begins with the short pause again.
  rig.open();
  rig.expect_probe_after(milliseconds(100));
}

TEST(BreakerStore, OnlyOneCallProbesAtATime) {
  Rig rig;
  rig.open();
  rig.gate->answer_with(Reaction::kOk);
  rig.clock->advance(milliseconds(100));
  rig.gate->close_gate(GatePoint::kBeforeCall);
  Reaction probed = Reaction::kDown;
  Result<Thread> prober = Thread::start("prober", [&] { probed = rig.call(); });
  ASSERT_TRUE(prober.ok());
  ASSERT_TRUE(rig.gate->wait_for_waiting(1));
  EXPECT_EQ(rig.call(), Reaction::kDown);
  EXPECT_EQ(rig.calls(), 4u);
  rig.gate->open_gate();
  prober->join();
  EXPECT_EQ(probed, Reaction::kMiss);
  EXPECT_EQ(rig.call(), Reaction::kMiss);
}

TEST(BreakerStore, LateAnswersOfCallsFromBeforeDoNotCount) {
  const auto gate = std::make_shared<GatedStore>(make_memory_store({}));
  FaultStoreOptions faults;
  faults.rules = {{.kind = FaultKind::kError, .key_part = "bad"}};
  const auto store = make_breaker_store(
      make_fault_store(gate, faults), std::make_shared<SimClock>(), make_null_logger(),
      std::make_shared<StoreCallCounters>(), {.failures_to_open = 3});
  gate->close_gate(GatePoint::kBeforeReply);
  Reaction answered = Reaction::kDown;
  Result<Thread> slow = Thread::start("slow", [&] { answered = store->exists({"good"}, {})[0]; });
  ASSERT_TRUE(slow.ok());
  ASSERT_TRUE(gate->wait_for_waiting(1));
  for (int i = 0; i < 3; ++i) store->exists({"bad"}, {});
  gate->open_gate();
  slow->join();
  EXPECT_EQ(answered, Reaction::kMiss);
  EXPECT_EQ(store->exists({"good"}, {})[0], Reaction::kDown) << "a stale answer closed the breaker";
}

TEST(BreakerStore, CallerBugsSayNothingAboutTheStore) {
  Rig rig;
  rig.gate->answer_with(Reaction::kCallerBug);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(rig.call(), Reaction::kCallerBug);
  rig.open();
  // As a probe it neither closes the breaker nor opens it anew: the next call probes.
  rig.gate->answer_with(Reaction::kCallerBug);
  rig.clock->advance(milliseconds(100));
  EXPECT_EQ(rig.call(), Reaction::kCallerBug);
  rig.gate->answer_with(Reaction::kOk);
  EXPECT_EQ(rig.call(), Reaction::kMiss);
}

TEST(BreakerStore, CopiesNeitherOpenNorProbeNorClose) {
  Rig rig;
  const auto replicate = [&] { return rig.store->replicate({{"key", 2}}, {})[0]; };
  rig.gate->answer_with(Reaction::kDown);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(replicate(), Reaction::kDown);
  EXPECT_EQ(rig.calls(), 10u);
  EXPECT_EQ(rig.counters->breaker_opened.load(), 0u);
  // A good answer does not start the count of failures anew either.
  rig.call();
  rig.call();
  rig.gate->answer_with(Reaction::kMiss);
  EXPECT_EQ(replicate(), Reaction::kMiss);
  rig.gate->answer_with(Reaction::kDown);
  rig.call();
  EXPECT_EQ(rig.counters->breaker_opened.load(), 1u);
  rig.gate->answer_with(Reaction::kMiss);
  rig.clock->advance(milliseconds(100));
  const std::size_t before = rig.calls();
  EXPECT_EQ(replicate(), Reaction::kDown);
  EXPECT_EQ(rig.calls(), before) << "a copy was taken for the probe";
  EXPECT_EQ(rig.call(), Reaction::kMiss);
  EXPECT_EQ(replicate(), Reaction::kMiss);
}

TEST(BreakerStore, ImpatientCallersAndEmptyBatchesAreNoEvidence) {
  Rig rig;
  rig.clock->advance(milliseconds(1));
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(rig.store->exists({"key"}, {Deadline{Instant{}}, nullptr})[0], Reaction::kDown);
  }
  EXPECT_EQ(rig.call(), Reaction::kMiss);
  rig.open();
  rig.clock->advance(milliseconds(100));
  EXPECT_TRUE(rig.store->exists({}, {}).empty());
  rig.gate->answer_with(Reaction::kOk);
  EXPECT_EQ(rig.call(), Reaction::kMiss);
}

}  // namespace
}  // namespace kvc
