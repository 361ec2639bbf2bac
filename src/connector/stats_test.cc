#include "kvc/stats.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "connector/scheduler_fixture.h"
#include "connector/worker_counters.h"
#include "kvc/scheduler.h"
#include "kvc/worker.h"
#include "testing/passing_store.h"

namespace kvc {
namespace {

/// Takes 30 ms to answer a probe.
class SlowStore final : public testlib::PassingStore {
 public:
  SlowStore(std::shared_ptr<Store> inner, std::shared_ptr<testlib::SimClock> time)
      : testlib::PassingStore(std::move(inner)), time_(std::move(time)) {}
  std::vector<Reaction> exists(std::vector<std::string> keys, CallContext context) override {
    time_->advance(std::chrono::milliseconds(30));
    return testlib::PassingStore::exists(std::move(keys), std::move(context));
  }

 private:
  const std::shared_ptr<testlib::SimClock> time_;
};

TEST(LatencyHistogram, CountsWithinInclusiveBounds) {
  LatencyHistogram histogram;
  histogram.add(Duration(0));
  histogram.add(std::chrono::microseconds(100));
  histogram.add(std::chrono::microseconds(100) + Duration(1));
  histogram.add(std::chrono::seconds(10));
  histogram.add(std::chrono::hours(1));
  EXPECT_EQ(histogram.buckets().front(), 2u);
  EXPECT_EQ(histogram.buckets()[1], 1u);
  EXPECT_EQ(histogram.buckets()[LatencyHistogram::kBounds.size() - 1], 1u);
  EXPECT_EQ(histogram.buckets().back(), 1u);
  EXPECT_EQ(histogram.count(), 5u);
  EXPECT_EQ(histogram.sum(), std::chrono::hours(1) + std::chrono::seconds(10) +
                                 std::chrono::microseconds(200) + Duration(1));
  EXPECT_TRUE(std::is_sorted(LatencyHistogram::kBounds.begin(), LatencyHistogram::kBounds.end()));
}

/// No two rows share a name or a field, so that with `covers_all` each field has exactly one.
template <typename Stats, std::size_t kRows>
void expect_distinct(const StatField<Stats> (&table)[kRows]) {
  std::set<std::string> names;
  Stats stats;
  for (const StatField<Stats>& row : table) {
    EXPECT_TRUE(names.insert(row.name()).second) << row.name();
    EXPECT_FALSE(row.help.empty()) << row.name();
    EXPECT_EQ(stats.*row.field, 0u) << row.name() << " names another row's field";
    ++(stats.*row.field);
  }
}

TEST(StatTables, EachFieldHasARowOfItsOwn) {
  expect_distinct(kSchedulerStats);
  expect_distinct(kWorkerStats);
}

TEST(StatTables, CountersOfAPartAreAddedWhole) {
  WorkerStats all;
  WorkerStats part;
  std::uint64_t next = 1;
  for (const StatField<WorkerStats>& row : kWorkerStats) part.*row.field = next++;
  add(all, part);
  add(all, part);
  next = 1;
  for (const StatField<WorkerStats>& row : kWorkerStats) EXPECT_EQ(all.*row.field, 2 * next++);
}

std::uint64_t missed(const SchedulerStats& stats) {
  std::uint64_t all = 0;
  for (const StatField<SchedulerStats>& row : kSchedulerStats) {
    if (row.family == "blocks_missed") all += stats.*row.field;
  }
  return all;
}

TEST(SchedulerStats, EachBlockIsOfferedOrMissedForOneReason) {
  SchedulerFixture world(2, 2);
  const std::vector<Token> tokens = make_tokens(6 * kBlockTokens);  // 5 blocks can be offered
  const std::vector<BlockHash> names = names_of(tokens);
  world.publish(names);
  EXPECT_EQ(world.query(1, tokens).blocks, 5u);
  EXPECT_EQ(world.query(1, tokens, kBlockTokens + 1).blocks, 0u);  // 3 whole ones are left
  world.scheduler->set_load_budget(2);
  world.plan();
  EXPECT_EQ(world.query(1, tokens).blocks, 2u);
  world.scheduler->set_load_budget(100);
  world.lose(world.keys.manifest(names[4]));
  EXPECT_EQ(world.query(2, tokens).blocks, 4u);
  EXPECT_EQ(world.query(3, tokens).blocks, 0u);  // both places hold open promises
  world.lose(world.keys.shard(names[1], 1));
  world.scheduler->finished(1);
  EXPECT_EQ(world.query(4, tokens).blocks, 1u);
  world.scheduler->finished(4);
  world.store->answer_with(Reaction::kDown);
  EXPECT_EQ(world.query(5, tokens).blocks, 0u);
  const SchedulerStats stats = world.scheduler->stats();
  EXPECT_EQ(stats.blocks_missed_unaligned, 3u);
  EXPECT_EQ(stats.blocks_missed_over_budget, 3u);
  EXPECT_EQ(stats.blocks_missed_no_manifest, 1u + 1u);
  EXPECT_EQ(stats.blocks_missed_untracked, 4u);
  EXPECT_EQ(stats.blocks_missed_shard_lost, 4u);
  EXPECT_EQ(stats.blocks_missed_store_failed, 5u);
  EXPECT_EQ(stats.blocks_offered, 5u + 2u + 4u + 1u);
  EXPECT_EQ(stats.blocks_looked_up, stats.blocks_offered + missed(stats));
}

TEST(SchedulerStats, RepeatedQueryKeepsOffersAndMissesInBalance) {
  SchedulerFixture world;
  world.scheduler =
      world.make(std::make_shared<testlib::LeasingStore>(world.store, std::chrono::seconds(10)));
  const std::vector<Token> tokens = make_tokens(6 * kBlockTokens);
  world.publish_blocks(tokens, 0, 3);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(world.query(1, tokens).blocks, 3u);
  const SchedulerStats stats = world.scheduler->stats();
  EXPECT_EQ(stats.blocks_offered, 9u);
  EXPECT_EQ(stats.lookup_latency.count(), 1u);
  EXPECT_EQ(stats.blocks_looked_up, stats.blocks_offered + missed(stats));
}

TEST(SchedulerStats, LookupLatencyIsTheTimeOfAllCallsOfALookup) {
  SchedulerFixture world;
  const std::vector<Token> tokens = make_tokens(3 * kBlockTokens);
  world.publish(names_of(tokens));
  world.query(1, make_tokens(1));  // nothing that could be looked up
  EXPECT_EQ(world.scheduler->stats().lookup_latency.count(), 0u);
  world.scheduler = world.make(std::make_shared<SlowStore>(world.store, world.clock));
  EXPECT_EQ(world.query(1, tokens).blocks, 2u);  // manifests, then shards
  const LatencyHistogram latency = world.scheduler->stats().lookup_latency;
  EXPECT_EQ(latency.count(), 1u);
  EXPECT_EQ(latency.sum(), std::chrono::milliseconds(60));
  EXPECT_EQ(latency.buckets()[9], 1u);  // above 50 ms, up to 100 ms
}

}  // namespace
}  // namespace kvc
