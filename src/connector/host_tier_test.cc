// The host tier: which page is kept, held, fetched and evicted, and what the leader is told.

#include "connector/host_tier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "base/random.h"
#include "testing/seed.h"

namespace kvc {
namespace {

constexpr std::size_t kPageBytes = 64;
constexpr Instant kLate{std::chrono::seconds(10)};

class PlainMemory final : public StagingMemory {
 public:
  explicit PlainMemory(std::size_t bytes) : memory_(bytes) {}
  std::span<std::byte> bytes() const override { return memory_; }
  void abandon() override {}

 private:
  mutable std::vector<std::byte> memory_;
};

BlockHash block(std::uint64_t number) {
  BlockHash hash;
  Random(number).fill(hash.bytes);
  return hash;
}

std::vector<BlockHash> blocks(std::vector<std::uint64_t> numbers) {
  std::vector<BlockHash> all;
  for (const std::uint64_t number : numbers) all.push_back(block(number));
  return all;
}

std::string text(const StageProgress& progress) {
  static const char* const kEnds[] = {"all", "missing", "rejected", "no room", "unavailable"};
  std::string said = std::to_string(progress.hold) + ":" + std::to_string(progress.staged);
  return progress.done ? said + " " + kEnds[static_cast<std::size_t>(progress.end)] : said;
}

/// A tier, and a driver that does what the test says.
struct World {
  explicit World(std::size_t pages, HostTierOptions options = {})
      : memory(std::make_shared<StagingArea>(std::make_unique<PlainMemory>(pages * kPageBytes))),
        pool(std::make_shared<StagingPool>(memory, memory->bytes(), kPageBytes, pages)),
        tier(std::make_unique<HostTier>(pool, options)) {}

  void stage(HoldId hold, std::vector<std::uint64_t> numbers, Instant give_up = kLate) {
    tier->stage({.hold = hold, .blocks = blocks(std::move(numbers)), .fetch_budget = {}}, give_up);
  }
  void release(HoldId hold, std::uint32_t from = 0) { tier->release({hold, from}); }

  /// What the tier asks for now.
  std::vector<BlockHash> begin(std::size_t max = 100, Instant now = {}) {
    return take(tier->begin_fetches(max, now));
  }
  std::vector<BlockHash> begin_loose(std::size_t max = 100, Instant now = {}) {
    return take(tier->begin_loose_fetches(max, now));
  }
  std::vector<BlockHash> take(std::vector<HostTier::Fetch> fetches) {
    std::vector<BlockHash> begun;
    for (HostTier::Fetch& fetch : fetches) {
      begun.push_back(fetch.block);
      EXPECT_TRUE(in_flight.emplace(fetch.block, std::move(fetch.page)).second)
          << "twice at a time";
    }
    return begun;
  }
  void end(std::uint64_t number, FetchEnd how = FetchEnd::kVerified) {
    auto flight = in_flight.extract(block(number));
    ASSERT_FALSE(flight.empty());
    if (how == FetchEnd::kVerified) fill(*flight.mapped(), block(number));
    tier->fetched(block(number), how, std::move(flight.mapped()));
  }
  void fetch_all() {
    for (std::vector<BlockHash> begun = begin(); !begun.empty(); begun = begin()) {
      for (const BlockHash& each : begun) {
        auto flight = in_flight.extract(each);
        fill(*flight.mapped(), each);
        tier->fetched(each, FetchEnd::kVerified, std::move(flight.mapped()));
      }
    }
  }
  static void fill(StagingPage& page, const BlockHash& with) {
    std::ranges::copy(with.bytes, page.bytes().begin());
  }
  static bool holds(const StagingLease& page, const BlockHash& with) {
    return page != nullptr && std::ranges::equal(page->bytes().first(32), with.bytes);
  }
  void put(std::uint64_t number) {
    StagingLease page = pool->borrow(StagingPool::Use::kLoad);
    ASSERT_NE(page, nullptr);
    fill(*page, block(number));
    tier->put(block(number), std::move(page));
  }
  bool has(std::uint64_t number) const { return tier->contains(block(number)); }

  /// What the leader is told, sorted.
  std::string reports() {
    std::vector<std::string> said;
    for (const StageProgress& progress : tier->take_reports()) said.push_back(text(progress));
    std::ranges::sort(said);
    std::string all;
    for (const std::string& each : said) all += (all.empty() ? "" : ", ") + each;
    return all;
  }

  std::shared_ptr<StagingArea> memory;
  std::shared_ptr<StagingPool> pool;
  std::unique_ptr<HostTier> tier;
  std::map<BlockHash, StagingLease> in_flight;
};

TEST(HostTier, FetchesWhatIsOrderedAndTellsAsItGrows) {
  World world(8);
  world.stage(1, {1, 2, 3});
  EXPECT_EQ(world.reports(), "") << "nothing to tell yet";
  EXPECT_EQ(world.tier->wanted(), 3u);
  EXPECT_EQ(world.begin(2), blocks({1, 2}));
  EXPECT_EQ(world.begin(2), blocks({3}));
  EXPECT_EQ(world.tier->wanted(), 0u);
  world.end(2);
  EXPECT_EQ(world.reports(), "") << "the first block is not there";
  world.end(1);
  EXPECT_EQ(world.reports(), "1:2");
  world.end(3);
  EXPECT_EQ(world.reports(), "1:3 all");
  EXPECT_EQ(world.reports(), "") << "nothing is told twice";
  EXPECT_EQ(world.tier->held(), 3u);
  EXPECT_TRUE(World::holds(world.tier->find(block(2)), block(2)));
}

TEST(HostTier, WhatIsResidentIsStagedAtOnce) {
  World world(8);
  world.stage(1, {1, 2});
  world.fetch_all();
  world.release(1);
  EXPECT_EQ(world.tier->held(), 0u);
  EXPECT_EQ(world.tier->resident_prefix(blocks({1, 2, 3})), 2u);
  EXPECT_EQ(world.tier->resident_prefix(blocks({3, 1, 2})), 0u);
  (void)world.reports();
  world.stage(2, {1, 2, 3});
  EXPECT_EQ(world.reports(), "2:2");
  EXPECT_EQ(world.begin(), blocks({3}));
  world.end(3);
  EXPECT_EQ(world.reports(), "2:3 all");
  world.stage(3, {1, 2, 3});
  EXPECT_EQ(world.reports(), "3:3 all");
  EXPECT_TRUE(world.begin().empty());
}

TEST(HostTier, OrderWithoutBlocksIsDoneAtOnce) {
  World world(1);
  world.stage(1, {});
  EXPECT_EQ(world.reports(), "1:0 all");
  world.release(1);
  EXPECT_EQ(world.tier->holds(), 0u);
}

TEST(HostTier, BlockIsFetchedOnceForAllWhoWantIt) {
  World world(8);
  world.stage(1, {1, 2});
  world.stage(2, {1, 2, 3});
  EXPECT_EQ(world.begin(), blocks({1, 2, 3}));
  world.stage(3, {1});
  EXPECT_TRUE(world.begin().empty());
  world.end(1);
  EXPECT_EQ(world.reports(), "1:1, 2:1, 3:1 all");
  world.end(2, FetchEnd::kMissing);
  EXPECT_EQ(world.reports(), "1:1 missing, 2:1 missing");
  world.end(3);
  EXPECT_EQ(world.reports(), "");
  EXPECT_TRUE(world.has(3)) << "it stays warm";
  EXPECT_EQ(world.tier->held(), 1u);
  EXPECT_EQ(world.tier->ended(StageEnd::kMissing), 2u);
}

TEST(HostTier, OrderEndsAtTheFirstBlockThatDoesNotCome) {
  for (const auto& [how, said] :
       std::map<FetchEnd, std::string>{{FetchEnd::kMissing, "1:1 missing"},
                                       {FetchEnd::kRejected, "1:1 rejected"},
                                       {FetchEnd::kUnavailable, "1:1 unavailable"}}) {
    World world(8);
    world.stage(1, {1, 2, 3, 4});
    (void)world.begin(3);
    world.end(3);
    world.end(2, how);
    EXPECT_EQ(world.reports(), "") << "block 1 is still to come";
    EXPECT_TRUE(world.begin().empty()) << "nothing behind the gap is fetched any more";
    world.end(1);
    EXPECT_EQ(world.reports(), said);
    EXPECT_EQ(world.tier->held(), 1u) << "what lies behind the gap is not held";
    EXPECT_EQ(world.tier->resident(), 2u);
    EXPECT_FALSE(world.has(2));
  }
}

TEST(HostTier, EarlierGapCountsWhicheverIsSeenFirst) {
  World world(8);
  world.stage(1, {1, 2, 3});
  (void)world.begin();
  world.end(3, FetchEnd::kUnavailable);
  world.end(2, FetchEnd::kRejected);
  world.end(1, FetchEnd::kMissing);
  EXPECT_EQ(world.reports(), "1:0 missing");
}

TEST(HostTier, VerifiedWithoutAPageIsNoPage) {
  World world(2);
  world.stage(1, {1});
  (void)world.begin();
  world.in_flight.clear();
  world.tier->fetched(block(1), FetchEnd::kVerified, nullptr);
  EXPECT_EQ(world.reports(), "1:0 unavailable");
  EXPECT_EQ(world.pool->lent(), 0u);
}

TEST(HostTier, AnswersThatNobodyWaitsForAreIgnored) {
  World world(4);
  StagingLease page = world.pool->borrow(StagingPool::Use::kLoad);
  world.tier->fetched(block(9), FetchEnd::kVerified, page);
  EXPECT_FALSE(world.has(9)) << "it may have been refused meanwhile";
  world.stage(1, {1});
  (void)world.begin();
  world.end(1);
  world.tier->fetched(block(1), FetchEnd::kMissing, nullptr);
  EXPECT_EQ(world.reports(), "1:1 all");
  EXPECT_TRUE(world.has(1)) << "a repeated answer changes nothing";
}

// Holds ---------------------------------------------------------------------------------------

TEST(HostTier, HeldPagesAreNeverEvicted) {
  World world(2);
  world.stage(1, {1, 2});
  world.fetch_all();
  EXPECT_FALSE(world.tier->make_room());
  EXPECT_FALSE(world.tier->drop(block(1)));
  (void)world.reports();
  world.stage(2, {3});
  EXPECT_TRUE(world.begin().empty());
  EXPECT_EQ(world.reports(), "2:0 no room");
  EXPECT_EQ(world.tier->ended(StageEnd::kNoRoom), 1u);
  world.release(1, 1);
  EXPECT_TRUE(world.tier->make_room());
  EXPECT_TRUE(world.has(1));
  EXPECT_FALSE(world.has(2)) << "it was let go of";
  EXPECT_FALSE(world.tier->make_room());
  world.release(1);
  EXPECT_TRUE(world.tier->drop(block(1)));
  EXPECT_EQ(world.pool->lent(), 0u);
}

TEST(HostTier, PageOfTwoHoldsIsHeldUntilBothEnd) {
  World world(2);
  world.stage(1, {1});
  world.stage(2, {1});
  world.fetch_all();
  world.release(1);
  EXPECT_FALSE(world.tier->make_room());
  world.release(1);
  EXPECT_FALSE(world.tier->make_room()) << "a release that comes twice counts once";
  world.release(2);
  EXPECT_TRUE(world.tier->make_room());
}

TEST(HostTier, OrderLongerThanTheMemoryIsStagedAsFarAsItGoes) {
  World world(3);
  world.stage(1, {1, 2, 3, 4, 5});
  world.fetch_all();
  EXPECT_EQ(world.reports(), "1:3 no room");
}

TEST(HostTier, BlockTwiceInAnOrderIsHeldTwiceAndLetGoOfTwice) {
  World world(3);
  world.stage(1, {1, 1, 2});
  world.fetch_all();
  EXPECT_EQ(world.reports(), "1:3 all");
  world.release(1, 1);
  EXPECT_EQ(world.tier->held(), 1u);
  world.release(1);
  EXPECT_EQ(world.tier->held(), 0u);
}

TEST(HostTier, PartOfAHoldIsLetGoOfAndTheLeaderHearsNoMoreOfIt) {
  World world(8);
  world.stage(1, {1, 2, 3, 4});
  (void)world.begin();
  world.end(1);
  world.end(2);
  EXPECT_EQ(world.reports(), "1:2");
  world.release(1, 2);
  world.end(3);
  world.end(4);
  EXPECT_EQ(world.reports(), "") << "the leader has decided";
  EXPECT_EQ(world.tier->held(), 2u);
  EXPECT_EQ(world.tier->resident(), 4u) << "what was under way stays warm";
  world.release(1, 3);
  EXPECT_EQ(world.tier->held(), 2u) << "a release takes nothing back";
}

TEST(HostTier, HoldThatIsCutBeyondWhatItHasGoesOnToTheCut) {
  World world(8);
  world.stage(1, {1, 2, 3});
  (void)world.begin(1);
  world.release(1, 2);
  world.fetch_all();
  world.end(1);
  EXPECT_EQ(world.reports(), "1:2 all");
}

TEST(HostTier, WhatWasLetGoOfEarlyIsFetchedForTheNextWhoAsks) {
  World world(8);
  world.stage(1, {1, 2, 3, 4});
  (void)world.begin(2);
  world.end(1);
  (void)world.reports();
  world.release(1, 1);
  EXPECT_EQ(world.tier->wanted(), 0u) << "nobody waits for it";
  EXPECT_EQ(world.begin_loose(), blocks({3, 4})) << "2 is under way";
  world.end(2);
  world.end(3);
  EXPECT_EQ(world.tier->wanted_loose(), 0u);
  world.stage(2, {1, 2, 3, 4});
  EXPECT_EQ(world.reports(), "2:3");
  EXPECT_TRUE(world.begin().empty()) << "4 is joined";
  world.end(4);
  EXPECT_EQ(world.reports(), "2:4 all");
}

TEST(HostTier, LooseOrderEndsAtItsFirstGap) {
  World world(8);
  world.stage(1, {1, 2, 3, 4});
  world.release(1);
  EXPECT_EQ(world.begin_loose(2), blocks({1, 2}));
  world.end(1, FetchEnd::kMissing);
  EXPECT_TRUE(world.begin_loose().empty());
  world.end(2);
  EXPECT_EQ(world.reports(), "");
  EXPECT_EQ(world.tier->held(), 0u);
}

TEST(HostTier, LooseOrderDoesNotEvictItsOwnBeginningNorWhatIsNewer) {
  World world(3);
  world.put(10);
  world.stage(1, {1, 2, 3, 4, 5});
  world.release(1);
  world.put(11);
  EXPECT_EQ(world.begin_loose(1), blocks({1}));
  world.end(1);
  EXPECT_EQ(world.begin_loose(1), blocks({2})) << "10 is older and goes";
  world.end(2);
  EXPECT_TRUE(world.begin_loose(1).empty());
  EXPECT_EQ(world.tier->wanted_loose(), 0u);
  EXPECT_TRUE(world.has(1) && world.has(2) && world.has(11));
  EXPECT_FALSE(world.has(10));
}

TEST(HostTier, LooseOrdersAreBoundedAndTheOldestEnds) {
  World world(8, {.loose_max = 2});
  for (HoldId hold = 1; hold <= 3; ++hold) {
    world.stage(hold, {hold});
    world.release(hold);
  }
  EXPECT_EQ(world.begin_loose(), blocks({2, 3}));
  World without(8, {.loose_max = 0});
  without.stage(1, {1});
  without.release(1);
  EXPECT_TRUE(without.begin_loose().empty());
}

TEST(HostTier, NothingIsFetchedForAnOrderAfterItsBudget) {
  World world(8);
  world.stage(1, {1, 2, 3}, Instant(std::chrono::seconds(1)));
  world.stage(2, {4}, kLate);
  EXPECT_EQ(world.begin(1), blocks({1}));
  EXPECT_EQ(world.begin(9, Instant(std::chrono::seconds(1))), blocks({4}));
  world.end(1);
  EXPECT_EQ(world.reports(), "1:1 unavailable");
  EXPECT_EQ(world.tier->held(), 1u) << "what it has, it holds for as long as the leader wants";
  world.stage(3, {5}, Instant(std::chrono::seconds(1)));
  world.release(3);
  EXPECT_TRUE(world.begin_loose(9, Instant(std::chrono::seconds(1))).empty());
  EXPECT_EQ(world.tier->wanted_loose(), 0u);
}

TEST(HostTier, WithoutAnyoneToFetchWhatIsWantedEnds) {
  World world(8);
  world.stage(1, {1, 2});
  world.stage(2, {3});
  world.stage(3, {4});
  world.release(3);
  (void)world.begin(1);
  world.tier->give_up_wanted();
  EXPECT_EQ(world.reports(), "2:0 unavailable");
  EXPECT_EQ(world.tier->wanted() + world.tier->wanted_loose(), 0u);
  world.end(1);
  EXPECT_EQ(world.reports(), "1:1 unavailable");
}

// Messages that come late, twice or in another order --------------------------------------------

TEST(HostTier, RepeatedOrderChangesNothing) {
  World world(8);
  world.stage(1, {1});
  world.fetch_all();
  EXPECT_EQ(world.reports(), "1:1 all");
  world.stage(1, {1, 2});
  EXPECT_EQ(world.reports(), "");
  EXPECT_EQ(world.tier->wanted(), 0u);
  world.release(1);
  world.stage(1, {1});
  EXPECT_EQ(world.tier->holds(), 0u) << "an order that comes after the end of its hold";
  EXPECT_EQ(world.reports(), "");
}

TEST(HostTier, ReleaseThatComesBeforeItsOrderCounts) {
  World world(8);
  world.release(1);
  world.release(2, 1);
  world.release(3, 2);
  world.release(3, 1);
  world.stage(1, {1});
  world.stage(2, {1, 2, 3});
  world.stage(3, {1, 2, 3});
  EXPECT_EQ(world.tier->holds(), 2u);
  EXPECT_EQ(world.begin(), blocks({1}));
  world.end(1);
  EXPECT_EQ(world.reports(), "2:1 all, 3:1 all");
}

TEST(HostTier, ReleasesThatAreRememberedAreBounded) {
  World world(8, {.releases_max = 2});
  for (HoldId hold = 1; hold <= 3; ++hold) world.release(hold);
  for (HoldId hold = 1; hold <= 3; ++hold) world.stage(hold, {1});
  EXPECT_EQ(world.tier->holds(), 1u) << "the oldest is forgotten";
}

TEST(HostTier, HoldsThatTheLeaderDoesNotKnowAnyMoreEnd) {
  World world(8);
  for (HoldId hold = 1; hold <= 4; ++hold) world.stage(hold, {hold});
  world.fetch_all();
  (void)world.reports();
  const std::vector<HoldId> live{2, 3};
  world.tier->keep_only(live, 3);
  EXPECT_FALSE(world.tier->has_hold(1));
  EXPECT_TRUE(world.tier->has_hold(2) && world.tier->has_hold(3));
  EXPECT_TRUE(world.tier->has_hold(4)) << "newer than what the leader spoke of";
  world.stage(1, {1});
  EXPECT_FALSE(world.tier->has_hold(1)) << "an order of before";
  world.tier->keep_only({}, 9);
  EXPECT_EQ(world.tier->held(), 0u);
}

TEST(HostTier, OrderOfALiveHoldMayComeAfterTheListOfThem) {
  World world(8);
  world.stage(1, {1});
  const std::vector<HoldId> live{1, 3, 4, 5};
  world.tier->keep_only(live, 5);
  world.release(4);
  world.release(5, 1);
  for (const HoldId hold : {1, 2, 3, 4, 5}) world.stage(hold, {hold, hold + 10});
  world.fetch_all();
  EXPECT_EQ(world.reports(), "1:1 all, 3:2 all, 5:1 all") << "2 is over, 4 was released";
  for (const HoldId hold : {1, 3, 5}) world.release(hold);
  for (const HoldId hold : {1, 2, 3, 4, 5}) world.stage(hold, {hold});
  EXPECT_EQ(world.tier->holds(), 0u) << "an order comes once";
  world.tier->keep_only(live, 5);
  for (const HoldId hold : {1, 2, 3, 4, 5}) world.stage(hold, {hold});
  EXPECT_EQ(world.tier->holds(), 0u) << "what was settled stays so";
}

TEST(HostTier, OlderListOfHoldsAfterANewerOneEndsNothingNew) {
  World world(8);
  for (const HoldId hold : {1, 2}) world.stage(hold, {hold});
  const std::vector<HoldId> newer{2, 3, 4};
  world.tier->keep_only(newer, 4);
  const std::vector<HoldId> older{1, 2};
  world.tier->keep_only(older, 2);
  EXPECT_TRUE(world.tier->has_hold(2));
  for (const HoldId hold : {1, 3, 4}) world.stage(hold, {hold});
  EXPECT_FALSE(world.tier->has_hold(1)) << "it is over, whatever was said before";
  EXPECT_TRUE(world.tier->has_hold(3) && world.tier->has_hold(4)) << "their orders were on the way";
}

TEST(HostTier, PageThatSomebodyUsesWhenRoomIsMadeIsNotTheNextToGo) {
  World world(8);
  for (const std::uint64_t number : {1, 2, 3, 4}) world.put(number);
  StagingLease save = world.tier->find(block(1));
  for (const std::uint64_t number : {2, 3, 4}) (void)world.tier->find(block(number));
  EXPECT_TRUE(world.tier->make_room());
  EXPECT_FALSE(world.has(2));
  save.reset();
  EXPECT_TRUE(world.tier->make_room());
  EXPECT_FALSE(world.has(3)) << "it was passed once, and is not looked at for every page";
  EXPECT_TRUE(world.tier->make_room());
  EXPECT_TRUE(world.has(1));
  // With nothing but pages in use the search ends.
  save = world.tier->find(block(1));
  EXPECT_FALSE(world.tier->make_room());
}

TEST(HostTier, HoldWithoutANumberIsNone) {
  World world(2);
  world.stage(0, {1});
  world.release(0);
  EXPECT_EQ(world.tier->holds() + world.tier->wanted(), 0u);
  EXPECT_EQ(world.reports(), "");
}

TEST(HostTier, HoldsAreBounded) {
  World world(8, {.holds_max = 1});
  world.stage(1, {1});
  world.stage(2, {2});
  EXPECT_EQ(world.reports(), "2:0 no room");
  world.stage(2, {2});
  EXPECT_EQ(world.reports(), "") << "it is refused once";
  world.release(1);
  world.stage(3, {3});
  EXPECT_TRUE(world.tier->has_hold(3));
}

// Pages ---------------------------------------------------------------------------------------

TEST(HostTier, LeastRecentlyUsedPageGoesFirst) {
  World world(4);
  for (const std::uint64_t number : {1, 2, 3}) world.put(number);
  EXPECT_NE(world.tier->find(block(1)), nullptr);
  EXPECT_TRUE(world.tier->make_room());
  EXPECT_FALSE(world.has(2));
  world.put(4);
  world.tier->put(block(3), world.pool->borrow(StagingPool::Use::kLoad));
  EXPECT_TRUE(world.tier->make_room());
  EXPECT_FALSE(world.has(1)) << "3 was put again";
  EXPECT_EQ(world.tier->evictions(), 2u);
}

TEST(HostTier, SparePagesAreLeftByFetchesAndSaves) {
  World world(3, {.spare_pages = 1});
  world.stage(1, {1, 2, 3});
  world.fetch_all();
  EXPECT_EQ(world.reports(), "1:2 no room");
  EXPECT_EQ(world.tier->borrow_for_save(), nullptr);
  world.release(1, 1);
  EXPECT_NE(world.tier->borrow_for_save(), nullptr) << "2 was not held";
  EXPECT_FALSE(world.has(2));
  EXPECT_EQ(world.pool->lent(), 1u);
}

TEST(HostTier, OfAHoldThatEndsTheBeginningStaysLongest) {
  World world(3);
  world.stage(1, {1, 2, 3});
  world.fetch_all();
  world.release(1);
  EXPECT_TRUE(world.tier->make_room());
  EXPECT_TRUE(world.has(1) && world.has(2));
  EXPECT_FALSE(world.has(3));
}

TEST(HostTier, PageThatSomebodyUsesIsNotEvicted) {
  World world(2);
  world.put(1);
  world.put(2);
  StagingLease copying = world.tier->find(block(1));
  const StagingLease saving = world.tier->find(block(2));
  world.stage(1, {3});
  EXPECT_TRUE(world.begin().empty());
  EXPECT_EQ(world.reports(), "1:0 no room");
  copying.reset();
  world.stage(2, {3});
  EXPECT_EQ(world.begin(), blocks({3}));
  EXPECT_TRUE(world.has(2));
  EXPECT_TRUE(World::holds(saving, block(2)));
}

TEST(HostTier, PageOfATransferThatWasGivenUpIsNotReused) {
  World world(2);
  world.stage(1, {1});
  (void)world.begin();
  const StagingLease transfer = world.in_flight.at(block(1));  // The store still writes.
  world.end(1, FetchEnd::kUnavailable);
  world.stage(2, {2, 3});
  EXPECT_EQ(world.begin(), blocks({2}));
  EXPECT_NE(world.in_flight.at(block(2))->bytes().data(), transfer->bytes().data());
}

TEST(HostTier, WhatWasJustSavedServesWhoWaitsForIt) {
  World world(8);
  world.stage(1, {1, 2});
  EXPECT_EQ(world.begin(1), blocks({1}));
  world.put(1);
  EXPECT_EQ(world.reports(), "1:1");
  world.put(2);
  EXPECT_TRUE(world.begin().empty()) << "nothing is left to fetch";
  EXPECT_EQ(world.reports(), "1:2 all");
  world.end(1, FetchEnd::kMissing);
  EXPECT_EQ(world.reports(), "");
  EXPECT_TRUE(world.has(1)) << "what the store lacks is here";
  EXPECT_EQ(world.tier->held(), 2u);
}

TEST(HostTier, EndsWithNothingLeft) {
  World world(4);
  world.stage(1, {1, 2});
  world.stage(2, {3});
  (void)world.begin(2);
  world.end(1);
  world.put(9);
  world.tier->close();
  world.end(2);
  EXPECT_EQ(world.pool->lent(), 0u);
  EXPECT_EQ(world.tier->holds() + world.tier->resident() + world.tier->in_flight(), 0u);
  EXPECT_EQ(world.tier->wanted() + world.tier->wanted_loose(), 0u);
  world.stage(3, {1});
  EXPECT_EQ(world.reports(), "3:0 unavailable");
  world.put(1);
  EXPECT_FALSE(world.has(1));
}

// Random histories ----------------------------------------------------------------------------

/// What a leader knows of its holds, and what must be so of the tier at any time.
class History {
 public:
  explicit History(std::uint64_t seed) : random_(seed), world_(3 + random_.below(10)) {}

  void run(int steps) {
    for (int i = 0; i < steps && !::testing::Test::HasFailure(); ++i) {
      step();
      check();
    }
    finish();
  }

 private:
  struct Hold {
    std::vector<std::uint64_t> numbers;
    std::uint32_t staged = 0;
    std::size_t kept = 0;  // Blocks that the leader has not let go of.
    bool done = false;
  };

  void step() {
    switch (random_.below(9)) {
      case 0:
      case 1: {
        std::vector<std::uint64_t> numbers(1 + random_.below(5));
        const std::uint64_t first = random_.below(6);
        for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = first + i;
        const HoldId hold = ++last_hold_;
        holds_[hold] = {.numbers = numbers, .kept = numbers.size()};
        world_.stage(hold, numbers, now_ + std::chrono::seconds(random_.below(4)));
        break;
      }
      case 2:
      case 3:
        (void)world_.begin(random_.below(4), now_);
        break;
      case 4:
        (void)world_.begin_loose(random_.below(3), now_);
        break;
      case 5:
      case 6:
        end_one();
        break;
      case 7:
        let_go();
        break;
      default:
        now_ += std::chrono::milliseconds(random_.below(900));
        if (StagingLease page = world_.pool->borrow(StagingPool::Use::kLoad); page != nullptr) {
          const BlockHash saved = block(random_.below(12));
          World::fill(*page, saved);
          world_.tier->put(saved, std::move(page));
        } else if (random_.below(2) == 0) {
          (void)world_.tier->make_room();
        }
    }
  }

  void end_one() {
    if (world_.in_flight.empty()) return;
    auto at = world_.in_flight.begin();
    std::advance(at, random_.below(world_.in_flight.size()));
    const BlockHash which = at->first;
    StagingLease page = std::move(at->second);
    world_.in_flight.erase(at);
    const auto how = static_cast<FetchEnd>(random_.below(8) < 5 ? 0 : 1 + random_.below(3));
    // What was not verified has other bytes.
    World::fill(*page, how == FetchEnd::kVerified ? which : block(1000));
    if (how == FetchEnd::kUnavailable && random_.below(2) == 0) given_up_.push_back(page);
    if (random_.below(4) == 0) given_up_.clear();
    world_.tier->fetched(which, how, std::move(page));
  }

  void let_go() {
    if (holds_.empty()) return;
    auto at = holds_.begin();
    std::advance(at, random_.below(holds_.size()));
    const auto from = static_cast<std::uint32_t>(random_.below(2) * random_.below(5));
    world_.release(at->first, from);
    at->second.kept = std::min<std::size_t>(at->second.kept, from);
    if (from == 0) holds_.erase(at);
  }

  void check() {
    for (const StageProgress& progress : world_.tier->take_reports()) {
      const auto at = holds_.find(progress.hold);
      ASSERT_NE(at, holds_.end()) << "told of a hold that is over";
      Hold& hold = at->second;
      EXPECT_FALSE(hold.done) << "told twice that it is done";
      EXPECT_GE(progress.staged, hold.staged);
      EXPECT_LE(progress.staged, hold.numbers.size());
      hold.staged = progress.staged;
      hold.done = progress.done;
    }
    for (const auto& [id, hold] : holds_) {
      for (std::size_t i = 0; i < std::min<std::size_t>(hold.staged, hold.kept); ++i) {
        const StagingLease page = world_.tier->find(block(hold.numbers[i]));
        ASSERT_NE(page, nullptr) << "block " << i << " of hold " << id << " was promised";
        EXPECT_TRUE(World::holds(page, block(hold.numbers[i])));
      }
    }
    for (std::uint64_t number = 0; number < 12; ++number) {
      const StagingLease page = world_.tier->find(block(number));
      EXPECT_TRUE(page == nullptr || World::holds(page, block(number)));
      for (const StagingLease& other : given_up_) EXPECT_NE(page, other);
    }
    EXPECT_EQ(world_.tier->in_flight(), world_.in_flight.size());
    EXPECT_EQ(world_.tier->holds(), holds_.size());
  }

  /// Without faults everything comes to its end, and nothing is left over.
  void finish() {
    given_up_.clear();
    now_ = Instant::max();
    (void)world_.begin(100, now_);
    (void)world_.begin_loose(100, now_);
    while (!world_.in_flight.empty()) end_one();
    check();
    for (const auto& [id, hold] : holds_) {
      const bool decided = hold.kept < hold.numbers.size();
      EXPECT_TRUE(hold.done || decided) << "hold " << id;
    }
    while (!holds_.empty()) {
      world_.release(holds_.begin()->first);
      holds_.erase(holds_.begin());
    }
    EXPECT_EQ(world_.tier->held(), 0u);
    EXPECT_EQ(world_.tier->wanted(), 0u);
    while (world_.tier->make_room()) {
    }
    given_up_.clear();
    EXPECT_EQ(world_.pool->lent(), 0u);
  }

  Random random_;
  World world_;
  Instant now_{};
  HoldId last_hold_ = 0;
  std::map<HoldId, Hold> holds_;
  std::vector<StagingLease> given_up_;  // By transfers that are not over.
};

TEST(HostTier, RandomHistoriesKeepItsInvariants) {
  const std::uint64_t seed = testlib::test_seed(5);
  for (std::uint64_t i = 0; i < 2000 && !HasFailure(); ++i) {
    SCOPED_TRACE("seed " + std::to_string(seed + i));
    History(seed + i).run(60);
  }
}

}  // namespace
}  // namespace kvc
