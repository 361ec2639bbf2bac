// The whole path on two ranks and one store: an instance computes and saves, another one loads.

#include <memory>
#include <string>
#include <vector>

#include "connector/scheduler_fixture.h"
#include "connector/worker_fixture.h"

namespace kvc {
namespace {

constexpr std::size_t kPageBytes = 500;
constexpr std::size_t kSlots = 32;

/// A scheduler and two workers, as one engine has them.
class Instance {
 public:
  explicit Instance(std::shared_ptr<Store> store) : store_(std::move(store)) {
    scheduler_ = std::move(Scheduler::create({.tokens_per_block = kBlockTokens,
                                              .world_size = 2,
                                              .deployment_secret = "",
                                              .lookup_deadline = std::chrono::seconds(1),
                                              .max_tracked_requests = 100},
                                             kTestKeyspace, store_, clock_, logger_))
                     .value();
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      pools_.push_back(std::make_unique<TestPool>(kSlots, kPageBytes));
      WorkerOptions options;
      options.rank = rank;
      options.world_size = 2;
      options.tokens_per_block = kBlockTokens;
      options.staging_bytes = std::size_t{1} << 20;
      options.save_queue_bytes = std::size_t{1} << 19;
      workers_.push_back(std::move(Worker::create(options, {.store = store_,
                                                            .executor = executor_,
                                                            .clock = clock_,
                                                            .logger = logger_,
                                                            .copier = make_host_page_copier()}))
                             .value());
      EXPECT_TRUE(workers_[rank]->register_layout(kTestKeyspace, pools_[rank]->layout).ok());
    }
  }

  struct Outcome {
    std::size_t offered = 0;
    std::size_t verified = 0;  // Pages, on both ranks.
    std::vector<LoadFailure> failures;
  };

  /// A prompt from query to end. A load that fails ends it before the pass.
  Outcome serve(std::span<const Token> tokens, RequestScope scope = {}) {
    const RequestId id = ++last_id_;
    const std::vector<BlockHash> names = names_of(tokens, scope);
    const std::vector<SlotIndex> slots =
        make_slots((tokens.size() + kBlockTokens - 1) / kBlockTokens, 0);
    for (auto& pool : pools_) pool->poison_all();

    Outcome outcome;
    const RequestContent content{tokens, tokens.size(), std::move(scope), {}};
    const Offer offer = *scheduler_->query(id, content, 0);
    outcome.offered = offer.blocks;
    scheduler_->allocated(id, slots);
    const StepRequest step{.id = id,
                           .is_new = true,
                           .new_tokens = tokens,
                           .new_slots = slots,
                           .computed_tokens = 0,
                           .scheduled_tokens = tokens.size() - offer.tokens};
    const std::string bytes = encode_step_plan(scheduler_->plan_step({&step, 1}));
    for (auto& worker : workers_) {
      worker->bind(*decode_step_plan(std::as_bytes(std::span<const char>(bytes))));
      for (LoadFailure& failure : worker->load(0)) outcome.failures.push_back(std::move(failure));
    }
    if (outcome.failures.empty()) {
      outcome.verified = compute(names, offer.blocks);
      for (auto& worker : workers_) worker->save(0);
    }
    scheduler_->finished(id);
    executor_->run_all();
    return outcome;
  }

  WorkerStats stats(std::uint32_t rank) const { return workers_[rank]->stats(); }

 private:
  /// Counts the loaded pages that hold their bytes, and fills the others.
  std::size_t compute(const std::vector<BlockHash>& names, std::size_t loaded) {
    std::size_t verified = 0;
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      for (std::size_t b = 0; b < names.size(); ++b) {
        const auto slot = static_cast<SlotIndex>(b);
        if (b < loaded) {
          verified += pools_[rank]->holds(slot, names[b], rank) ? 1 : 0;
        } else {
          pools_[rank]->fill(slot, names[b], rank);
        }
      }
    }
    return verified;
  }

  std::shared_ptr<Store> store_;
  std::shared_ptr<testlib::SimClock> clock_ = std::make_shared<testlib::SimClock>();
  std::shared_ptr<testlib::CollectingLogger> logger_ =
      std::make_shared<testlib::CollectingLogger>();
  std::shared_ptr<testlib::SteppableExecutor> executor_ =
      std::make_shared<testlib::SteppableExecutor>();
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<std::unique_ptr<TestPool>> pools_;
  std::vector<std::unique_ptr<Worker>> workers_;
  RequestId last_id_ = 0;
};

class TwoRanks : public OnBothKinds {
 protected:
  std::shared_ptr<MemoryStore> store_ = make_memory_store({.capacity_bytes = std::size_t{64} << 20,
                                                           .max_objects = 100'000,
                                                           .atomic_publish = GetParam(),
                                                           .between_steps = {}});
  void wipe() {
    for (const BlockHash& block : names_of(tokens_)) {
      const ObjectKeys keys(kTestKeyspace);
      (void)store_->remove({keys.shard(block, 0), keys.shard(block, 1), keys.ready(block, 0),
                            keys.ready(block, 1), keys.manifest(block)},
                           {});
    }
  }

  const std::vector<Token> tokens_ = make_tokens(10 * kBlockTokens + 2);
};
INSTANTIATE_TEST_SUITE_P(, TwoRanks, ::testing::Bool(), kind_name);

TEST_P(TwoRanks, OtherInstanceReusesWhatOneHasComputed) {
  Instance ctx(store_);
  EXPECT_EQ(ctx.serve(tokens_).offered, 0u);
  Instance gen(store_);
  const Instance::Outcome warm = gen.serve(tokens_);
  EXPECT_EQ(warm.offered, 10u);
  EXPECT_EQ(warm.verified, 20u);
  EXPECT_TRUE(warm.failures.empty());
  EXPECT_EQ(gen.stats(0).bytes_loaded + gen.stats(1).bytes_loaded, 20 * kPageBytes);
  EXPECT_EQ(gen.stats(0).blocks_saved, 0u);
  EXPECT_EQ(ctx.stats(0).blocks_committed + ctx.stats(1).blocks_committed, 10u)
      << "each block by the rank that came last";
}

TEST_P(TwoRanks, AnswerExtendsTheStoredPrefix) {
  Instance ctx(store_);
  ctx.serve(tokens_);
  const std::vector<Token> longer = make_tokens(15 * kBlockTokens);
  EXPECT_EQ(ctx.serve(longer).offered, 10u);
  EXPECT_EQ(ctx.serve(longer).offered, 14u);
}

TEST_P(TwoRanks, OtherScopeMisses) {
  Instance ctx(store_);
  RequestScope five;
  five.cache_salt = std::int64_t{5};
  RequestScope text;
  text.cache_salt = "5";
  RequestScope empty;
  empty.cache_salt = "";
  RequestScope lora;
  lora.lora = "adapter";
  ctx.serve(tokens_, five);
  Instance gen(store_);
  EXPECT_EQ(gen.serve(tokens_, five).offered, 10u);
  for (const RequestScope& other : {RequestScope{}, text, empty, lora}) {
    EXPECT_EQ(Instance(store_).serve(tokens_, other).offered, 0u);
    EXPECT_EQ(Instance(store_).serve(tokens_, other).offered, 10u) << "by now it is stored too";
  }
}

TEST_P(TwoRanks, DamagedShardFailsClosedAndTheRetryHealsIt) {
  Instance ctx(store_);
  ctx.serve(tokens_);
  const std::string key = ObjectKeys(kTestKeyspace).shard(names_of(tokens_)[4], 1);
  std::vector<std::byte> object(kBlockHeaderBytes + kPageBytes);
  ASSERT_EQ(store_->get({{key, object.data(), object.size()}}, {}).front().bytes, object.size());
  object[300] ^= std::byte{1};
  (void)store_->remove({key}, {});
  (void)store_->put({{key, object.data(), object.size()}}, {});

  Instance gen(store_);
  const Instance::Outcome tampered = gen.serve(tokens_);
  EXPECT_EQ(tampered.offered, 10u);
  ASSERT_EQ(tampered.failures.size(), 1u);
  EXPECT_EQ(tampered.failures[0].key, key);
  EXPECT_EQ(gen.stats(1).rejected_checksum, 1u);
  const Instance::Outcome retry = gen.serve(tokens_);
  EXPECT_EQ(retry.offered, 4u) << "the promise ends before it";
  EXPECT_TRUE(retry.failures.empty());
  const Instance::Outcome healed = Instance(store_).serve(tokens_);
  EXPECT_EQ(healed.offered, 10u);
  EXPECT_EQ(healed.verified, 20u);
}

TEST_P(TwoRanks, LostShardIsRepairedByTheNextRequest) {
  Instance ctx(store_);
  ctx.serve(tokens_);
  for (const std::uint32_t rank : {0u, 1u}) {
    (void)store_->remove({ObjectKeys(kTestKeyspace).shard(names_of(tokens_)[2], rank)}, {});
    Instance gen(store_);
    EXPECT_EQ(gen.serve(tokens_).offered, 2u);
    EXPECT_EQ(gen.serve(tokens_).offered, 10u);
  }
}

TEST_P(TwoRanks, WhatTheStoreLostWithoutAWordIsStoredAgainByTheNextRequest) {
  Instance ctx(store_);
  ctx.serve(tokens_);
  EXPECT_EQ(ctx.serve(tokens_).offered, 10u) << "loaded, and so seen by both ranks just now";
  const std::size_t stored = ctx.stats(0).blocks_saved;
  wipe();
  EXPECT_EQ(ctx.serve(tokens_).offered, 0u);
  EXPECT_EQ(ctx.stats(0).blocks_saved, 2 * stored);
  const Instance::Outcome again = ctx.serve(tokens_);
  EXPECT_EQ(again.offered, 10u);
  EXPECT_EQ(again.verified, 20u);
  EXPECT_EQ(ctx.stats(0).blocks_saved, 2 * stored) << "and not once more";
}

TEST_P(TwoRanks, WhatOneRankLostWithoutAWordIsStoredAgainByTheNextRequest) {
  Instance ctx(store_);
  ctx.serve(tokens_);
  ctx.serve(tokens_);
  (void)store_->remove({ObjectKeys(kTestKeyspace).shard(names_of(tokens_)[3], 1)}, {});
  EXPECT_EQ(ctx.serve(tokens_).offered, 3u);
  EXPECT_EQ(ctx.serve(tokens_).offered, 10u);
}

}  // namespace
}  // namespace kvc
