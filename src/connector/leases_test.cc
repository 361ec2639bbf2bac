// From the promise to the end of the load, where promises are leased: no block that the store can
// protect is lost on the way.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "connector/scheduler_fixture.h"

namespace kvc {
namespace {

using std::chrono::seconds;
using testlib::LeasingStore;

constexpr Duration kLease = seconds(10);
constexpr std::size_t kBlocks = 6;

/// A store in which something happens while it is asked.
class EventfulStore final : public testlib::PassingStore {
 public:
  using PassingStore::PassingStore;

  std::vector<Reaction> exists(std::vector<std::string> keys, CallContext context) override {
    std::vector<Reaction> answer = inner_->exists(std::move(keys), std::move(context));
    if (const std::function<void()> event = meanwhile) event();
    return answer;
  }

  std::function<void()> meanwhile;
};

class Leases : public testing::Test {
 protected:
  Leases() {
    world_.publish_blocks(tokens_, 0, kBlocks);
    world_.scheduler = world_.make(store_);
  }

  /// As whoever calls the scheduler does it, with time passing in between.
  void wait(Duration time) {
    for (Duration passed{0}; passed < time; passed += world_.scheduler->lease_check_interval()) {
      world_.clock->advance(world_.scheduler->lease_check_interval());
      world_.scheduler->renew_leases();
    }
  }

  /// What the store could evict now of everything that a load of the prompt reads.
  std::size_t evict_all() {
    std::size_t evicted = 0;
    for (const BlockHash& block : names_of(tokens_)) {
      for (std::uint32_t rank = 0; rank < 2; ++rank) {
        evicted += store_->evict(world_.keys.shard(block, rank)) ? 1 : 0;
      }
    }
    return evicted;
  }

  SchedulerFixture world_;
  const std::vector<Token> tokens_ = make_tokens(kBlocks * kBlockTokens + 1);
  std::shared_ptr<LeasingStore> store_ =
      std::make_shared<LeasingStore>(world_.store, kLease, world_.clock);
};

TEST_F(Leases, WithoutRenewalALapsedLeaseLeavesThePromiseToChance) {
  EXPECT_EQ(world_.query(1, tokens_).blocks, kBlocks);
  world_.clock->advance(kLease + seconds(1));
  EXPECT_EQ(evict_all(), 2 * kBlocks);
}

TEST_F(Leases, B28_LeasesOfPromisesAreRenewedUntilTheirLoadsArePlanned) {
  EXPECT_EQ(world_.query(1, tokens_).blocks, kBlocks);
  wait(3 * kLease);
  EXPECT_EQ(evict_all(), 0u) << "promised";
  world_.scheduler->allocated(1, make_slots(kBlocks + 1));
  wait(20 * kLease);
  EXPECT_EQ(evict_all(), 0u) << "firm";
  EXPECT_GT(world_.scheduler->stats().leases_renewed, 20 * kBlocks);
  EXPECT_EQ(world_.scheduler->stats().leases_lost, 0u);
  EXPECT_EQ(world_.plan().loads.size(), kBlocks);
  EXPECT_EQ(evict_all(), 0u) << "about to be loaded";
  wait(2 * kLease);
  EXPECT_EQ(evict_all(), 2 * kBlocks) << "nobody's any more";
}

TEST_F(Leases, ARequestThatIsOverIsNotRenewed) {
  world_.query(1, tokens_);
  world_.scheduler->finished(1);
  const std::size_t asked = world_.store->count(StoreOp::kExists);
  wait(2 * kLease);
  EXPECT_EQ(world_.store->count(StoreOp::kExists), asked);
}

TEST_F(Leases, OneThatTheEngineDroppedWithoutAWordIsLeftToItself) {
  world_.query(1, tokens_);
  wait(20 * kLease);
  EXPECT_EQ(evict_all(), 2 * kBlocks);
  EXPECT_LE(world_.scheduler->stats().leases_renewed, 8 * kBlocks);
}

TEST_F(Leases, OnlyWhatIsStillNeededIsRenewed) {
  world_.query(1, tokens_);
  world_.scheduler->allocated(1, make_slots(kBlocks + 1));
  world_.scheduler->cancel_load(1, 2 * kBlockTokens);
  wait(3 * kLease);
  EXPECT_EQ(evict_all(), 2 * (kBlocks - 2));
  EXPECT_EQ(world_.plan().loads.size(), 2u);
}

TEST_F(Leases, ARoundIsBounded) {
  world_.options.max_renewed_objects = 2 * kBlocks + 1;
  world_.scheduler = world_.make(store_);
  world_.query(1, tokens_);
  world_.query(2, tokens_);
  world_.clock->advance(kLease / 2);
  world_.scheduler->renew_leases();
  EXPECT_EQ(world_.scheduler->stats().leases_renewed, kBlocks);
}

TEST_F(Leases, ARoundOfASlowStoreEndsInTimeAndTheNextOneGoesOn) {
  const auto eventful = std::make_shared<EventfulStore>(store_);
  world_.scheduler = world_.make(eventful);
  constexpr std::size_t kRequests = 8;
  for (RequestId id = 1; id <= kRequests; ++id) world_.query(id, tokens_);
  world_.clock->advance(kLease / 2);
  const Duration round = world_.options.lookup_deadline;
  eventful->meanwhile = [&] { world_.clock->advance(round / 4); };
  const Instant begin = world_.clock->now();
  world_.scheduler->renew_leases();
  EXPECT_LE(world_.clock->now() - begin, round + round / 4) << "the call under way comes on top";
  EXPECT_GT(world_.scheduler->stats().leases_renewed, 0u);
  for (std::size_t i = 1; i < kRequests; ++i) world_.scheduler->renew_leases();
  EXPECT_EQ(world_.scheduler->stats().leases_renewed, kRequests * kBlocks);
}

TEST_F(Leases, ARoundStopsBetweenTwoRequestsWhenItIsAskedTo) {
  const auto eventful = std::make_shared<EventfulStore>(store_);
  world_.scheduler = world_.make(eventful);
  for (RequestId id = 1; id <= 8; ++id) world_.query(id, tokens_);
  world_.clock->advance(kLease / 2);
  std::stop_source ending;
  eventful->meanwhile = [&] { ending.request_stop(); };
  world_.scheduler->renew_leases(ending.get_token());
  EXPECT_EQ(world_.scheduler->stats().leases_renewed, kBlocks);
}

TEST_F(Leases, WhatIsGoneIsCountedAndLeftToItsLoad) {
  world_.query(1, tokens_);
  world_.lose(world_.keys.shard(names_of(tokens_)[4], 1));
  world_.clock->advance(kLease / 2);
  world_.scheduler->renew_leases();
  EXPECT_EQ(world_.scheduler->stats().leases_lost, kBlocks - 4);
  world_.scheduler->allocated(1, make_slots(kBlocks + 1));
  EXPECT_EQ(world_.plan().loads.size(), kBlocks);
}

TEST_F(Leases, ARenewalDoesNotEndWhatWasPromisedMeanwhile) {
  const auto eventful = std::make_shared<EventfulStore>(store_);
  world_.scheduler = world_.make(eventful);
  world_.query(1, tokens_);
  world_.lose(world_.keys.shard(names_of(tokens_)[4], 1));
  world_.clock->advance(kLease / 2);
  eventful->meanwhile = [&] {
    eventful->meanwhile = nullptr;
    world_.clock->advance(std::chrono::milliseconds(1));
    world_.scheduler->finished(1);
    EXPECT_EQ(world_.query(1, tokens_).blocks, 4u);
    world_.scheduler->allocated(1, make_slots(kBlocks + 1));
  };
  world_.scheduler->renew_leases();
  EXPECT_EQ(world_.scheduler->stats().leases_lost, kBlocks - 4) << "of the older one";
  wait(3 * kLease);
  EXPECT_EQ(evict_all(), 2 * (kBlocks - 4) - 1) << "but not what nobody promised, nor is there";
}

TEST_F(Leases, AStoreThatDoesNotAnswerIsAskedAgainAndOnceARound) {
  world_.query(1, tokens_);
  world_.query(2, tokens_);
  world_.store->answer_with(Reaction::kDown);
  const std::size_t asked = world_.store->count(StoreOp::kExists);
  world_.clock->advance(kLease / 2);
  world_.scheduler->renew_leases();
  EXPECT_EQ(world_.store->count(StoreOp::kExists), asked + 1);
  world_.store->answer_with(Reaction::kOk);
  wait(kLease);
  EXPECT_EQ(evict_all(), 0u);
}

TEST_F(Leases, AStoreThatGrantsNoneIsNotAsked) {
  world_.scheduler = world_.make(world_.store);
  EXPECT_EQ(world_.scheduler->lease_check_interval(), Duration::zero());
  world_.query(1, tokens_);
  const std::size_t asked = world_.store->count(StoreOp::kExists);
  world_.clock->advance(seconds(60));
  world_.scheduler->renew_leases();
  EXPECT_EQ(world_.store->count(StoreOp::kExists), asked);
}

}  // namespace
}  // namespace kvc
