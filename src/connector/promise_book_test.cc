#include "connector/promise_book.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "base/random.h"
#include "testing/seed.h"

namespace kvc {
namespace {

using Releases = std::vector<HoldRelease>;

constexpr Duration kHoldFor = std::chrono::seconds(10);
constexpr Instant kStart{};

PromiseBook book_of(std::uint32_t ranks, std::size_t max_holds = 16) {
  return PromiseBook({.ranks = ranks, .max_holds = max_holds, .hold_for = kHoldFor});
}

StageProgress progress(HoldId hold, std::uint32_t staged) {
  return {.hold = hold, .staged = staged, .done = false, .end = StageEnd::kAll};
}
StageProgress ended(HoldId hold, std::uint32_t staged, StageEnd end = StageEnd::kAll) {
  return {.hold = hold, .staged = staged, .done = true, .end = end};
}

/// A promise of all of so many blocks.
HoldId promised(PromiseBook& book, std::uint32_t ranks, std::uint32_t blocks, Instant at = kStart) {
  const HoldId hold = book.begin(blocks);
  for (std::uint32_t r = 0; r < ranks; ++r) book.on_progress(r, ended(hold, blocks));
  EXPECT_EQ(book.close(hold, at).blocks, blocks);
  return hold;
}

TEST(PromiseBook, PromisesWhatEveryRankHasStaged) {
  PromiseBook book = book_of(3);
  const HoldId hold = book.begin(5);
  EXPECT_NE(hold, 0u);
  book.on_progress(0, ended(hold, 5));
  book.on_progress(1, progress(hold, 2));
  book.on_progress(2, progress(hold, 4));
  const StagedPrefix staged = book.close(hold, kStart);
  EXPECT_EQ(staged.blocks, 2u);
  EXPECT_EQ(staged.end, StageEnd::kLate);
  EXPECT_EQ(staged.rank, 1u);
  EXPECT_EQ(book.take_releases(), (Releases{{hold, 2}})) << "pages past it need not be held";
}

TEST(PromiseBook, RankWithoutAReportCountsNothing) {
  PromiseBook book = book_of(2);
  const HoldId hold = book.begin(5);
  book.on_progress(0, ended(hold, 5));
  const StagedPrefix staged = book.close(hold, kStart);
  EXPECT_EQ(staged.blocks, 0u);
  EXPECT_EQ(staged.end, StageEnd::kLate);
  EXPECT_EQ(staged.rank, 1u);
  EXPECT_EQ(book.take_releases(), (Releases{{hold, 0}}));
  EXPECT_TRUE(book.live().empty()) << "a promise of nothing holds nothing";
}

TEST(PromiseBook, CompletePromiseReleasesNothing) {
  PromiseBook book = book_of(2);
  const HoldId hold = book.begin(3);
  for (std::uint32_t r = 0; r < 2; ++r) book.on_progress(r, ended(hold, 3));
  EXPECT_EQ(book.close(hold, kStart).end, StageEnd::kAll);
  EXPECT_TRUE(book.take_releases().empty());
  EXPECT_TRUE(book.take_plan().released.empty());
  EXPECT_EQ(book.live(), std::vector<HoldId>{hold});
}

TEST(PromiseBook, LostRankCountsNothingWhateverItHadReported) {
  PromiseBook book = book_of(2);
  const HoldId hold = book.begin(3);
  const HoldId other = book.begin(2);
  for (std::uint32_t r = 0; r < 2; ++r) book.on_progress(r, progress(hold, 3));
  book.on_rank_lost(1);
  book.on_progress(1, ended(hold, 3));
  for (const HoldId each : {hold, other}) {
    EXPECT_TRUE(book.is_settled(each));
    const StagedPrefix staged = book.close(each, kStart);
    EXPECT_EQ(staged.blocks, 0u);
    EXPECT_EQ(staged.end, StageEnd::kUnavailable);
    EXPECT_EQ(staged.rank, 1u);
  }
}

TEST(PromiseBook, RankLostAfterThePromiseChangesNothing) {
  PromiseBook book = book_of(2);
  const HoldId hold = promised(book, 2, 3);
  book.on_rank_lost(0);
  EXPECT_TRUE(book.allocated(hold));
  book.on_rank_lost(1);
  EXPECT_EQ(book.live(), std::vector<HoldId>{hold});
}

TEST(PromiseBook, NamesTheReasonOfTheRankWithTheFewest) {
  for (const StageEnd why :
       {StageEnd::kMissing, StageEnd::kRejected, StageEnd::kNoRoom, StageEnd::kUnavailable}) {
    PromiseBook book = book_of(3);
    const HoldId hold = book.begin(4);
    book.on_progress(0, progress(hold, 1));
    book.on_progress(1, ended(hold, 2, StageEnd::kMissing));
    book.on_progress(2, ended(hold, 1, why));
    const StagedPrefix staged = book.close(hold, kStart);
    EXPECT_EQ(staged.blocks, 1u);
    EXPECT_EQ(staged.end, why) << "a rank that is done says more than one that is late";
    EXPECT_EQ(staged.rank, 2u);
  }
}

TEST(PromiseBook, EndWithoutReasonBeforeTheLastBlockIsNotTakenForAll) {
  PromiseBook book = book_of(1);
  const HoldId hold = book.begin(4);
  book.on_progress(0, ended(hold, 1, StageEnd::kAll));
  const StagedPrefix staged = book.close(hold, kStart);
  EXPECT_EQ(staged.blocks, 1u);
  EXPECT_EQ(staged.end, StageEnd::kUnavailable);
}

TEST(PromiseBook, IsSettledOnceWaitingCouldNotHelp) {
  PromiseBook book = book_of(2);
  const HoldId hold = book.begin(4);
  EXPECT_FALSE(book.is_settled(hold));
  book.on_progress(0, ended(hold, 2, StageEnd::kMissing));
  EXPECT_FALSE(book.is_settled(hold));
  book.on_progress(1, progress(hold, 1));
  EXPECT_FALSE(book.is_settled(hold));
  book.on_progress(1, progress(hold, 2));
  EXPECT_TRUE(book.is_settled(hold)) << "what rank 1 stages from now on, rank 0 will not have";
  EXPECT_EQ(book.close(hold, kStart).end, StageEnd::kMissing);
  EXPECT_TRUE(book.is_settled(hold));
  EXPECT_TRUE(book.is_settled(99));
}

TEST(PromiseBook, RepeatedReorderedAndForeignReportsChangeNothing) {
  PromiseBook book = book_of(2);
  const HoldId hold = book.begin(4);
  book.on_progress(0, progress(hold, 3));
  book.on_progress(0, progress(hold, 1));
  book.on_progress(0, ended(hold, 3, StageEnd::kRejected));
  book.on_progress(0, ended(hold, 4));
  book.on_progress(0, progress(hold, 4));
  book.on_progress(1, ended(hold, 400));
  book.on_progress(2, ended(hold, 1));
  book.on_progress(0, ended(hold + 1, 0, StageEnd::kMissing));
  book.on_rank_lost(7);
  const StagedPrefix staged = book.close(hold, kStart);
  EXPECT_EQ(staged.blocks, 3u);
  EXPECT_EQ(staged.end, StageEnd::kRejected);
  EXPECT_EQ(staged.rank, 0u);
}

TEST(PromiseBook, ReportAfterThePromiseDoesNotLengthenIt) {
  PromiseBook book = book_of(1);
  const HoldId hold = book.begin(4);
  book.on_progress(0, progress(hold, 2));
  EXPECT_EQ(book.close(hold, kStart).blocks, 2u);
  book.on_progress(0, ended(hold, 4));
  EXPECT_EQ(book.close(hold, kStart).blocks, 0u) << "closed once";
  book.release(hold, 3);
  EXPECT_EQ(book.take_releases(), (Releases{{hold, 2}})) << "blocks past the promise are gone";
}

TEST(PromiseBook, PromiseExpiresOnlyBeforeItsAllocation) {
  PromiseBook book = book_of(1);
  const HoldId waiting = promised(book, 1, 3);
  const HoldId firm = promised(book, 1, 3);
  const HoldId open = book.begin(3);
  ASSERT_TRUE(book.allocated(firm));
  EXPECT_EQ(book.expire(kStart + kHoldFor - Duration(1)), 0u);
  EXPECT_EQ(book.expire(kStart + kHoldFor), 1u);
  EXPECT_EQ(book.expire(Instant::max()), 0u);
  EXPECT_FALSE(book.allocated(waiting));
  EXPECT_FALSE(book.renew(waiting, kStart));
  EXPECT_EQ(book.take_releases(), (Releases{{waiting, 0}}));
  EXPECT_EQ(book.take_plan().released, (Releases{{waiting, 0}}));
  EXPECT_EQ(book.live(), (std::vector<HoldId>{firm, open}));
}

TEST(PromiseBook, SamePromiseGivenAgainLivesLonger) {
  PromiseBook book = book_of(1);
  const HoldId hold = promised(book, 1, 3);
  ASSERT_TRUE(book.renew(hold, kStart + kHoldFor));
  EXPECT_EQ(book.expire(kStart + kHoldFor), 0u);
  EXPECT_EQ(book.expire(kStart + 2 * kHoldFor), 1u);
  const HoldId open = book.begin(1);
  EXPECT_FALSE(book.renew(open, kStart)) << "nothing was promised yet";
  EXPECT_FALSE(book.allocated(open));
}

TEST(PromiseBook, HoldsNearTheEndOfTimeDoNotWrap) {
  PromiseBook book({.ranks = 1, .max_holds = 4, .hold_for = Duration::max()});
  const HoldId hold = promised(book, 1, 1, kStart + Duration(5));
  EXPECT_EQ(book.expire(kStart + std::chrono::hours(1)), 0u);
  EXPECT_TRUE(book.renew(hold, Instant::max()));
}

TEST(PromiseBook, PlannedLoadIsEndedByItsPlanAlone) {
  PromiseBook book = book_of(1);
  const HoldId hold = promised(book, 1, 3);
  ASSERT_TRUE(book.allocated(hold));
  book.planned(hold);
  book.planned(hold);
  book.release(hold, 0);  // The request ends before the plan is carried out.
  EXPECT_EQ(book.expire(Instant::max()), 0u);
  EXPECT_TRUE(book.take_releases().empty()) << "it would overtake the copy";
  const PromiseBook::PlanEnds ends = book.take_plan();
  EXPECT_EQ(ends.done, std::vector<HoldId>{hold});
  EXPECT_TRUE(ends.released.empty());
  EXPECT_TRUE(book.take_plan().done.empty());
}

TEST(PromiseBook, HoldOfAPlannedLoadIsLiveUntilItMustBeDone) {
  PromiseBook book = book_of(1);
  const HoldId hold = promised(book, 1, 3);
  ASSERT_TRUE(book.allocated(hold));
  book.planned(hold);
  EXPECT_EQ(book.live(), std::vector<HoldId>{hold});
  book.take_plan();
  book.take_plan();
  EXPECT_EQ(book.live(), std::vector<HoldId>{hold})
      << "a rank that comes back may not have copied it yet";
  for (int i = 0; i < 10; ++i) book.take_plan();
  EXPECT_TRUE(book.live().empty());
}

TEST(PromiseBook, HoldWhosePlanIsLostIsEndedByALaterOne) {
  PromiseBook book = book_of(1);
  const HoldId hold = promised(book, 1, 3);
  ASSERT_TRUE(book.allocated(hold));
  book.planned(hold);
  ASSERT_EQ(book.take_plan().done, std::vector<HoldId>{hold});  // No rank gets it.
  Releases told;
  int plans = 0;
  while (told.empty() && ++plans < 100) told = book.take_plan().released;
  EXPECT_EQ(told, (Releases{{hold, 0}}));
  EXPECT_GT(plans, 1) << "a rank may have it and not have copied yet";
  EXPECT_LT(plans, 10);
  EXPECT_TRUE(book.take_releases().empty()) << "over a link it might overtake the copy";
  EXPECT_TRUE(book.take_plan().released.empty()) << "once";
}

TEST(PromiseBook, ReleaseFromABlockShortensThePromise) {
  PromiseBook book = book_of(1);
  const HoldId hold = promised(book, 1, 5);
  book.release(hold, 7);
  book.release(hold, 5);
  EXPECT_TRUE(book.take_releases().empty());
  book.release(hold, 3);
  book.release(hold, 4);
  book.release(hold, 2);
  EXPECT_EQ(book.take_releases(), (Releases{{hold, 3}, {hold, 2}}));
  EXPECT_EQ(book.take_plan().released, (Releases{{hold, 2}}));
  book.release(hold, 0);
  book.release(hold, 0);
  EXPECT_EQ(book.take_releases(), (Releases{{hold, 0}}));
  EXPECT_FALSE(book.allocated(hold));
}

TEST(PromiseBook, ReleaseOfAnOpenHoldEndsItOrWaits) {
  PromiseBook book = book_of(1);
  const HoldId hold = book.begin(5);
  book.release(hold, 2);
  EXPECT_TRUE(book.take_releases().empty());
  book.release(hold, 0);
  EXPECT_EQ(book.take_releases(), (Releases{{hold, 0}}));
  EXPECT_EQ(book.close(hold, kStart).blocks, 0u);
}

TEST(PromiseBook, NowAndThenAPlanSaysWhichHoldsAreAlive) {
  PromiseBook book({.ranks = 1, .hold_for = kHoldFor, .plans_per_list = 8});
  for (int plan = 0; plan < 8; ++plan) {
    EXPECT_EQ(book.take_plan().live, LiveHolds{}) << "there is no hold that one could have missed";
  }
  const HoldId open = book.begin(3);
  const HoldId kept = promised(book, 1, 3);
  const HoldId firm = promised(book, 1, 3);
  const HoldId loaded_before = promised(book, 1, 3);
  const HoldId released = promised(book, 1, 3);
  ASSERT_TRUE(book.allocated(firm) && book.allocated(loaded_before));
  for (int plan = 0; plan < 7; ++plan) {
    if (plan == 6) book.planned(loaded_before);
    EXPECT_EQ(book.take_plan().live, LiveHolds{});
  }
  book.planned(firm);
  book.release(released, 0);
  const LiveHolds live{.live = {open, kept, firm}, .newest = released};
  EXPECT_EQ(book.take_plan().live, live)
      << "the load of this plan may be ahead, that of one before is not";
}

TEST(PromiseBook, HoldsAreBounded) {
  PromiseBook book = book_of(1, 2);
  EXPECT_EQ(book.begin(0), 0u) << "nothing to hold";
  const HoldId first = promised(book, 1, 3);
  const HoldId second = promised(book, 1, 3);
  EXPECT_EQ(book.begin(3), 0u);
  book.release(first, 0);
  EXPECT_EQ(book.begin(3), 0u) << "no plan has told its end yet";
  book.take_plan();
  EXPECT_NE(book.begin(3), 0u);
  ASSERT_TRUE(book.allocated(second));
  book.planned(second);
  EXPECT_NE(book.begin(3), 0u);
  EXPECT_EQ(book.size(), 2u);
}

TEST(PromiseBook, HoldIdsAreNeverReused) {
  PromiseBook book = book_of(1);
  std::set<HoldId> seen;
  for (int i = 0; i < 100; ++i) {
    const HoldId hold = promised(book, 1, 1);
    EXPECT_TRUE(seen.insert(hold).second);
    EXPECT_EQ(book.newest(), hold);
    book.release(hold, 0);
    book.take_plan();
  }
  EXPECT_EQ(book.size(), 0u);
  EXPECT_TRUE(book.live().empty());
}

// Every order of events, against a model that knows one hold.

constexpr std::uint32_t kRanks = 2;
constexpr std::uint32_t kBlocks = 2;

struct Model {
  enum class Is { kOpen, kPromised, kFirm, kPlanned, kGone };
  Is is = Is::kOpen;
  std::uint32_t staged[kRanks] = {};
  bool done[kRanks] = {};
  std::uint32_t promise = 0;
  Instant expires_at{};
  std::uint32_t told_sent = kBlocks;  // From which block on the ranks were told over the links,
  std::uint32_t told_plan = kBlocks;  // and by plans.
  int ended_by_plan = 0;
};

struct World {
  PromiseBook book = book_of(kRanks);
  HoldId hold = book.begin(kBlocks);
  Model model;
  Instant now = kStart;
  std::string events;

  void told(const Releases& releases, std::uint32_t* so_far) {
    for (const HoldRelease& release : releases) {
      ASSERT_EQ(release.hold, hold) << events;
      ASSERT_LT(release.from_block, *so_far) << events << ": told twice";
      *so_far = release.from_block;
    }
  }

  std::uint32_t staged_by_all() const { return std::min(model.staged[0], model.staged[1]); }
  void end_model() {
    model.is = Model::Is::kGone;
    model.promise = 0;
  }

  static constexpr int kEvents = 19;
  void step(int event);
  void check();
};

void World::step(int event) {
  using Is = Model::Is;
  events += static_cast<char>('a' + event);
  const bool promised_now = model.is == Is::kPromised || model.is == Is::kFirm;
  if (event < 12) {  // Reports: rank, how many, done or not.
    const auto rank = static_cast<std::uint32_t>(event % 2);
    const auto staged = static_cast<std::uint32_t>(event / 2 % 3);
    const bool done = event >= 6;
    book.on_progress(rank, {hold, staged, done, StageEnd::kMissing});
    if (model.is == Is::kOpen && !model.done[rank]) {
      model.staged[rank] = std::max(model.staged[rank], staged);
      model.done[rank] = done;
    }
  } else if (event == 12) {
    book.on_rank_lost(1);
    if (model.is == Is::kOpen) {
      model.staged[1] = 0;
      model.done[1] = true;
    }
  } else if (event == 13) {
    const StagedPrefix staged = book.close(hold, now);
    ASSERT_EQ(staged.blocks, model.is == Is::kOpen ? staged_by_all() : 0) << events;
    if (model.is == Is::kOpen) {
      model.promise = staged.blocks;
      model.expires_at = now + kHoldFor;
      model.is = staged.blocks == 0 ? Is::kGone : Is::kPromised;
    }
  } else if (event == 14) {
    ASSERT_EQ(book.allocated(hold), promised_now) << events;
    if (promised_now) model.is = Is::kFirm;
  } else if (event == 15) {
    book.planned(hold);
    if (promised_now) model.is = Is::kPlanned;
  } else if (event == 16 || event == 17) {
    const auto from = static_cast<std::uint32_t>(event - 16);
    book.release(hold, from);
    if (from == 0 && (promised_now || model.is == Is::kOpen)) end_model();
    if (from == 1 && promised_now) model.promise = std::min(model.promise, 1u);
  } else {
    now += kHoldFor;
    const bool expires = model.is == Is::kPromised && now >= model.expires_at;
    ASSERT_EQ(book.expire(now), expires ? 1u : 0u) << events;
    if (expires) end_model();
  }
}

void World::check() {
  using Is = Model::Is;
  told(book.take_releases(), &model.told_sent);
  PromiseBook copy = book;
  Model then = model;
  const PromiseBook::PlanEnds ends = copy.take_plan();
  told(ends.released, &then.told_plan);
  const bool alive = model.is != Is::kGone;
  ASSERT_EQ(book.live().size(), alive ? 1u : 0u) << events;
  ASSERT_EQ(ends.done.size(), model.is == Is::kPlanned ? 1u : 0u) << events;
  if (model.is == Is::kOpen) {
    ASSERT_EQ(model.told_sent, kBlocks) << events << ": nothing is released before the promise";
  } else {
    ASSERT_EQ(model.told_sent, model.promise) << events << ": held is what is promised";
  }
  ASSERT_EQ(then.told_plan, model.told_sent) << events << ": a plan tells what a link told";
}

void try_all(const World& world, int depth, std::size_t* tried) {
  if (depth == 0 || ::testing::Test::HasFatalFailure()) return;
  for (int event = 0; event < World::kEvents; ++event) {
    World next = world;
    next.step(event);
    next.check();
    ++*tried;
    if (::testing::Test::HasFatalFailure()) return;
    try_all(next, depth - 1, tried);
  }
}

TEST(PromiseBook, EveryOrderOfAFewEventsKeepsItsWord) {
  std::size_t tried = 0;
  World world;
  try_all(world, 4, &tried);
  for (const int event : {10, 11, 13}) world.step(event);  // All staged and promised.
  ASSERT_EQ(world.model.promise, kBlocks);
  try_all(world, 4, &tried);
  EXPECT_GT(tried, 200'000u);
}

TEST(PromiseBook, LongRandomLivesKeepTheirWord) {
  Random random(testlib::test_seed(1));
  for (int life = 0; life < 20'000 && !HasFatalFailure(); ++life) {
    World world;
    for (int i = 0; i < 14 && !HasFatalFailure(); ++i) {
      world.step(static_cast<int>(random.below(World::kEvents)));
      world.check();
    }
  }
}

}  // namespace
}  // namespace kvc
