#include "store/wrap/deadline_store.h"

#include <gtest/gtest.h>

#include <utility>

#include "os/thread.h"
#include "store/memory/memory_store.h"
#include "testing/conformance_fixture.h"
#include "testing/gated_store.h"
#include "testing/sim_clock.h"
#include "testing/steppable_executor.h"

namespace kvc {
namespace {

using testlib::Bytes;
using testlib::GatedStore;
using testlib::GatePoint;
using testlib::get_item;
using testlib::payload_for;
using testlib::put_item;
using testlib::SimClock;
using testlib::SteppableExecutor;

constexpr std::size_t kCapacity = std::size_t{64} << 20;

MemoryStoreOptions memory_options() {
  MemoryStoreOptions options;
  options.capacity_bytes = kCapacity;
  return options;
}

ThreadPoolOptions pool_options(std::size_t threads) {
  ThreadPoolOptions options;
  options.threads = threads;
  return options;
}

testlib::StoreConformance conformance() {
  testlib::StoreConformance parameters;
  parameters.name = "Deadline";
  parameters.open = [] {
    return make_deadline_store(make_memory_store(memory_options()),
                               make_thread_pool(pool_options(4)), system_clock(),
                               std::make_shared<StoreCallCounters>());
  };
  parameters.expected.atomic_publish = true;
  parameters.expected.put_tells_existing = true;
  parameters.expected.max_object_bytes = kCapacity;
  parameters.capacity_bytes = kCapacity;
  parameters.looks_at_deadlines = true;
  return parameters;
}

const bool kIsRegistered = register_store_conformance(conformance());

/// Makes a call that hangs in the inner store, and lets its deadline of a second pass.
template <typename Call>
void abandon_call(GatedStore& gate, SimClock& clock, Call call) {
  const std::size_t hanging = gate.waiting();
  Result<Thread> caller = Thread::start("caller", call);
  ASSERT_TRUE(caller.ok());
  ASSERT_TRUE(gate.wait_for_waiting(hanging + 1));
  clock.advance(std::chrono::seconds(2));
  caller->join();
}

/// A store that can be hung, behind the decorator, with time in the test's hand.
struct Rig {
  explicit Rig(DeadlineStoreOptions options = {}, std::size_t threads = 4)
      : gate(std::make_shared<GatedStore>(make_memory_store(memory_options()))),
        clock(std::make_shared<SimClock>()),
        counters(std::make_shared<StoreCallCounters>()),
        store(make_deadline_store(gate, make_thread_pool(pool_options(threads)), clock, counters,
                                  options)) {}

  CallContext within_a_second(BufferHold hold = nullptr) const {
    return {Deadline::after(*clock, std::chrono::seconds(1)), std::move(hold)};
  }

  template <typename Call>
  void abandon(Call call) {
    abandon_call(*gate, *clock, call);
  }

  /// Waits until nothing is abandoned any more.
  void settle() {
    gate->open_gate();
    while (counters->abandoned_now.load() > 0) clock->now();
  }

  std::shared_ptr<GatedStore> gate;
  std::shared_ptr<SimClock> clock;
  std::shared_ptr<StoreCallCounters> counters;
  std::shared_ptr<Store> store;
};

TEST(DeadlineStore, TransfersThatHangInThreadsOfTheirOwnLeaveSmallCallsTheirs) {
  Rig rig({.transfers = make_thread_pool(pool_options(1))}, 1);
  const Bytes payload = payload_for("object", 100);
  rig.store->put({put_item("key", payload)}, {});
  rig.gate->close_gate(GatePoint::kBeforeCall);
  Bytes buffer(100);
  rig.abandon([&] { rig.store->get({get_item("key", buffer)}, rig.within_a_second()); });
  rig.abandon([&] { rig.store->exists({"key"}, rig.within_a_second()); });
  EXPECT_EQ(rig.gate->waiting(), 2u) << "each in the only thread of its kind";
  rig.settle();
  EXPECT_EQ(rig.store->exists({"key"}, {}), std::vector{Reaction::kOk});
}

TEST(DeadlineStore, HungGetIsDownAtItsDeadlineAndKeepsTheHoldUntilItReturns) {
  Rig rig;
  const Bytes payload = payload_for("object", 100);
  rig.store->put({put_item("key", payload)}, {});
  rig.gate->close_gate(GatePoint::kBeforeCall);
  auto hold = std::make_shared<int>(0);
  Bytes buffer(100, std::byte{0xa5});
  rig.abandon([&] {
    const auto results =
        rig.store->get({get_item("key", buffer)}, rig.within_a_second(std::move(hold)));
    ASSERT_EQ(results.size(), 1u);
    EXPECT_EQ(results[0].reaction, Reaction::kDown);
    EXPECT_EQ(results[0].bytes, 0u);
  });
  EXPECT_EQ(rig.counters->abandoned.load(), 1u);
  EXPECT_EQ(rig.counters->abandoned_now.load(), 1u);
  rig.settle();
  // The buffer was written after the caller had given up: that is what the hold is for.
  EXPECT_TRUE(buffer == payload);
  EXPECT_EQ(rig.counters->abandoned.load(), 1u);
}

TEST(DeadlineStore, HoldOfAnAbandonedCallIsReleasedBeforeTheCallCountsAsOver) {
  Rig rig;
  rig.gate->close_gate(GatePoint::kBeforeReply);
  auto hold = std::make_shared<int>(0);
  const std::weak_ptr<int> watched = hold;
  rig.abandon([&] {
    const auto results = rig.store->exists({"key"}, rig.within_a_second(std::move(hold)));
    EXPECT_EQ(results, std::vector<Reaction>(1, Reaction::kDown));
  });
  EXPECT_FALSE(watched.expired()) << "released while the store may still use the buffers";
  rig.settle();
  EXPECT_TRUE(watched.expired());
}

TEST(DeadlineStore, FewReplicateAtATimeEvenIfTheyAreAbandoned) {
  DeadlineStoreOptions options;
  options.max_replicating = 1;
  Rig rig(options);
  const auto replicate = [&] {
    return rig.store->replicate({{"a", 2}, {"b", 2}}, rig.within_a_second());
  };
  const std::vector<Reaction> inside = replicate();  // The store keeps one copy.
  EXPECT_EQ(inside, std::vector<Reaction>(2, Reaction::kCallerBug));
  rig.gate->close_gate(GatePoint::kBeforeCall);
  rig.abandon([&] { EXPECT_EQ(replicate(), std::vector<Reaction>(2, Reaction::kDown)); });
  EXPECT_EQ(replicate(), std::vector<Reaction>(2, Reaction::kBackOff));
  EXPECT_EQ(rig.gate->count(StoreOp::kReplicate), 2u);
  rig.settle();
  EXPECT_EQ(replicate(), inside);
}

TEST(DeadlineStore, EffectOfAnAbandonedPutIsUnknown) {
  Rig rig;
  rig.gate->close_gate(GatePoint::kBeforeReply);
  const Bytes payload = payload_for("object", 100);
  rig.abandon([&] {
    const auto results = rig.store->put({put_item("key", payload)}, rig.within_a_second());
    EXPECT_EQ(results[0].reaction, Reaction::kDown);
    EXPECT_EQ(results[0].effect, PutEffect::kUnknown);
  });
  rig.settle();
  EXPECT_EQ(rig.store->exists({"key"}, {})[0], Reaction::kOk);
}

TEST(DeadlineStore, CallThatNeverStartedHasNoEffectAndHoldsNothing) {
  const auto gate = std::make_shared<GatedStore>(make_memory_store({}));
  const auto executor = std::make_shared<SteppableExecutor>();
  const auto clock = std::make_shared<SimClock>(std::chrono::milliseconds(100));
  const auto counters = std::make_shared<StoreCallCounters>();
  const auto store = make_deadline_store(gate, executor, clock, counters);
  const Bytes payload = payload_for("object", 100);
  const auto hold = std::make_shared<int>(0);
  const auto results = store->put({put_item("key", payload)},
                                  {Deadline::after(*clock, std::chrono::seconds(1)), hold});
  EXPECT_EQ(results[0].reaction, Reaction::kDown);
  EXPECT_EQ(results[0].effect, PutEffect::kNone);
  EXPECT_EQ(hold.use_count(), 1);
  EXPECT_EQ(counters->refused.load(), 1u);
  EXPECT_EQ(counters->abandoned.load(), 0u);
  EXPECT_EQ(executor->run_all(), 1u);
  EXPECT_TRUE(gate->calls().empty());
  EXPECT_EQ(counters->calls.load(), 0u);
}

TEST(DeadlineStore, PastTheBoundOfAbandonedCallsEveryCallIsDownAtOnce) {
  DeadlineStoreOptions options;
  options.max_abandoned = 2;
  Rig rig(options);
  rig.gate->close_gate(GatePoint::kBeforeCall);
  for (int i = 0; i < 2; ++i) {
    rig.abandon([&] { rig.store->exists({"key"}, rig.within_a_second()); });
  }
  EXPECT_EQ(rig.counters->abandoned_now.load(), 2u);
  // Without a deadline this would hang for ever if it were made.
  EXPECT_EQ(rig.store->exists({"key"}, {}), std::vector<Reaction>(1, Reaction::kDown));
  EXPECT_EQ(rig.gate->count(StoreOp::kExists), 2u);
  EXPECT_EQ(rig.counters->refused.load(), 1u);

  rig.gate->let_pass(1);
  while (rig.counters->abandoned_now.load() == 2) rig.clock->now();
  rig.gate->open_gate();
  EXPECT_EQ(rig.store->exists({"key"}, {}), std::vector<Reaction>(1, Reaction::kMiss));
  rig.settle();
}

TEST(DeadlineStore, FullExecutorIsDown) {
  const auto executor = std::make_shared<SteppableExecutor>();
  executor->refuse();
  const auto counters = std::make_shared<StoreCallCounters>();
  const auto store = make_deadline_store(make_memory_store({}), executor, system_clock(), counters);
  EXPECT_EQ(store->exists({"a", "b"}, {}), std::vector<Reaction>(2, Reaction::kDown));
  EXPECT_EQ(counters->refused.load(), 1u);
}

TEST(DeadlineStore, CountsCallsAndItems) {
  Rig rig;
  rig.store->exists({"a", "b", "c"}, {});
  rig.store->remove({"a"}, {});
  rig.store->exists({}, {});
  EXPECT_EQ(rig.counters->calls.load(), 2u);
  EXPECT_EQ(rig.counters->items.load(), 4u);
  EXPECT_EQ(rig.counters->refused.load(), 0u);
}

TEST(DeadlineStore, MayBeDestroyedWhileCallsHang) {
  auto pool = std::shared_ptr<Executor>(make_thread_pool(pool_options(1)));
  const auto clock = std::make_shared<SimClock>();
  const auto counters = std::make_shared<StoreCallCounters>();
  auto gate = std::make_shared<GatedStore>(make_memory_store({}));
  const std::weak_ptr<GatedStore> watched = gate;
  auto store = make_deadline_store(gate, pool, clock, counters);
  gate->close_gate(GatePoint::kBeforeCall);
  abandon_call(*gate, *clock, [&] {
    store->exists({"key"}, {Deadline::after(*clock, std::chrono::seconds(1)), nullptr});
  });
  store.reset();
  EXPECT_FALSE(watched.expired());
  gate->open_gate();
  gate.reset();
  pool.reset();  // joins
  EXPECT_TRUE(watched.expired());
  EXPECT_EQ(counters->abandoned_now.load(), 0u);
}

TEST(DeadlineStore, NobodyWaitsForThreadsInsideOfAbandonedCalls) {
  const auto counters = std::make_shared<StoreCallCounters>();
  std::shared_ptr<Executor> threads = make_call_threads(pool_options(2), counters);
  const auto clock = std::make_shared<SimClock>();
  auto gate = std::make_shared<GatedStore>(make_memory_store({}));
  const std::weak_ptr<GatedStore> watched = gate;
  auto store = make_deadline_store(gate, threads, clock, counters, {.transfers = threads});
  gate->close_gate(GatePoint::kBeforeCall);
  abandon_call(*gate, *clock, [&] {
    store->exists({"key"}, {Deadline::after(*clock, std::chrono::seconds(1)), nullptr});
  });
  threads.reset();
  store.reset();  // The last user, as a worker may be; returns although the call has not.
  EXPECT_EQ(counters->abandoned_now.load(), 1u);
  gate->open_gate();
  gate.reset();
  while (!watched.expired()) clock->now();
}

TEST(DeadlineStore, RegistrationThatHangsTimesOut) {
  const auto executor = std::make_shared<SteppableExecutor>();
  const auto clock = std::make_shared<SimClock>(std::chrono::milliseconds(100));
  const auto store = make_deadline_store(make_memory_store({}), executor, clock,
                                         std::make_shared<StoreCallCounters>());
  Bytes memory(100);
  const Status status = store->register_memory(memory);
  EXPECT_EQ(status.code(), Code::kTimedOut);
  EXPECT_NE(status.message().find("register_memory"), std::string::npos);
  EXPECT_EQ(store->unregister_memory(memory).code(), Code::kTimedOut);
}

TEST(DeadlineStore, CloseThatHangsReturnsAtItsDeadlineAndStillCloses) {
  const auto memory = make_memory_store({});
  const auto executor = std::make_shared<SteppableExecutor>();
  const auto clock = std::make_shared<SimClock>(std::chrono::milliseconds(100));
  const auto store =
      make_deadline_store(memory, executor, clock, std::make_shared<StoreCallCounters>());
  store->close(Deadline::after(*clock, std::chrono::seconds(1)));
  EXPECT_EQ(store->exists({"key"}, {}), std::vector<Reaction>(1, Reaction::kDown));
  EXPECT_EQ(executor->pending(), 1u) << "a call was made after close";
  EXPECT_EQ(memory->exists({"key"}, {})[0], Reaction::kMiss) << "not closed yet";
}

}  // namespace
}  // namespace kvc
