#include "replication/replication_policy.h"

#include <gtest/gtest.h>

#include "base/bytes.h"
#include "base/random.h"
#include "testing/seed.h"

namespace kvc {
namespace {

using std::chrono::seconds;

BlockHash block(std::uint64_t number) {
  BlockHash hash{};
  put_le(hash.bytes.data(), mix_bits(number + 1));
  return hash;
}

Instant at(std::int64_t s) { return Instant(seconds(s)); }

ReplicationOptions hot_at_four(std::uint32_t max_replicas = 2) {
  ReplicationOptions options;
  options.max_replicas = max_replicas;
  options.hot_at = 4;
  options.half_life = seconds(100);
  return options;
}

std::vector<PageTask> tasks(std::initializer_list<std::uint64_t> numbers) {
  std::vector<PageTask> tasks;
  for (const std::uint64_t number : numbers) tasks.push_back({1, block(number), 0});
  return tasks;
}

void ask(ReplicationPolicy& policy, std::uint64_t number, int times, Instant now) {
  const BlockHash asked = block(number);
  for (int i = 0; i < times; ++i) policy.requested({&asked, 1}, now);
}

TEST(ReplicationPolicy, HotBlocksEarnCopiesAndColdOnesDoNot) {
  ReplicationPolicy policy(hot_at_four(4), 8);
  ask(policy, 1, 3, at(0));
  EXPECT_EQ(policy.replicas(block(1), at(0)), 1u);
  ask(policy, 1, 1, at(0));
  EXPECT_EQ(policy.replicas(block(1), at(0)), 2u);
  ask(policy, 1, 4, at(0));
  EXPECT_EQ(policy.replicas(block(1), at(0)), 3u);
  ask(policy, 1, 1000, at(0));
  EXPECT_EQ(policy.replicas(block(1), at(0)), 4u) << "as many as are allowed";
  EXPECT_EQ(policy.replicas(block(2), at(0)), 1u) << "never asked for";
}

TEST(ReplicationPolicy, AMomentsDecayDoesNotCostARequest) {
  ReplicationPolicy policy(hot_at_four(), 8);
  for (int i = 0; i < 3; ++i) ask(policy, 1, 1, at(i));
  EXPECT_EQ(policy.replicas(block(1), at(3)), 1u);
  ask(policy, 1, 1, at(3));
  EXPECT_EQ(policy.replicas(block(1), at(3)), 2u) << "four requests in three seconds";
}

TEST(ReplicationPolicy, SlowRequestsNeverMakeABlockHot) {
  ReplicationPolicy policy(hot_at_four(), 8);
  // One request in each half life: the heat tends to 2.
  for (int i = 0; i < 1000; ++i) ask(policy, 1, 1, at(100 * i));
  EXPECT_EQ(policy.replicas(block(1), at(99'900)), 1u);
}

TEST(ReplicationPolicy, CopiesAreLostOnlyAtHalfOfWhatEarnedThem) {
  ReplicationPolicy policy(hot_at_four(3), 8);
  ask(policy, 1, 8, at(0));
  EXPECT_EQ(policy.replicas(block(1), at(0)), 3u);
  EXPECT_EQ(policy.replicas(block(1), at(99)), 3u) << "just above 4";
  EXPECT_EQ(policy.replicas(block(1), at(101)), 2u) << "below 4, above 2";
  EXPECT_EQ(policy.replicas(block(1), at(199)), 2u);
  EXPECT_EQ(policy.replicas(block(1), at(201)), 1u);
}

TEST(ReplicationPolicy, TheStoreBoundsTheCopies) {
  EXPECT_FALSE(ReplicationPolicy(hot_at_four(2), 1).enabled());
  EXPECT_FALSE(ReplicationPolicy(hot_at_four(1), 8).enabled());
  ReplicationPolicy policy(hot_at_four(5), 2);
  ask(policy, 1, 1000, at(0));
  EXPECT_EQ(policy.replicas(block(1), at(0)), 2u);
  ReplicationPolicy off(hot_at_four(1), 8);
  ask(off, 1, 1000, at(0));
  EXPECT_TRUE(off.choose(tasks({1}), tasks({1}), at(0)).empty());
}

TEST(ReplicationPolicy, HotLoadsAreHandedOutOnceInAWhile) {
  ReplicationPolicy policy(hot_at_four(), 8);
  ask(policy, 1, 8, at(0));
  ask(policy, 2, 1, at(0));
  const std::vector<HotBlock> once = {{block(1), 2}};
  EXPECT_EQ(policy.choose(tasks({2, 1, 1}), {}, at(0)), once);
  EXPECT_TRUE(policy.choose(tasks({1}), {}, at(59)).empty());
  EXPECT_EQ(policy.choose(tasks({1}), {}, at(60)), once) << "its copy may be lost by now";
}

TEST(ReplicationPolicy, OneThatCooledDownAndIsHotAgainIsHandedOutAtOnce) {
  ReplicationPolicy policy(hot_at_four(), 8);
  ask(policy, 1, 4, at(0));
  EXPECT_EQ(policy.choose(tasks({1}), {}, at(0)).size(), 1u);
  EXPECT_EQ(policy.replicas(block(1), at(101)), 1u);
  ask(policy, 1, 4, at(102));
  EXPECT_EQ(policy.choose(tasks({1}), {}, at(102)).size(), 1u);
}

TEST(ReplicationPolicy, FirstPutUsesWhatThePrefixHasEarned) {
  ReplicationPolicy policy(hot_at_four(), 8);
  ask(policy, 1, 4, at(0));
  const std::vector<HotBlock> both = {{block(1), 2}};
  EXPECT_EQ(policy.choose({}, tasks({1, 3}), at(0)), both);
  EXPECT_EQ(policy.choose(tasks({1}), tasks({1}), at(1)), both) << "every put of it, once a step";
  EXPECT_TRUE(policy.choose(tasks({1}), {}, at(2)).empty()) << "it was put with its copies";
}

TEST(ReplicationPolicy, StepsAndRequestsAreBounded) {
  ReplicationOptions options = hot_at_four();
  options.max_blocks_per_step = 5;
  options.max_blocks_per_request = 20;
  ReplicationPolicy policy(options, 8);
  std::vector<BlockHash> prompt;
  std::vector<PageTask> loads;
  for (std::uint64_t b = 0; b < 100; ++b) {
    prompt.push_back(block(b));
    loads.push_back({1, block(b), 0});
  }
  for (int i = 0; i < 8; ++i) policy.requested(prompt, at(0));
  EXPECT_EQ(policy.replicas(block(19), at(0)), 2u);
  EXPECT_EQ(policy.replicas(block(20), at(0)), 1u);
  std::size_t handed_out = 0;
  for (int step = 0; step < 10; ++step) {
    const std::vector<HotBlock> hot = policy.choose(loads, {}, at(0));
    EXPECT_LE(hot.size(), 5u);
    handed_out += hot.size();
  }
  EXPECT_EQ(handed_out, 20u) << "what had no room comes with a later step";
}

TEST(ReplicationPolicy, SameHistoryGivesTheSameChoices) {
  const std::uint64_t seed = testlib::test_seed(11);
  const auto run = [seed] {
    Random random(seed);
    ReplicationOptions options = hot_at_four(4);
    options.max_blocks = 50;
    ReplicationPolicy policy(options, 8);
    std::vector<HotBlock> all;
    for (std::int64_t step = 0; step < 2000; ++step) {
      const std::uint64_t b = random.below(10) < 7 ? random.below(8) : random.below(500);
      ask(policy, b, 1, at(step));
      for (const HotBlock& hot : policy.choose(tasks({b}), {}, at(step))) {
        EXPECT_GE(hot.replicas, 2u);
        EXPECT_LE(hot.replicas, 4u);
        all.push_back(hot);
      }
    }
    return all;
  };
  const std::vector<HotBlock> first = run();
  EXPECT_FALSE(first.empty());
  EXPECT_EQ(first, run());
}

}  // namespace
}  // namespace kvc
