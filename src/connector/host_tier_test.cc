// The host tier: which page is kept, held, fetched and evicted, and what the leader is told.

#include "connector/host_tier.h"

#include <ctime>

#include "connector/host_tier_fixture.h"

namespace kvc {
namespace {

TEST(HostTier, FetchesWhatIsOrderedAndTellsAsItGrows) {
  TierWorld world(8);
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
  EXPECT_TRUE(TierWorld::holds(world.tier->find(block(2)), block(2)));
}

TEST(HostTier, WhatIsResidentIsStagedAtOnce) {
  TierWorld world(8);
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
  TierWorld world(1);
  world.stage(1, {});
  EXPECT_EQ(world.reports(), "1:0 all");
  world.release(1);
  EXPECT_EQ(world.tier->holds(), 0u);
}

TEST(HostTier, BlockIsFetchedOnceForAllWhoWantIt) {
  TierWorld world(8);
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
    TierWorld world(8);
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
  TierWorld world(8);
  world.stage(1, {1, 2, 3});
  (void)world.begin();
  world.end(3, FetchEnd::kUnavailable);
  world.end(2, FetchEnd::kRejected);
  world.end(1, FetchEnd::kMissing);
  EXPECT_EQ(world.reports(), "1:0 missing");
}

TEST(HostTier, VerifiedWithoutAPageIsNoPage) {
  TierWorld world(2);
  world.stage(1, {1});
  (void)world.begin();
  world.in_flight.clear();
  world.tier->fetched(block(1), FetchEnd::kVerified, nullptr);
  EXPECT_EQ(world.reports(), "1:0 unavailable");
  EXPECT_EQ(world.pool->lent(), 0u);
}

TEST(HostTier, AnswersThatNobodyWaitsForAreIgnored) {
  TierWorld world(4);
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
  TierWorld world(2);
  world.stage(1, {1, 2});
  world.fetch_all();
  EXPECT_FALSE(world.tier->make_room());
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
  EXPECT_TRUE(world.tier->make_room());
  EXPECT_EQ(world.pool->lent(), 0u);
}

TEST(HostTier, PageOfTwoHoldsIsHeldUntilBothEnd) {
  TierWorld world(2);
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
  TierWorld world(3);
  world.stage(1, {1, 2, 3, 4, 5});
  world.fetch_all();
  EXPECT_EQ(world.reports(), "1:3 no room");
}

TEST(HostTier, EndOfAnOrderThatIsHereMakesRoomForItsBegin) {
  TierWorld world(3);
  world.stage(1, {5, 6, 7});
  world.fetch_all();
  world.release(1);
  (void)world.reports();
  world.stage(2, {1, 2, 3, 4, 5, 6, 7});
  world.fetch_all();
  EXPECT_EQ(world.reports(), "2:3 no room");
  EXPECT_EQ(world.tier->resident_prefix(blocks({1, 2, 3})), 3u);
  world.release(2);
  for (HoldId hold = 3; hold < 6; ++hold) {
    world.stage(hold, {1, 2, 3, 4, 5, 6, 7});
    world.fetch_all();
    EXPECT_EQ(world.reports(), std::to_string(hold) + ":3 no room") << "again and again";
    world.release(hold);
  }
  EXPECT_EQ(world.tier->held(), 0u);
}

TEST(HostTier, EndOfAnOrderThatOthersUseIsGivenUpInOneGo) {
  constexpr std::uint64_t kBlocks = 20'000;
  TierWorld world(kBlocks);
  std::vector<StagingLease> queued;  // Saves, say, that a slow store has not taken yet.
  for (std::uint64_t number = 1; number <= kBlocks; ++number) world.put(number);
  std::vector<std::uint64_t> order{kBlocks + 1};
  for (std::uint64_t number = 1; number <= kBlocks; ++number) {
    queued.push_back(world.tier->find(block(number)));
    order.push_back(number);
  }
  world.stage(1, order);
  const std::clock_t begin = std::clock();
  EXPECT_TRUE(world.begin().empty());
  // To look through all that are used for each of them takes ten seconds and more.
  EXPECT_LT(std::clock() - begin, 2 * CLOCKS_PER_SEC) << "of CPU time";
  EXPECT_EQ(world.reports(), "1:0 no room");
  EXPECT_EQ(world.tier->held(), 0u);
  EXPECT_EQ(world.tier->resident(), kBlocks);
}

TEST(HostTier, WhatAnotherHoldsOfItsEndMakesNoRoom) {
  TierWorld world(3);
  world.stage(1, {5, 6});
  world.fetch_all();
  EXPECT_EQ(world.reports(), "1:2 all");
  world.stage(2, {1, 2, 5, 6});
  world.fetch_all();
  EXPECT_EQ(world.reports(), "2:1 no room");
  EXPECT_EQ(world.tier->held(), 3u);
}

TEST(HostTier, BlockTwiceInAnOrderIsHeldTwiceAndLetGoOfTwice) {
  TierWorld world(3);
  world.stage(1, {1, 1, 2});
  world.fetch_all();
  EXPECT_EQ(world.reports(), "1:3 all");
  world.release(1, 1);
  EXPECT_EQ(world.tier->held(), 1u);
  world.release(1);
  EXPECT_EQ(world.tier->held(), 0u);
}

TEST(HostTier, PartOfAHoldIsLetGoOfAndTheLeaderHearsNoMoreOfIt) {
  TierWorld world(8);
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
  TierWorld world(8);
  world.stage(1, {1, 2, 3});
  (void)world.begin(1);
  world.release(1, 2);
  world.fetch_all();
  world.end(1);
  EXPECT_EQ(world.reports(), "1:2 all");
}

TEST(HostTier, WhatWasLetGoOfEarlyIsFetchedForTheNextWhoAsks) {
  TierWorld world(8);
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
  TierWorld world(8);
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
  TierWorld world(3);
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
  TierWorld world(8, {.loose_max = 2});
  for (HoldId hold = 1; hold <= 3; ++hold) {
    world.stage(hold, {hold});
    world.release(hold);
  }
  EXPECT_EQ(world.begin_loose(), blocks({2, 3}));
  TierWorld without(8, {.loose_max = 0});
  without.stage(1, {1});
  without.release(1);
  EXPECT_TRUE(without.begin_loose().empty());
}

TEST(HostTier, NothingIsFetchedForAnOrderAfterItsBudget) {
  TierWorld world(8);
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
  TierWorld world(8);
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
  TierWorld world(8);
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
  TierWorld world(8);
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
  TierWorld world(8, {.releases_max = 2});
  for (HoldId hold = 1; hold <= 3; ++hold) world.release(hold);
  for (HoldId hold = 1; hold <= 3; ++hold) world.stage(hold, {1});
  EXPECT_EQ(world.tier->holds(), 1u) << "the oldest is forgotten";
}

TEST(HostTier, HoldsThatTheLeaderDoesNotKnowAnyMoreEnd) {
  TierWorld world(8);
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
  TierWorld world(8);
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
  TierWorld world(8);
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
  TierWorld world(8);
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
  TierWorld world(2);
  world.stage(0, {1});
  world.release(0);
  EXPECT_EQ(world.tier->holds() + world.tier->wanted(), 0u);
  EXPECT_EQ(world.reports(), "");
}

TEST(HostTier, HoldsAreBounded) {
  TierWorld world(8, {.holds_max = 1});
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
  TierWorld world(4);
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
  TierWorld world(3, {.spare_pages = 1});
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
  TierWorld world(3);
  world.stage(1, {1, 2, 3});
  world.fetch_all();
  world.release(1);
  EXPECT_TRUE(world.tier->make_room());
  EXPECT_TRUE(world.has(1) && world.has(2));
  EXPECT_FALSE(world.has(3));
}

TEST(HostTier, PageThatSomebodyUsesIsNotEvicted) {
  TierWorld world(2);
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
  EXPECT_TRUE(TierWorld::holds(saving, block(2)));
}

TEST(HostTier, PageOfATransferThatWasGivenUpIsNotReused) {
  TierWorld world(2);
  world.stage(1, {1});
  (void)world.begin();
  const StagingLease transfer = world.in_flight.at(block(1));  // The store still writes.
  world.end(1, FetchEnd::kUnavailable);
  world.stage(2, {2, 3});
  EXPECT_EQ(world.begin(), blocks({2}));
  EXPECT_NE(world.in_flight.at(block(2))->bytes().data(), transfer->bytes().data());
}

TEST(HostTier, WhatWasJustSavedServesWhoWaitsForIt) {
  TierWorld world(8);
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
  TierWorld world(4);
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

}  // namespace
}  // namespace kvc
