#include "store/call_gate.h"

#include <gtest/gtest.h>

#include "os/thread.h"
#include "testing/sim_clock.h"

namespace kvc {
namespace {

using testlib::SimClock;

TEST(CallGate, ShutOfAnEmptyGateTellsOnce) {
  CallGate gate;
  EXPECT_TRUE(gate.enter());
  EXPECT_FALSE(gate.leave());
  EXPECT_FALSE(gate.is_shut());
  EXPECT_TRUE(gate.shut(Deadline::never(), *system_clock()));
  EXPECT_TRUE(gate.is_shut());
  EXPECT_FALSE(gate.enter());
  EXPECT_FALSE(gate.shut(Deadline::never(), *system_clock()));
}

TEST(CallGate, LastCallIsToldWhenShutGaveUp) {
  CallGate gate;
  const SimClock clock(std::chrono::milliseconds(10));
  ASSERT_TRUE(gate.enter());
  ASSERT_TRUE(gate.enter());
  EXPECT_FALSE(gate.shut(Deadline::after(clock, std::chrono::seconds(1)), clock));
  EXPECT_FALSE(gate.enter());
  EXPECT_FALSE(gate.leave());
  EXPECT_TRUE(gate.leave());
  EXPECT_FALSE(gate.shut(Deadline::never(), clock)) << "told twice";
}

TEST(CallGate, ShutWaitsForTheCallsInside) {
  CallGate gate;
  ASSERT_TRUE(gate.enter());
  bool told = false;
  Result<Thread> closer =
      Thread::start("closer", [&] { told = gate.shut(Deadline::never(), *system_clock()); });
  ASSERT_TRUE(closer.ok());
  while (!gate.is_shut()) {
  }
  // Either the closer is waiting by now and is told, or it finds the gate empty: once in any case.
  EXPECT_FALSE(gate.leave());
  closer->join();
  EXPECT_TRUE(told);
}

}  // namespace
}  // namespace kvc
