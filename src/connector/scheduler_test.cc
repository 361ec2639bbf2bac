#include "kvc/scheduler.h"

#include <algorithm>
#include <limits>
#include <new>
#include <stdexcept>

#include "connector/scheduler_fixture.h"
#include "store/wrap/deadline_store.h"

namespace kvc {
namespace {

using testlib::GatePoint;

TEST(Scheduler, RefusesZeroSizesAndMissingParts) {
  SchedulerFixture world;
  const auto code_of = [&world](auto&& change) {
    SchedulerOptions options = world.options;
    change(options);
    return Scheduler::create(options, {}, world.store, world.clock, world.logger).status().code();
  };
  EXPECT_EQ(code_of([](auto& o) { o.tokens_per_block = 0; }), Code::kInvalid);
  EXPECT_EQ(code_of([](auto& o) { o.world_size = 0; }), Code::kInvalid);
  EXPECT_EQ(code_of([](auto& o) { o.max_tracked_requests = 0; }), Code::kInvalid);
  EXPECT_EQ(code_of([](auto& o) { o.lookup_deadline = Duration(0); }), Code::kInvalid);
  EXPECT_EQ(
      Scheduler::create(world.options, {}, nullptr, world.clock, world.logger).status().code(),
      Code::kInvalid);
}

TEST(Scheduler, OffersTheStoredPrefixAfterTheEnginesOwnMatch) {
  SchedulerFixture world;
  const std::vector<Token> tokens = make_tokens(10 * kBlockTokens + 1);
  world.publish_blocks(tokens, 0, 6);
  EXPECT_EQ(world.query(1, tokens).blocks, 6u);
  EXPECT_EQ(world.query(2, tokens, 2 * kBlockTokens).tokens, 4u * kBlockTokens);
  EXPECT_EQ(world.query(3, tokens, 6 * kBlockTokens).blocks, 0u);
  EXPECT_EQ(world.query(4, tokens, 8 * kBlockTokens).blocks, 0u);
}

TEST(Scheduler, BlocksBeforeTheEnginesOwnMatchNeedNotBeStored) {
  SchedulerFixture world;
  const std::vector<Token> tokens = make_tokens(5 * kBlockTokens + 1);
  world.publish_blocks(tokens, 2, 5);
  EXPECT_EQ(world.query(1, tokens).blocks, 0u);
  EXPECT_EQ(world.query(2, tokens, 2 * kBlockTokens).blocks, 3u);
}

TEST(Scheduler, UnalignedMatchGetsNothingAndIsStillTracked) {
  SchedulerFixture world;
  const std::vector<Token> tokens = make_tokens(3 * kBlockTokens);
  world.publish(names_of(tokens));
  EXPECT_EQ(world.query(1, tokens, kBlockTokens + 1).blocks, 0u);
  EXPECT_EQ(world.scheduler->stats().lookups_unaligned, 1u);
  EXPECT_EQ(world.store->count(StoreOp::kExists), 0u);
  const auto slots = make_slots(3);
  world.scheduler->allocated(1, slots);
  const StepPlan plan = world.plan({{.id = 1,
                                     .is_new = true,
                                     .new_tokens = tokens,
                                     .new_slots = slots,
                                     .computed_tokens = kBlockTokens + 1,
                                     .scheduled_tokens = 2 * kBlockTokens - 1}});
  EXPECT_EQ(plan.saves.size(), 3u);
}

TEST(Scheduler, ContentThatCannotBeNamedIsNotTracked) {
  SchedulerFixture world;
  const std::vector<Token> tokens = make_tokens(3 * kBlockTokens);
  world.query(1, tokens);
  RequestContent content{tokens, tokens.size(), {}, {MediaItem{}}};
  EXPECT_EQ(world.scheduler->query(1, content, 0).status().code(), Code::kInvalid);
  EXPECT_EQ(world.scheduler->stats().requests_tracked, 0u);

  const std::vector<Token> negative{1, -2, 3, 4, 5};
  content = {negative, negative.size(), {}, {}};
  EXPECT_EQ(world.scheduler->query(2, content, 0).status().code(), Code::kInvalid);
  content = {tokens, tokens.size() + 1, {}, {}};
  EXPECT_EQ(world.scheduler->query(3, content, 0).status().code(), Code::kInvalid);
  EXPECT_EQ(world.scheduler->stats().requests_tracked, 0u);
}

TEST(Scheduler, StoreThatFailsOffersNothing) {
  SchedulerFixture world;
  const std::vector<Token> tokens = make_tokens(5 * kBlockTokens);
  world.publish(names_of(tokens));
  world.store->answer_with(Reaction::kDown);
  EXPECT_EQ(world.query(1, tokens).blocks, 0u);
  EXPECT_EQ(world.query(2, tokens).blocks, 0u);
  EXPECT_EQ(world.scheduler->stats().lookups_failed, 2u);
  EXPECT_EQ(world.logger->lines(LogLevel::kWarning).size(), 1u) << "once, not per request";
  world.store->answer_with(Reaction::kOk);
  EXPECT_EQ(world.query(3, tokens).blocks, 4u);
  EXPECT_EQ(world.logger->count("lookups work again"), 1u);
}

TEST(Scheduler, AllCallsOfALookupShareOneDeadline) {
  SchedulerFixture world;
  world.options.lookup_deadline = std::chrono::milliseconds(100);
  world.scheduler = world.make(world.store);
  world.clock->set_tick(std::chrono::milliseconds(1));
  const std::vector<Token> tokens = make_tokens(200 * kBlockTokens);
  world.publish(names_of(tokens));
  world.query(1, tokens);
  const auto calls = world.store->calls();
  ASSERT_GE(calls.size(), 3u);
  for (const auto& call : calls) EXPECT_EQ(call.deadline.at, calls.front().deadline.at);
}

TEST(Scheduler, LookupsOfOneStepShareTheDeadline) {
  SchedulerFixture world;
  world.options.lookup_deadline = std::chrono::milliseconds(20);
  world.scheduler = world.make(world.store);
  world.clock->set_tick(std::chrono::milliseconds(1));
  const std::vector<Token> tokens = make_tokens(20 * kBlockTokens);
  world.publish(names_of(tokens));
  const Instant begin = world.clock->now();
  std::size_t served = 0;
  for (RequestId id = 1; id <= 20; ++id) served += world.query(id, tokens).blocks > 0 ? 1 : 0;
  EXPECT_GT(served, 0u);
  EXPECT_LT(served, 20u);
  const auto calls = world.store->calls();
  EXPECT_LE(calls.back().deadline.at - begin, std::chrono::milliseconds(400));
  EXPECT_EQ(world.query(101, tokens).blocks, 0u);
  world.plan();  // The next step has its own time.
  EXPECT_GT(world.query(102, tokens).blocks, 0u);
}

TEST(Scheduler, PauseBetweenLookupsBeginsAStep) {
  SchedulerFixture world;
  world.options.lookup_deadline = std::chrono::milliseconds(10);
  world.scheduler = world.make(world.store);
  world.clock->set_tick(std::chrono::milliseconds(1));
  const std::vector<Token> tokens = make_tokens(20 * kBlockTokens);
  world.publish(names_of(tokens));
  RequestId id = 1;
  while (world.query(id, tokens).blocks > 0) ASSERT_LT(++id, 100u);
  world.clock->advance(std::chrono::seconds(1));
  EXPECT_GT(world.query(1000, tokens).blocks, 0u);
}

TEST(Scheduler, LookupsWithoutTimeAreNoPause) {
  SchedulerFixture world;
  world.options.lookup_deadline = std::chrono::milliseconds(50);
  world.scheduler = world.make(world.store);
  const std::vector<Token> tokens = make_tokens(20 * kBlockTokens);
  world.publish(names_of(tokens));
  world.clock->set_tick(std::chrono::milliseconds(1));
  RequestId id = 1;
  while (world.query(id, tokens).blocks > 0) ASSERT_LT(++id, 100u);
  world.clock->set_tick(Duration::zero());
  for (int i = 0; i < 8; ++i) {  // Prompts that take long to name, and pages to find.
    world.clock->advance(std::chrono::milliseconds(20));
    EXPECT_EQ(world.query(++id, tokens).blocks, 0u) << i;
    world.clock->advance(std::chrono::milliseconds(15));
    EXPECT_TRUE(world.scheduler->allocated(id, make_slots(20)));
  }
  world.clock->advance(std::chrono::milliseconds(99));
  EXPECT_EQ(world.query(++id, tokens).blocks, 0u);
}

TEST(Scheduler, EngineThatNeitherPlansNorPausesGetsTimeAgain) {
  SchedulerFixture world;
  world.options.lookup_deadline = std::chrono::milliseconds(50);
  world.scheduler = world.make(world.store);
  const std::vector<Token> tokens = make_tokens(20 * kBlockTokens);
  world.publish(names_of(tokens));
  const Instant begin = world.clock->now();
  world.clock->set_tick(std::chrono::milliseconds(1));
  RequestId id = 1;
  while (world.query(id, tokens).blocks > 0) ASSERT_LT(++id, 100u);
  do {
    world.clock->advance(std::chrono::milliseconds(40));
    ASSERT_LT(++id, 100u);
  } while (world.query(id, tokens).blocks == 0);
  const Duration took = world.clock->now() - begin;
  EXPECT_GE(took, 10 * world.options.lookup_deadline);
  EXPECT_LE(took, 12 * world.options.lookup_deadline);
}

TEST(Scheduler, PromisesOfOneStepStayWithinTheLoadBudget) {
  SchedulerFixture world;
  const std::vector<Token> tokens = make_tokens(10 * kBlockTokens);
  world.publish(names_of(tokens));
  world.scheduler->set_load_budget(12);
  EXPECT_EQ(world.query(1, tokens).blocks, 9u);
  EXPECT_EQ(world.query(2, tokens).blocks, 3u);
  EXPECT_EQ(world.query(3, tokens).blocks, 0u);
  EXPECT_EQ(world.scheduler->stats().lookups_over_budget, 2u);
  world.plan();
  EXPECT_EQ(world.query(4, tokens).blocks, 9u);
}

TEST(Scheduler, LookupEndsAtItsDeadline) {
  SchedulerFixture world;
  world.options.lookup_deadline = std::chrono::milliseconds(2);
  world.scheduler = world.make(world.store);
  world.clock->set_tick(std::chrono::milliseconds(1));
  const std::vector<Token> tokens = make_tokens(200 * kBlockTokens);
  world.publish(names_of(tokens));
  EXPECT_EQ(world.query(1, tokens).blocks, 0u);
  EXPECT_LE(world.store->count(StoreOp::kExists), 2u);
  EXPECT_EQ(world.scheduler->stats().lookups_failed, 1u);
}

TEST(Scheduler, HungStoreOffersNothing) {
  SchedulerFixture world;
  const std::vector<Token> tokens = make_tokens(5 * kBlockTokens);
  world.publish(names_of(tokens));
  world.options.lookup_deadline = std::chrono::milliseconds(1);
  const std::shared_ptr<Executor> threads = make_thread_pool({.name = "t", .threads = 2});
  const auto guarded = make_deadline_store(world.store, threads, system_clock(),
                                           std::make_shared<StoreCallCounters>());
  Result<std::unique_ptr<Scheduler>> scheduler =
      Scheduler::create(world.options, world.keyspace, guarded, system_clock(), world.logger);
  ASSERT_TRUE(scheduler.ok());
  world.store->close_gate(GatePoint::kBeforeCall);
  const RequestContent content{tokens, tokens.size(), {}, {}};
  const Result<Offer> offer = (*scheduler)->query(1, content, 0);
  ASSERT_TRUE(offer.ok());
  EXPECT_EQ(offer->blocks, 0u);
  world.store->open_gate();
}

TEST(Scheduler, LoadsFollowTheAllocationWhateverTheBatch) {
  SchedulerFixture world;
  const std::vector<Token> tokens = make_tokens(4 * kBlockTokens + 1);
  const std::vector<BlockHash> names = names_of(tokens);
  world.publish(names);
  ASSERT_EQ(world.query(1, tokens).blocks, 4u);
  EXPECT_TRUE(world.plan().empty()) << "no pages yet";
  world.scheduler->allocated(1, make_slots(5));
  const StepPlan plan = world.plan();
  EXPECT_EQ(plan.keyspace, world.keyspace);
  ASSERT_EQ(plan.loads.size(), 4u);
  for (std::size_t b = 0; b < 4; ++b) {
    EXPECT_EQ(plan.loads[b], (PageTask{1, names[b], 100 + static_cast<SlotIndex>(b)}));
  }
  EXPECT_TRUE(world.plan().empty()) << "each load once";
}

TEST(Scheduler, QueriesMayAllComeBeforeTheAllocations) {
  SchedulerFixture world;
  const std::vector<Token> a = make_tokens(3 * kBlockTokens, 0);
  const std::vector<Token> b = make_tokens(3 * kBlockTokens, 1000);
  world.publish(names_of(a));
  world.publish(names_of(b));
  world.query(1, a);
  world.query(2, b);
  world.scheduler->allocated(2, make_slots(3, 20));
  world.scheduler->allocated(1, make_slots(3, 10));
  const StepPlan plan = world.plan();
  EXPECT_EQ(slots_of(plan.loads), (std::vector<SlotIndex>{20, 21, 10, 11}));
  EXPECT_EQ(plan.loads[0].block, names_of(b)[0]);
  EXPECT_EQ(plan.loads[2].block, names_of(a)[0]);
}

TEST(Scheduler, LoadsReachToTheFirstHoleInThePages) {
  SchedulerFixture world;
  const std::vector<Token> tokens = make_tokens(4 * kBlockTokens + 1);
  world.publish(names_of(tokens));
  world.query(1, tokens);
  const std::vector<SlotIndex> holed{5, 6, -1, 8, 9};
  world.scheduler->allocated(1, holed);
  EXPECT_EQ(slots_of(world.plan().loads), (std::vector<SlotIndex>{5, 6}));
  EXPECT_EQ(world.scheduler->stats().pages_inconsistent, 1u);
  // Whoever counts the promise as kept attends to pages that nobody filled: nothing of it is saved.
  EXPECT_TRUE(world.plan({whole_pass(1, tokens, holed)}).saves.empty());
}

TEST(Scheduler, ShortPageListIsServedAsFarAsItReachesAndNeverSaved) {
  SchedulerFixture world;
  const std::vector<Token> tokens = make_tokens(4 * kBlockTokens + 1);
  world.publish(names_of(tokens));
  world.query(1, tokens);
  const auto slots = make_slots(3);
  world.scheduler->allocated(1, slots);
  EXPECT_EQ(world.plan().loads.size(), 3u);
  EXPECT_EQ(world.scheduler->stats().pages_inconsistent, 1u);
  EXPECT_TRUE(world.plan({whole_pass(1, tokens, slots)}).saves.empty());
}

TEST(Scheduler, PagesOfAnotherBlockSizeAreNeverSaved) {
  SchedulerFixture world;
  const std::vector<Token> tokens = make_tokens(8 * kBlockTokens);
  world.query(1, tokens);
  const auto slots = make_slots(4);  // As if a block had twice the tokens.
  world.scheduler->allocated(1, slots);
  EXPECT_EQ(world.scheduler->stats().pages_inconsistent, 1u);
  EXPECT_TRUE(world.plan({whole_pass(1, tokens, slots)}).saves.empty());
}

TEST(Scheduler, PagesBeyondThePromptAreFine) {
  SchedulerFixture world;
  world.query(1, make_tokens(2 * kBlockTokens));
  world.scheduler->allocated(1, make_slots(5));
  EXPECT_EQ(world.scheduler->stats().pages_inconsistent, 0u);
}

TEST(Scheduler, PagesBeyondThePromptShowSmallerBlocksWherePagesAreExact) {
  SchedulerFixture world;
  world.options.exact_pages = true;
  world.scheduler = world.make(world.store);
  const std::vector<Token> tokens = make_tokens(2 * kBlockTokens);
  const auto plan_of = [&](RequestId id, std::size_t pages) {
    world.query(id, tokens);
    const auto slots = make_slots(pages);
    world.scheduler->allocated(id, slots);
    return world.plan({whole_pass(id, tokens, slots)});
  };
  EXPECT_TRUE(plan_of(1, 4).saves.empty());  // As if a block had half the tokens.
  EXPECT_EQ(world.scheduler->stats().pages_inconsistent, 1u);
  EXPECT_EQ(plan_of(2, 2).saves.size(), 2u);
}

TEST(Scheduler, NothingIsSavedThatRestsOnAPromiseWithoutPages) {
  SchedulerFixture world;
  const std::vector<Token> tokens = make_tokens(4 * kBlockTokens);
  world.publish_blocks(tokens, 0, 2);
  ASSERT_EQ(world.query(1, tokens).blocks, 2u);
  const auto slots = make_slots(4);
  const StepPlan plan = world.plan({{.id = 1,
                                     .is_new = true,
                                     .new_tokens = tokens,
                                     .new_slots = slots,
                                     .scheduled_tokens = 2 * kBlockTokens}});
  EXPECT_TRUE(plan.loads.empty());
  EXPECT_TRUE(plan.saves.empty());
}

TEST(Scheduler, CancelledPartOfAPromiseIsNotLoaded) {
  SchedulerFixture world;
  const std::vector<Token> tokens = make_tokens(5 * kBlockTokens);
  world.publish(names_of(tokens));
  world.query(1, tokens);
  world.scheduler->cancel_load(1, 3 * kBlockTokens);
  world.scheduler->allocated(1, make_slots(5));
  world.scheduler->cancel_load(1, 2 * kBlockTokens);
  world.scheduler->cancel_load(1, 2 * kBlockTokens);
  EXPECT_EQ(world.plan().loads.size(), 2u);

  world.query(2, tokens);
  world.scheduler->allocated(2, make_slots(5));
  world.scheduler->cancel_load(2, 0);
  world.scheduler->cancel_load(99, 0);
  EXPECT_TRUE(world.plan().loads.empty());
}

TEST(Scheduler, CancelInsideABlockKeepsTheBlock) {
  SchedulerFixture world;
  const std::vector<Token> tokens = make_tokens(5 * kBlockTokens);
  world.publish(names_of(tokens));
  world.query(1, tokens);
  world.scheduler->allocated(1, make_slots(5));
  world.scheduler->cancel_load(1, kBlockTokens + 1);
  EXPECT_EQ(world.plan().loads.size(), 2u);
}

TEST(Scheduler, EndOfARequestTakesItsLoadsAlong) {
  SchedulerFixture world;
  const std::vector<Token> tokens = make_tokens(3 * kBlockTokens);
  world.publish(names_of(tokens));
  world.query(1, tokens);
  world.scheduler->allocated(1, make_slots(3));
  for (const RequestId id : {1u, 1u, 99u}) world.scheduler->finished(id);
  EXPECT_TRUE(world.plan().loads.empty()) << "its pages may be another request's by now";
  EXPECT_EQ(world.scheduler->stats().requests_tracked, 0u);
}

TEST(Scheduler, NewQueryReplacesWhatWasKnown) {
  SchedulerFixture world;
  const std::vector<Token> first = make_tokens(3 * kBlockTokens, 0);
  const std::vector<Token> second = make_tokens(2 * kBlockTokens, 500);
  world.publish(names_of(first));
  world.query(1, first);
  world.scheduler->allocated(1, make_slots(3, 10));
  EXPECT_EQ(world.query(1, second).blocks, 0u);
  EXPECT_TRUE(world.plan().loads.empty());
  const auto slots = make_slots(2, 20);
  world.scheduler->allocated(1, slots);
  const StepPlan plan = world.plan({{.id = 1,
                                     .is_new = true,
                                     .new_tokens = second,
                                     .new_slots = slots,
                                     .scheduled_tokens = second.size()}});
  ASSERT_EQ(plan.saves.size(), 2u);
  EXPECT_EQ(plan.saves[0].block, names_of(second)[0]);
}

TEST(Scheduler, AllocationToldTwiceOwesItsLoadsOnce) {
  SchedulerFixture world;
  const std::vector<Token> tokens = make_tokens(3 * kBlockTokens);
  world.publish(names_of(tokens));
  world.query(1, tokens);
  world.scheduler->allocated(1, make_slots(3, 10));
  world.scheduler->allocated(1, make_slots(3, 20));
  EXPECT_EQ(slots_of(world.plan().loads), (std::vector<SlotIndex>{20, 21}));
  world.scheduler->allocated(1, make_slots(3, 30));
  EXPECT_TRUE(world.plan().loads.empty());
}

TEST(Scheduler, UnknownRequestsAreIgnored) {
  SchedulerFixture world;
  const std::vector<Token> tokens = make_tokens(2 * kBlockTokens);
  const auto slots = make_slots(2);
  world.scheduler->allocated(7, slots);
  EXPECT_TRUE(world.plan({whole_pass(7, tokens, slots)}).empty());
  EXPECT_EQ(world.scheduler->stats().requests_tracked, 0u);
}

TEST(Scheduler, QuietestRequestIsForgottenAtTheBound) {
  SchedulerFixture world(1, 2);
  const std::vector<Token> tokens = make_tokens(kBlockTokens);
  const auto slots = make_slots(1);
  const auto saves = [&](RequestId id) {
    return world.plan({whole_pass(id, tokens, slots)}).saves.size();
  };
  world.query(1, tokens);
  world.query(2, tokens);
  world.scheduler->allocated(1, slots);  // Now 2 is the quieter one.
  world.query(3, tokens);
  EXPECT_EQ(world.scheduler->stats().requests_forgotten, 1u);
  EXPECT_EQ(world.scheduler->stats().requests_tracked, 2u);
  EXPECT_EQ(saves(2), 0u);
  EXPECT_EQ(saves(1), 1u);
  EXPECT_EQ(saves(3), 1u);
}

TEST(Scheduler, PromiseIsNotForgottenWhileItMayHaveToBeKept) {
  SchedulerFixture world(1, 2);
  const std::vector<Token> tokens = make_tokens(2 * kBlockTokens);
  world.publish(names_of(tokens));
  ASSERT_EQ(world.query(1, tokens).blocks, 1u);
  ASSERT_EQ(world.query(2, tokens).blocks, 1u);
  EXPECT_EQ(world.query(3, tokens).blocks, 0u) << "no room, so nothing may be promised";
  world.scheduler->allocated(1, make_slots(2, 10));
  world.scheduler->allocated(2, make_slots(2, 20));
  EXPECT_EQ(world.query(4, tokens).blocks, 0u);
  EXPECT_EQ(slots_of(world.plan().loads), (std::vector<SlotIndex>{10, 20}));
  EXPECT_EQ(world.query(5, tokens).blocks, 1u);
}

TEST(Scheduler, AllocationOfWhatIsNotKnownIsToldSo) {
  SchedulerFixture world(1, 2);
  const std::vector<Token> tokens = make_tokens(2 * kBlockTokens);
  world.publish(names_of(tokens));
  EXPECT_FALSE(world.scheduler->allocated(1, make_slots(2)));
  ASSERT_EQ(world.query(1, tokens).blocks, 1u);
  EXPECT_TRUE(world.scheduler->allocated(1, make_slots(2)));
  // The promise of 2 is open for so long that it must give way.
  ASSERT_EQ(world.query(2, tokens).blocks, 1u);
  for (int i = 0; i < 3; ++i) world.plan();
  world.query(3, tokens);
  world.query(4, tokens);
  EXPECT_FALSE(world.scheduler->allocated(2, make_slots(2)));
}

TEST(Scheduler, PromisesThatNobodyTookAreForgottenInTime) {
  SchedulerFixture world(1, 2);
  const std::vector<Token> tokens = make_tokens(2 * kBlockTokens);
  world.publish(names_of(tokens));
  world.query(1, tokens);
  world.query(2, tokens);
  world.plan();
  EXPECT_EQ(world.query(3, tokens).blocks, 0u);
  world.plan();
  EXPECT_EQ(world.query(4, tokens).blocks, 1u);
}

TEST(Scheduler, CountsWhatItDid) {
  SchedulerFixture world;
  const std::vector<Token> tokens = make_tokens(6 * kBlockTokens);
  const std::vector<BlockHash> names = names_of(tokens);
  world.publish(names);
  world.query(1, tokens);
  world.lose(world.keys.manifest(names[3]));
  world.query(2, tokens);
  world.lose(world.keys.shard(names[1], 1));
  world.query(3, tokens);
  const SchedulerStats stats = world.scheduler->stats();
  EXPECT_EQ(stats.queries, 3u);
  EXPECT_EQ(stats.blocks_looked_up, 15u);
  EXPECT_EQ(stats.blocks_offered, 5u + 3u + 1u);
  EXPECT_EQ(stats.lookups_no_manifest, 1u);
  EXPECT_EQ(stats.lookups_shard_lost, 1u);
  EXPECT_EQ(stats.lookups_failed, 0u);
  EXPECT_EQ(stats.requests_tracked, 3u);
}

/// Throws in place of an answer.
class ThrowingLogger final : public Logger {
 public:
  void log(LogLevel, std::string_view) override { throw std::runtime_error("no space left"); }
};

TEST(Scheduler, LoggerThatThrowsDecidesNothing) {
  SchedulerFixture world;
  const std::vector<Token> tokens = make_tokens(3 * kBlockTokens);
  Result<std::unique_ptr<Scheduler>> scheduler = Scheduler::create(
      world.options, world.keyspace, world.store, world.clock, std::make_shared<ThrowingLogger>());
  ASSERT_TRUE(scheduler.ok());
  world.store->answer_with(Reaction::kDown);
  const RequestContent content{tokens, tokens.size(), {}, {}};
  EXPECT_EQ((*scheduler)->query(1, content, 0)->blocks, 0u);
}

/// Fails as code does that has run out of memory.
class ThrowingClock final : public Clock {
 public:
  Instant now() const override { throw std::bad_alloc(); }
};

TEST(Scheduler, FailureInsideAQueryOffersNothing) {
  SchedulerFixture world;
  const std::vector<Token> tokens = make_tokens(3 * kBlockTokens);
  world.publish(names_of(tokens));
  Result<std::unique_ptr<Scheduler>> scheduler = Scheduler::create(
      world.options, world.keyspace, world.store, std::make_shared<ThrowingClock>(), world.logger);
  ASSERT_TRUE(scheduler.ok());
  const RequestContent content{tokens, tokens.size(), {}, {}};
  const Result<Offer> offer = (*scheduler)->query(1, content, 0);
  ASSERT_TRUE(offer.ok());
  EXPECT_EQ(offer->blocks, 0u);
  EXPECT_EQ((*scheduler)->stats().requests_tracked, 0u);
}

// Rows of the fault log.

TEST(FaultKinds, B03_ScopedLookupAsksForNoPlainKey) {
  SchedulerFixture world;
  const std::vector<Token> tokens = make_tokens(4 * kBlockTokens);
  const std::vector<BlockHash> plain = names_of(tokens);
  world.publish(plain);
  const RequestScope scopes[] = {{.cache_salt = "a", .lora = {}},
                                 {.cache_salt = "", .lora = {}},
                                 {.cache_salt = std::int64_t{0}, .lora = {}},
                                 {.cache_salt = {}, .lora = "a"}};
  for (const RequestScope& scope : scopes) {
    const Result<Offer> offer = world.scheduler->query(
        1, {.tokens = tokens, .prompt_tokens = tokens.size(), .scope = scope, .media = {}}, 0);
    ASSERT_TRUE(offer.ok());
    EXPECT_EQ(offer->blocks, 0u);
  }
  EXPECT_EQ(world.store->count(StoreOp::kExists), std::size(scopes));
  for (const auto& call : world.store->calls()) {
    for (const std::string& key : call.keys) {
      for (const BlockHash& name : plain) {
        EXPECT_NE(key, world.keys.manifest(name));
        EXPECT_NE(key, world.keys.shard(name, 0));
      }
    }
  }
}

TEST(FaultKinds, B18_OneTokenIsLeftToCompute) {
  constexpr std::size_t B = kBlockTokens;
  for (const std::size_t length :
       {std::size_t{1}, B - 1, B, B + 1, 2 * B - 1, 2 * B, 2 * B + 1, 10 * B}) {
    SchedulerFixture world;
    const std::vector<Token> tokens = make_tokens(length);
    world.publish(names_of(tokens));
    for (const std::size_t computed : {std::size_t{0}, B, length - 1, length}) {
      const Offer offer = world.query(1, tokens, computed);
      EXPECT_EQ(offer.tokens, offer.blocks * B);
      if (offer.blocks == 0) continue;
      EXPECT_LE(computed + offer.tokens, length - 1) << length << " " << computed;
      world.scheduler->allocated(1, make_slots((length + B - 1) / B));
      EXPECT_EQ(world.plan().loads.size(), offer.blocks);
    }
    const std::size_t all = (length - 1) / B;
    EXPECT_EQ(world.query(2, tokens).blocks, all) << "and no more than one block is left out";
  }
  SchedulerFixture world;
  EXPECT_EQ(world.query(1, {}).blocks, 0u);
}

TEST(FaultKinds, B19_PromiseIsAWholeNumberOfBlocks) {
  SchedulerFixture world;
  const std::vector<Token> tokens = make_tokens(4 * kBlockTokens);
  world.publish_blocks(tokens, 0, 2);
  EXPECT_EQ(world.query(1, tokens).tokens, 2u * kBlockTokens);
}

TEST(FaultKinds, B34_PromiseEndsAtFirstRankHole) {
  constexpr std::uint32_t kRanks = 4;
  const std::vector<Token> tokens = make_tokens(6 * kBlockTokens + 1);
  const std::vector<BlockHash> names = names_of(tokens);
  for (std::size_t hole = 0; hole < names.size(); ++hole) {
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      SchedulerFixture world(kRanks);
      world.publish(names);
      world.lose(world.keys.shard(names[hole], rank));
      EXPECT_EQ(world.query(1, tokens).blocks, hole);
    }
  }
}

TEST(FaultKinds, B35_ProbedShardsAreThoseThatTheLoadsName) {
  SchedulerFixture world(3);
  const std::vector<Token> tokens = make_tokens(4 * kBlockTokens + 1);
  world.publish(names_of(tokens));
  world.query(1, tokens);
  world.scheduler->allocated(1, make_slots(5));
  std::set<std::string> probed;
  for (const auto& call : world.store->calls()) probed.insert(call.keys.begin(), call.keys.end());
  for (const PageTask& load : world.plan().loads) {
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      EXPECT_TRUE(probed.contains(world.keys.shard(load.block, rank)));
    }
  }
}

TEST(FaultKinds, B69_UnchangedRepeatedQueryDoesNotProbeAgain) {
  SchedulerFixture world;
  world.scheduler =
      world.make(std::make_shared<testlib::LeasingStore>(world.store, std::chrono::seconds(10)));
  const std::vector<Token> tokens = make_tokens(3 * kBlockTokens);
  world.publish(names_of(tokens));
  ASSERT_EQ(world.query(1, tokens).blocks, 2u);
  const std::size_t probes = world.store->count(StoreOp::kExists);
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(world.query(1, tokens).blocks, 2u);
    world.plan();
  }
  EXPECT_EQ(world.store->count(StoreOp::kExists), probes);

  world.clock->advance(std::chrono::milliseconds(2500));  // A quarter of the lease is gone.
  world.query(1, tokens);
  EXPECT_GT(world.store->count(StoreOp::kExists), probes);
}

TEST(FaultKinds, B69_ChangedQueryProbesAgain) {
  SchedulerFixture world;
  world.scheduler =
      world.make(std::make_shared<testlib::LeasingStore>(world.store, std::chrono::seconds(10)));
  const std::vector<Token> tokens = make_tokens(4 * kBlockTokens);
  world.publish(names_of(tokens));
  const auto probes_of = [&](auto&& act) {
    const std::size_t before = world.store->count(StoreOp::kExists);
    act();
    return world.store->count(StoreOp::kExists) - before;
  };
  world.query(1, tokens);
  EXPECT_GT(probes_of([&] { world.query(1, tokens, kBlockTokens); }), 0u) << "another local match";
  EXPECT_GT(probes_of([&] { world.query(1, std::span(tokens).first(9)); }), 0u) << "other tokens";
  world.scheduler->allocated(1, make_slots(3));
  EXPECT_GT(probes_of([&] { world.query(1, std::span(tokens).first(9)); }), 0u) << "replayed";
  const std::vector<Token> cold = make_tokens(4 * kBlockTokens, 900);
  world.query(2, cold);
  EXPECT_GT(probes_of([&] { world.query(2, cold); }), 0u) << "a miss may have become a hit";
}

TEST(FaultKinds, B69_ColdShardsAreNeverProbed) {
  SchedulerFixture world;
  const std::vector<Token> tokens = make_tokens(100 * kBlockTokens);
  const std::vector<BlockHash> names = names_of(tokens);
  world.publish(std::span(names).first(3));
  world.query(1, tokens);
  for (const auto& call : world.store->calls()) {
    for (const std::string& key : call.keys) {
      for (std::size_t b = 3; b < names.size(); ++b) {
        EXPECT_NE(key, world.keys.shard(names[b], 0));
      }
    }
  }
}

TEST(FaultKinds, B83_EndedRequestsLeaveNothingBehind) {
  SchedulerFixture world;
  const std::vector<Token> tokens = make_tokens(4 * kBlockTokens);
  world.publish(names_of(tokens));
  const auto slots = make_slots(4);
  for (RequestId id = 0; id < 2000; ++id) {
    world.query(id, tokens, id % 3 == 0 ? 3 * kBlockTokens : 0);
    if (id % 2 == 0) world.scheduler->allocated(id, slots);
    if (id % 7 == 0) world.plan();
    world.scheduler->finished(id);
  }
  EXPECT_EQ(world.scheduler->stats().requests_tracked, 0u);
  EXPECT_TRUE(world.plan().empty());
  EXPECT_EQ(world.query(1, tokens).blocks, 3u);
}

TEST(FaultKinds, B26_DeadStoreMeansNoPromiseUntilItIsBack) {
  SchedulerFixture world;
  const std::vector<Token> tokens = make_tokens(4 * kBlockTokens);
  world.publish(names_of(tokens));
  EXPECT_EQ(world.query(1, tokens).blocks, 3u);
  world.store->answer_with(Reaction::kDown);
  EXPECT_EQ(world.query(2, tokens).blocks, 0u);
  world.store->answer_with(Reaction::kOk);
  EXPECT_EQ(world.query(3, tokens).blocks, 3u);
}

}  // namespace
}  // namespace kvc
