#include "store/wrap/handle_store.h"

#include <gtest/gtest.h>

#include <utility>

#include "os/thread.h"
#include "store/memory/memory_store.h"
#include "testing/conformance_fixture.h"
#include "testing/gated_store.h"
#include "testing/sim_clock.h"

namespace kvc {
namespace {

using testlib::Bytes;
using testlib::GatedStore;
using testlib::GatePoint;
using testlib::payload_for;
using testlib::put_item;
using testlib::SimClock;

constexpr std::size_t kCapacity = std::size_t{64} << 20;

testlib::StoreConformance conformance() {
  testlib::StoreConformance parameters;
  parameters.name = "Handle";
  parameters.open = [] {
    MemoryStoreOptions options;
    options.capacity_bytes = kCapacity;
    return make_store_handle(make_memory_store(options), system_clock());
  };
  parameters.expected.atomic_publish = true;
  parameters.expected.put_tells_existing = true;
  parameters.expected.max_object_bytes = kCapacity;
  parameters.capacity_bytes = kCapacity;
  return parameters;
}

const bool kIsRegistered = register_store_conformance(conformance());

TEST(HandleStore, CloseEndsTheHandleAndNotTheStore) {
  const auto memory = make_memory_store({});
  const auto first = make_store_handle(memory, system_clock());
  const auto second = make_store_handle(memory, system_clock());
  const Bytes payload = payload_for("object", 100);
  first->put({put_item("key", payload)}, {});
  first->close(Deadline::never());
  EXPECT_EQ(first->exists({"key"}, {})[0], Reaction::kDown);
  EXPECT_EQ(second->exists({"key"}, {})[0], Reaction::kOk);
}

TEST(HandleStore, CloseUnregistersWhatTheHandleRegistered) {
  const auto gate = std::make_shared<GatedStore>(make_memory_store({}));
  const auto first = make_store_handle(gate, system_clock());
  const auto second = make_store_handle(gate, system_clock());
  Bytes memory(400);
  const std::span<std::byte> whole(memory);
  ASSERT_TRUE(first->register_memory(whole.subspan(0, 100)).ok());
  ASSERT_TRUE(first->register_memory(whole.subspan(100, 100)).ok());
  ASSERT_TRUE(second->register_memory(whole.subspan(200, 100)).ok());
  EXPECT_EQ(first->unregister_memory(whole.subspan(200, 100)).code(), Code::kInvalid);
  ASSERT_TRUE(first->unregister_memory(whole.subspan(0, 100)).ok());
  EXPECT_EQ(gate->registered(), 2u);
  first->close(Deadline::never());
  EXPECT_EQ(gate->registered(), 1u);
}

TEST(HandleStore, DroppingTheHandleUnregistersToo) {
  const auto gate = std::make_shared<GatedStore>(make_memory_store({}));
  Bytes memory(100);
  ASSERT_TRUE(make_store_handle(gate, system_clock())->register_memory(memory).ok());
  EXPECT_EQ(gate->registered(), 0u);
}

TEST(HandleStore, CloseReturnsAtItsDeadlineAndTheLastCallUnregisters) {
  const auto gate = std::make_shared<GatedStore>(make_memory_store({}));
  const auto clock = std::make_shared<SimClock>(std::chrono::milliseconds(100));
  const auto handle = make_store_handle(gate, clock);
  Bytes memory(100);
  ASSERT_TRUE(handle->register_memory(memory).ok());
  gate->close_gate(GatePoint::kBeforeCall);
  Result<Thread> caller = Thread::start("caller", [&] { handle->exists({"key"}, {}); });
  ASSERT_TRUE(caller.ok());
  ASSERT_TRUE(gate->wait_for_waiting(1));
  handle->close(Deadline::after(*clock, std::chrono::seconds(1)));
  EXPECT_EQ(gate->registered(), 1u) << "unregistered under a call in flight";
  EXPECT_EQ(handle->exists({"key"}, {})[0], Reaction::kDown);
  gate->open_gate();
  caller->join();
  EXPECT_EQ(gate->registered(), 0u);
}

}  // namespace
}  // namespace kvc
