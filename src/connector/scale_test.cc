// What users can have much of must not make a callback, or a lock that one takes, cost its square.
// The bounds are CPU time, far above what is needed and far below what the square takes.
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <vector>

#include "connector/host_tier_fixture.h"
#include "connector/promise_book.h"
#include "connector/scheduler_fixture.h"
#include "connector/worker_stage_fixture.h"

namespace kvc {
namespace {

/// Of the CPU, for what takes milliseconds if it is done right.
constexpr double kBoundSeconds = 1;

template <typename Work>
double cpu_seconds(Work work) {
  const std::clock_t begin = std::clock();
  work();
  return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

TEST(Scale, ManyLoadsArePlannedAtOnce) {
  constexpr std::size_t kRequests = 40'000;
  SchedulerFixture world(1, kRequests);
  const std::vector<Token> prompt = make_tokens(2 * kBlockTokens + 1);
  const std::vector<SlotIndex> slots = make_slots(3);
  world.publish_blocks(prompt, 0, 2);
  std::vector<StepRequest> batch;
  for (RequestId id = 1; id <= kRequests; ++id) {
    ASSERT_EQ(world.query(id, prompt).blocks, 2u);
    world.scheduler->allocated(id, slots);
    batch.push_back({.id = id,
                     .is_new = true,
                     .new_tokens = prompt,
                     .new_slots = slots,
                     .scheduled_tokens = 1});
  }
  StepPlan plan;
  EXPECT_LT(cpu_seconds([&] { plan = world.scheduler->plan_step(batch); }), kBoundSeconds);
  EXPECT_EQ(plan.loads.size(), 2 * kRequests);
  EXPECT_TRUE(plan.loads_in_batch);
}

TEST(Scale, ManyNewPagesAreComparedInOneGo) {
  constexpr std::size_t kPages = 200'000;
  SchedulerFixture world(1);
  const std::vector<Token> prompt = make_tokens(3 * kBlockTokens);
  std::vector<SlotIndex> slots = make_slots(3 * kPages);
  (void)world.query(1, prompt);
  world.scheduler->allocated(1, slots);
  const std::span<const SlotIndex> all(slots);
  const auto go_on = [&](std::size_t step) {
    return world.plan({{.id = 1,
                        .is_new = step == 0,
                        .new_tokens = std::span(prompt).first(step == 0 ? prompt.size() : 0),
                        .new_slots = all.subspan(step * kPages, kPages),
                        .computed_tokens = step * kBlockTokens,
                        .scheduled_tokens = kBlockTokens}});
  };
  EXPECT_EQ(go_on(0).saves.size(), 1u);
  StepPlan plan;
  EXPECT_LT(cpu_seconds([&] { plan = go_on(1); }), kBoundSeconds);
  EXPECT_EQ(plan.saves.size(), 1u);
  slots.back() = slots[kPages / 2];
  EXPECT_TRUE(go_on(2).saves.empty()) << "a page of two blocks";
}

TEST(Scale, HoldsAreLookedThroughOnlyWhenOneMayBeOver) {
  constexpr std::size_t kHolds = 20'000;
  constexpr std::size_t kCallbacks = 100'000;
  PromiseBook book({.ranks = 1, .max_holds = kHolds, .hold_for = std::chrono::seconds(10)});
  std::vector<HoldId> holds;
  for (std::size_t i = 0; i < kHolds; ++i) {
    holds.push_back(book.begin(1));
    book.on_progress(0, {.hold = holds.back(), .staged = 1, .done = true});
    (void)book.close(holds.back(), Instant(std::chrono::seconds(i == 0 ? 0 : 5)));
  }
  const auto calls = [&] {
    for (std::size_t i = 0; i < kCallbacks; ++i)
      (void)book.expire(Instant(std::chrono::seconds(9)));
  };
  EXPECT_LT(cpu_seconds(calls), kBoundSeconds);
  EXPECT_EQ(book.expire(Instant(std::chrono::seconds(10))), 1u);
  EXPECT_TRUE(book.renew(holds[1], Instant(std::chrono::seconds(7))));
  EXPECT_TRUE(book.allocated(holds[2]));
  EXPECT_EQ(book.expire(Instant(std::chrono::seconds(14))), 0u);
  EXPECT_EQ(book.expire(Instant(std::chrono::seconds(15))), kHolds - 3);
  EXPECT_EQ(book.expire(Instant(std::chrono::seconds(17))), 1u);
  EXPECT_EQ(book.size(), 1u) << "the one with pages";
}

/// Pages of a tier that saves have leases on, which a slow store has not taken yet.
std::vector<StagingLease> queue_saves(TierWorld& world, std::uint64_t count) {
  std::vector<StagingLease> saves;
  for (std::uint64_t number = 1; number <= count; ++number) {
    saves.push_back(world.tier->borrow_for_save());
    world.tier->put(block(number), without_claim(saves.back()));
  }
  return saves;
}

TEST(Scale, OrdersWithoutAPageAreGivenUpInOneGo) {
  constexpr std::uint64_t kPages = 60'000;
  constexpr HoldId kOrders = 4000;
  TierWorld world(kPages);
  const std::vector<StagingLease> saves = queue_saves(world, kPages);
  for (HoldId hold = 1; hold <= kOrders; ++hold) world.stage(hold, {kPages + hold});
  EXPECT_LT(cpu_seconds([&] { EXPECT_TRUE(world.begin().empty()); }), kBoundSeconds);
  EXPECT_EQ(world.tier->ended(StageEnd::kNoRoom), kOrders);
  EXPECT_EQ(world.tier->resident(), kPages);
}

TEST(Scale, EndOfAnOrderMakesRoomAmongManyThatOthersUse) {
  constexpr std::uint64_t kPages = 20'000;
  constexpr std::uint64_t kEnd = 4000;
  TierWorld world(kPages + kEnd);
  const std::vector<StagingLease> saves = queue_saves(world, kPages);
  std::vector<std::uint64_t> order;
  for (std::uint64_t number = 1; number <= kEnd; ++number) order.push_back(2 * kPages + number);
  for (std::uint64_t number = 1; number <= kEnd; ++number) {
    world.put(kPages + number);
    order.push_back(kPages + number);
  }
  world.stage(1, order);
  EXPECT_LT(cpu_seconds([&] { EXPECT_EQ(world.begin(kEnd).size(), kEnd); }), kBoundSeconds);
  EXPECT_EQ(world.tier->evictions(), kEnd);
  EXPECT_EQ(world.tier->resident(), kPages);
}

TEST(Scale, SavesWithoutAPageLookForOneWhenASaveHasEnded) {
  constexpr std::uint64_t kPages = 20'000;
  TierWorld world(kPages + 1);
  std::vector<StagingLease> saves = queue_saves(world, kPages);
  world.put(kPages + 1);
  const StagingLease load = world.tier->find(block(kPages + 1));
  const auto ask = [&] {
    for (int i = 0; i < 10'000; ++i) EXPECT_EQ(world.tier->borrow_for_save(), nullptr);
  };
  EXPECT_LT(cpu_seconds(ask), kBoundSeconds);
  saves[kPages / 2] = nullptr;
  EXPECT_NE(world.tier->borrow_for_save(), nullptr);
  EXPECT_FALSE(world.has(kPages / 2 + 1));
}

TEST(Scale, ReleasesDoNotLookThroughAllOrdersThatWait) {
  constexpr HoldId kOrders = 4000;
  constexpr HoldId kReleases = 40'000;
  StageWorld world;
  world.options.batch_blocks = 8;
  world.start();
  for (HoldId hold = 1; hold <= kOrders; ++hold) world.order(hold, {2 * hold, 2 * hold + 1});
  const auto release = [&] {
    for (HoldId hold = 1; hold <= kReleases; ++hold) {
      world.rank->release({.hold = kOrders + hold, .from_block = 0});
    }
  };
  EXPECT_LT(cpu_seconds(release), kBoundSeconds);
  EXPECT_EQ(world.worker->stats().holds_open, kOrders);
}

}  // namespace
}  // namespace kvc
