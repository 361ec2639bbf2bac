#include "connector/shard_sets.h"

#include <gtest/gtest.h>

#include "connector/worker_fixture.h"

namespace kvc {
namespace {

TEST(RecentShards, RemembersForItsLifetime) {
  const auto clock = std::make_shared<testlib::SimClock>();
  RecentShards recent(clock);
  EXPECT_FALSE(recent.contains(make_hash(1)));
  recent.saw(make_hash(1));
  clock->advance(RecentShards::kLifetime - Duration(1));
  EXPECT_TRUE(recent.contains(make_hash(1)));
  clock->advance(Duration(1));
  EXPECT_FALSE(recent.contains(make_hash(1)));
  recent.saw(make_hash(1));
  EXPECT_TRUE(recent.contains(make_hash(1)));
  EXPECT_EQ(recent.size(), 1u);
}

TEST(RecentShards, AskingDoesNotProlong) {
  const auto clock = std::make_shared<testlib::SimClock>();
  RecentShards recent(clock, 10, Duration(10));
  recent.saw(make_hash(1));
  for (int i = 0; i < 9; ++i) {
    clock->advance(Duration(1));
    EXPECT_TRUE(recent.contains(make_hash(1)));
  }
  clock->advance(Duration(1));
  EXPECT_FALSE(recent.contains(make_hash(1)));
}

TEST(RecentShards, OldestSightingGoesAtTheLimit) {
  RecentShards recent(std::make_shared<testlib::SimClock>(), 3);
  for (const std::uint64_t number : {1u, 2u, 3u, 1u, 4u}) recent.saw(make_hash(number));
  EXPECT_TRUE(recent.contains(make_hash(1))) << "seen again";
  EXPECT_FALSE(recent.contains(make_hash(2)));
  EXPECT_TRUE(recent.contains(make_hash(3)));
  EXPECT_TRUE(recent.contains(make_hash(4)));
  EXPECT_EQ(recent.size(), 3u);
}

TEST(RecentShards, SightingsWhoseTimeIsOverTakeNoRoom) {
  const auto clock = std::make_shared<testlib::SimClock>();
  RecentShards recent(clock, 1000, Duration(10));
  for (std::uint64_t number = 1; number <= 500; ++number) {
    recent.saw(make_hash(number));
    clock->advance(Duration(1));
    EXPECT_LE(recent.size(), 10u);
  }
  EXPECT_FALSE(recent.contains(make_hash(490)));
  EXPECT_TRUE(recent.contains(make_hash(492)));
}

TEST(RecentShards, KnowsWhatWasSeenAfterAMoment) {
  const auto clock = std::make_shared<testlib::SimClock>();
  RecentShards recent(clock);
  EXPECT_FALSE(recent.seen_after(make_hash(1), clock->now()));
  recent.saw(make_hash(1));
  const Instant seen_at = clock->now();
  EXPECT_TRUE(recent.seen_after(make_hash(1), seen_at - Duration(1)));
  EXPECT_FALSE(recent.seen_after(make_hash(1), seen_at));
  clock->advance(Duration(5));
  recent.saw(make_hash(1));
  EXPECT_TRUE(recent.seen_after(make_hash(1), seen_at));
  recent.forget(make_hash(1));
  EXPECT_FALSE(recent.seen_after(make_hash(1), seen_at));
}

TEST(RecentShards, ForgetsOneOrAll) {
  RecentShards recent(std::make_shared<testlib::SimClock>());
  recent.saw(make_hash(1));
  recent.saw(make_hash(2));
  recent.forget(make_hash(1));
  recent.forget(make_hash(9));
  EXPECT_FALSE(recent.contains(make_hash(1)));
  EXPECT_TRUE(recent.contains(make_hash(2)));
  recent.clear();
  EXPECT_EQ(recent.size(), 0u);
}

TEST(BrokenObjects, AreBounded) {
  BrokenObjects broken;
  EXPECT_TRUE(broken.empty());
  const std::string one_more = std::to_string(BrokenObjects::kLimit);
  for (std::uint64_t number = 0; number <= BrokenObjects::kLimit; ++number) {
    broken.add(std::to_string(number));
  }
  EXPECT_TRUE(broken.contains("0"));
  EXPECT_FALSE(broken.contains(one_more));
  broken.remove("0");
  broken.add(one_more);
  EXPECT_TRUE(broken.contains(one_more));
}

}  // namespace
}  // namespace kvc
