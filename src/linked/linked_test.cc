// A scheduler and two ranks, linked as a process links them: with threads, and the way between them
// that the ranks of other processes have.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "channel/channel_fixture.h"
#include "connector/scheduler_fixture.h"
#include "connector/worker_fixture.h"
#include "kvc/executor.h"
#include "kvc/linked_scheduler.h"
#include "testing/leasing_store.h"

namespace kvc {
namespace {

using testlib::GatePoint;

constexpr std::uint32_t kRanks = 2;
constexpr std::size_t kBlocks = 3;
constexpr std::size_t kSlots = 16;
constexpr std::size_t kPageBytes = 500;

/// The ranks of an engine and what is stored. Schedulers come and go.
class LinkedTest : public ::testing::Test {
 protected:
  LinkedTest() {
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      pools_.push_back(std::make_unique<TestPool>(kSlots, kPageBytes));
      start(rank);
    }
    for (const BlockHash& block : names_of(tokens_)) publish(block);
  }
  /// What is at the gate has to go, or the end of the workers would wait for it.
  ~LinkedTest() override { store_->open_gate(); }

  /// A new worker, in the place of the one that there is.
  void start(std::uint32_t rank) {
    WorkerOptions options;
    options.rank = rank;
    options.world_size = kRanks;
    options.tokens_per_block = kBlockTokens;
    options.staging_bytes = std::size_t{1} << 20;
    options.save_queue_bytes = std::size_t{1} << 19;
    options.staged = true;
    Result<std::shared_ptr<LinkedWorker>> made =
        LinkedWorker::create(options,
                             {.store = store_,
                              .executor = make_thread_pool({.name = "linked", .threads = 2}),
                              .clock = system_clock(),
                              .logger = logger_,
                              .copier = make_host_page_copier()},
                             kPatient);
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    workers_.resize(kRanks);
    workers_[rank] = std::move(made).value();
    const Status status = workers_[rank]->register_layout(kTestKeyspace, pools_[rank]->layout);
    ASSERT_TRUE(status.ok()) << status.to_string();
  }

  void publish(const BlockHash& block) {
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      std::vector<std::byte> object(kBlockHeaderBytes + kPageBytes);
      std::ranges::copy(oracle_page(block, rank, kPageBytes),
                        object.begin() + static_cast<std::ptrdiff_t>(kBlockHeaderBytes));
      seal_block({.kind = ObjectKind::kShard,
                  .layout = kTestKeyspace,
                  .block = block,
                  .rank = rank,
                  .world_size = kRanks,
                  .token_count = kBlockTokens,
                  .payload_bytes = kPageBytes},
                 object);
      put(keys_.shard(block, rank), object);
    }
    put(keys_.manifest(block), {std::byte{1}});
  }
  void put(const std::string& key, const std::vector<std::byte>& object) {
    ASSERT_EQ(memory_->put({{key, object.data(), object.size()}}, {}).front().effect,
              PutEffect::kStored);
  }

  LinkedSchedulerParts parts() const {
    return {.keyspace = kTestKeyspace,
            .store = memory_,
            .clock = system_clock(),
            .logger = logger_,
            .worker = workers_[0],
            .ranks = kRanks,
            .heartbeat = kPatient};
  }
  static SchedulerOptions options(Duration lookup_deadline = std::chrono::seconds(20)) {
    SchedulerOptions options;
    options.tokens_per_block = kBlockTokens;
    options.world_size = kRanks;
    options.lookup_deadline = lookup_deadline;
    return options;
  }
  static std::unique_ptr<LinkedScheduler> make(SchedulerOptions options,
                                               LinkedSchedulerParts parts) {
    Result<std::unique_ptr<LinkedScheduler>> made =
        LinkedScheduler::create(std::move(options), std::move(parts));
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    return std::move(made).value();
  }
  bool introduce(LinkedScheduler& scheduler) {
    bind(scheduler.core().plan_step({}));
    return eventually([&] { return scheduler.core().stats().ranks_awaited == 0; });
  }
  /// A scheduler that all ranks have met.
  std::unique_ptr<LinkedScheduler> meet(Duration lookup_deadline = std::chrono::seconds(20)) {
    std::unique_ptr<LinkedScheduler> scheduler = make(options(lookup_deadline), parts());
    EXPECT_TRUE(introduce(*scheduler));
    return scheduler;
  }

  void bind(const StepPlan& plan) {
    for (const auto& worker : workers_) worker->bind(plan);
  }
  std::size_t query(LinkedScheduler& scheduler, RequestId id) const {
    const RequestContent content{tokens_, tokens_.size(), {}, {}};
    const Result<Offer> offer = scheduler.core().query(id, content, 0);
    EXPECT_TRUE(offer.ok());
    return offer->blocks;
  }
  std::uint64_t holds(std::uint32_t rank) const {
    return workers_[rank]->core().stats().holds_open;
  }

  const std::vector<Token> tokens_ = make_tokens(kBlocks * kBlockTokens + 1);
  const ObjectKeys keys_{kTestKeyspace};
  std::shared_ptr<testlib::CollectingLogger> logger_ =
      std::make_shared<testlib::CollectingLogger>();
  std::shared_ptr<MemoryStore> memory_ = make_memory_store({});
  std::shared_ptr<testlib::GatedStore> store_ = std::make_shared<testlib::GatedStore>(memory_);
  std::vector<std::unique_ptr<TestPool>> pools_;
  std::vector<std::shared_ptr<LinkedWorker>> workers_;
};

using LinkedScheduling = LinkedTest;
using LinkedWorking = LinkedTest;

TEST_F(LinkedScheduling, WhatIsPromisedLiesInTheMemoryOfEveryRank) {
  const std::unique_ptr<LinkedScheduler> scheduler = make(options(), parts());
  EXPECT_EQ(query(*scheduler, 1), 0u) << "the second rank was not told of the leader";
  EXPECT_EQ(scheduler->core().stats().ranks_awaited, 1u);
  const StepPlan first = scheduler->core().plan_step({});
  EXPECT_FALSE(first.rendezvous.empty());
  bind(first);
  ASSERT_TRUE(eventually([&] { return scheduler->core().stats().ranks_awaited == 0; }));
  EXPECT_EQ(scheduler->channel_stats().ranks_connected, 1u);
  EXPECT_TRUE(eventually([&] { return workers_[1]->channel_stats().connected == 1; }));
  EXPECT_EQ(workers_[0]->channel_stats().connections, 0u) << "it shares the leader's process";

  ASSERT_EQ(query(*scheduler, 1), kBlocks);
  memory_->close(Deadline{});
  const std::vector<SlotIndex> slots = make_slots(kBlocks + 1, 0);
  ASSERT_TRUE(scheduler->core().allocated(1, slots));
  const StepRequest pass = whole_pass(1, tokens_, slots);
  const StepPlan plan = scheduler->core().plan_step({&pass, 1});
  EXPECT_EQ(plan.loads.size(), kBlocks);
  EXPECT_TRUE(plan.rendezvous.empty());
  bind(plan);
  const std::vector<BlockHash> names = names_of(tokens_);
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    EXPECT_TRUE(workers_[rank]->core().load(0).empty()) << "rank " << rank;
    for (std::size_t b = 0; b < kBlocks; ++b) {
      EXPECT_TRUE(pools_[rank]->holds(slots[b], names[b], rank)) << "rank " << rank;
    }
    EXPECT_EQ(holds(rank), 0u);
  }
  EXPECT_EQ(query(*scheduler, 2), kBlocks) << "resident, which needs no store";
}

TEST_F(LinkedScheduling, RanksTakeTheOrdersOfEveryScheduler) {
  // One ends in good order before the next comes; another is there still, and is left.
  std::vector<std::unique_ptr<LinkedScheduler>> still_there;
  for (const bool ends : {true, true, false, false, true}) {
    std::unique_ptr<LinkedScheduler> scheduler = meet();
    for (const RequestId id : {1u, 2u}) EXPECT_EQ(query(*scheduler, id), kBlocks);
    if (!ends) {
      still_there.push_back(std::move(scheduler));
      continue;
    }
    scheduler = nullptr;
    EXPECT_TRUE(eventually([&] { return workers_[1]->channel_stats().connected == 0; }));
  }
}

TEST_F(LinkedScheduling, NoHoldOfASchedulerThatWasLeftStays) {
  const std::unique_ptr<LinkedScheduler> first = meet();
  for (const RequestId id : {1u, 2u, 3u}) EXPECT_EQ(query(*first, id), kBlocks);
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) EXPECT_EQ(holds(rank), 3u);
  const std::unique_ptr<LinkedScheduler> second = meet();
  EXPECT_EQ(query(*second, 1), kBlocks);
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) EXPECT_EQ(holds(rank), 1u) << rank;
}

TEST_F(LinkedScheduling, WhatASchedulerPlannedLastHoldsNothingForTheNext) {
  std::unique_ptr<LinkedScheduler> scheduler = meet();
  ASSERT_EQ(query(*scheduler, 1), kBlocks);
  ASSERT_TRUE(scheduler->core().allocated(1, make_slots(kBlocks + 1, 0)));
  ASSERT_FALSE(scheduler->core().plan_step({}).done_holds.empty());
  scheduler = nullptr;
  EXPECT_EQ(holds(0), 1u) << "that plan might still come";
  scheduler = meet();
  EXPECT_EQ(holds(0), 0u);
  EXPECT_TRUE(eventually([&] { return holds(1) == 0; }));
}

TEST_F(LinkedScheduling, PromisesOfAnIdleEngineEnd) {
  const auto clock = std::make_shared<testlib::SimClock>();
  LinkedSchedulerParts with = parts();
  with.clock = clock;
  const std::unique_ptr<LinkedScheduler> scheduler = make(options(), std::move(with));
  ASSERT_TRUE(introduce(*scheduler));
  ASSERT_EQ(query(*scheduler, 1), kBlocks);
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) EXPECT_EQ(holds(rank), 1u);
  clock->advance(std::chrono::minutes(1));
  EXPECT_TRUE(eventually([&] { return holds(0) + holds(1) == 0; })) << "nobody calls";
}

TEST_F(LinkedScheduling, APromiseOutlivesTheLongestStep) {
  // Its query may come first of a step, and its pages after the last one has used up the deadline.
  constexpr Duration kDeadline = std::chrono::seconds(60);
  const auto clock = std::make_shared<testlib::SimClock>();
  LinkedSchedulerParts with = parts();
  with.clock = clock;
  const std::unique_ptr<LinkedScheduler> scheduler = make(options(kDeadline), std::move(with));
  ASSERT_TRUE(introduce(*scheduler));
  for (const RequestId id : {1u, 2u}) ASSERT_EQ(query(*scheduler, id), kBlocks);
  clock->advance(kDeadline + std::chrono::seconds(9));
  EXPECT_EQ(query(*scheduler, 3), kBlocks) << "which takes back what has expired";
  ASSERT_TRUE(scheduler->core().allocated(1, make_slots(kBlocks + 1, 0)));
  EXPECT_EQ(scheduler->core().stats().promises_expired, 0u);
  clock->advance(std::chrono::seconds(2));
  EXPECT_EQ(query(*scheduler, 4), kBlocks);
  ASSERT_TRUE(scheduler->core().allocated(2, make_slots(kBlocks + 1, kBlocks + 1)));
  EXPECT_EQ(scheduler->core().stats().promises_expired, 1u);
}

TEST_F(LinkedScheduling, LeasedPromisesOfAnIdleEngineAreRenewed) {
  LinkedSchedulerParts with = parts();
  with.worker = nullptr;
  with.store = std::make_shared<testlib::LeasingStore>(memory_, std::chrono::milliseconds(200));
  const std::unique_ptr<LinkedScheduler> scheduler = make(options(), std::move(with));
  ASSERT_EQ(query(*scheduler, 1), kBlocks);
  ASSERT_TRUE(scheduler->core().allocated(1, make_slots(kBlocks + 1, 0)));
  EXPECT_TRUE(eventually([&] { return scheduler->core().stats().leases_renewed > 0; }));
  EXPECT_EQ(scheduler->channel_stats().ranks_connected, 0u);
  EXPECT_TRUE(scheduler->core().plan_step({}).rendezvous.empty());
}

TEST_F(LinkedScheduling, EndsWhileRanksAreFetching) {
  store_->close_gate(GatePoint::kBeforeReply);
  std::unique_ptr<LinkedScheduler> scheduler = meet(std::chrono::seconds(1));
  EXPECT_EQ(query(*scheduler, 1), 0u);
  EXPECT_TRUE(store_->wait_for_waiting(kRanks));
  scheduler = nullptr;
  store_->open_gate();
  EXPECT_EQ(query(*meet(), 1), kBlocks);
}

TEST_F(LinkedScheduling, WithoutRankZeroNothingIsPromised) {
  const std::unique_ptr<LinkedScheduler> scheduler = meet();
  workers_[0] = nullptr;
  EXPECT_EQ(query(*scheduler, 1), 0u);
  start(0);
  EXPECT_EQ(query(*scheduler, 1), 0u) << "this one is the next scheduler's";
  EXPECT_EQ(query(*meet(), 1), kBlocks);
}

TEST_F(LinkedScheduling, FailsWithoutAnAddress) {
  LinkedSchedulerParts with = parts();
  with.address = "not an address";
  EXPECT_EQ(LinkedScheduler::create(options(), std::move(with)).status().code(), Code::kInvalid);
  EXPECT_EQ(query(*meet(), 1), kBlocks) << "the worker is as it was";
}

TEST_F(LinkedWorking, ALeaderThatCannotBeMetIsToldOnceAndItsPlansAreBound) {
  StepPlan plan{.keyspace = kTestKeyspace, .loads = {}, .saves = {}};
  plan.rendezvous = "no rendezvous";
  plan.loads.push_back({.request = 1, .block = names_of(tokens_)[0], .slot = 2});
  for (int step = 0; step < 3; ++step) {
    pools_[1]->poison_all();
    workers_[1]->bind(plan);
    EXPECT_TRUE(workers_[1]->core().load(0).empty());
    EXPECT_TRUE(pools_[1]->holds(2, names_of(tokens_)[0], 1));
  }
  EXPECT_EQ(logger_->count("cannot take orders"), 1u);
  EXPECT_EQ(workers_[1]->channel_stats().connections, 0u);
}

TEST_F(LinkedWorking, ARankThatClosesLeavesItsLeader) {
  const std::unique_ptr<LinkedScheduler> scheduler = meet();
  workers_[1]->close(Deadline::after(*system_clock(), std::chrono::seconds(20)));
  EXPECT_TRUE(eventually([&] { return scheduler->core().stats().ranks_awaited == 1; }));
  EXPECT_EQ(query(*scheduler, 1), 0u);
  workers_[1]->close(Deadline{});
  start(1);
  EXPECT_TRUE(introduce(*scheduler));
  EXPECT_EQ(query(*scheduler, 1), kBlocks) << "its successor";
}

}  // namespace
}  // namespace kvc
