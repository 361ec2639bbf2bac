// What tests of the scheduler share: prompts, their block names, and a store that holds some.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kvc/object_key.h"
#include "kvc/scheduler.h"
#include "store/memory/memory_store.h"
#include "testing/collecting_logger.h"
#include "testing/gated_store.h"
#include "testing/leasing_store.h"
#include "testing/sim_clock.h"

namespace kvc {

inline constexpr std::uint32_t kBlockTokens = 4;

inline std::vector<Token> make_tokens(std::size_t count, Token first = 0) {
  std::vector<Token> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

inline std::vector<SlotIndex> make_slots(std::size_t count, SlotIndex first = 100) {
  std::vector<SlotIndex> slots(count);
  std::iota(slots.begin(), slots.end(), first);
  return slots;
}

inline std::vector<BlockHash> names_of(std::span<const Token> tokens, RequestScope scope = {}) {
  Result<BlockChain> chain =
      BlockChain::create({.tokens_per_block = kBlockTokens, .deployment_secret = ""}, scope, {});
  EXPECT_TRUE(chain.ok() && chain->append(tokens).ok());
  return {chain->blocks().begin(), chain->blocks().end()};
}

class SchedulerFixture {
 public:
  explicit SchedulerFixture(std::uint32_t ranks = 2, std::size_t tracked_max = 1024)
      : ranks_(ranks) {
    options.max_tracked_requests = tracked_max;
    options.tokens_per_block = kBlockTokens;
    options.world_size = ranks;
    memory = make_memory_store({});
    store = std::make_shared<testlib::GatedStore>(memory);
    scheduler = make(store);
  }

  std::unique_ptr<Scheduler> make(std::shared_ptr<Store> on) {
    Result<std::unique_ptr<Scheduler>> made =
        Scheduler::create(options, keyspace, std::move(on), clock, logger);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    return std::move(made).value();
  }

  void put(const std::string& key) {
    const std::byte byte{1};
    (void)memory->put({{key, &byte, 1}}, {});
  }
  void lose(const std::string& key) { (void)memory->remove({key}, {}); }

  void publish(std::span<const BlockHash> blocks) {
    for (const BlockHash& block : blocks) {
      for (std::uint32_t rank = 0; rank < ranks_; ++rank) put(keys.shard(block, rank));
      put(keys.manifest(block));
    }
  }

  /// Blocks [first, end) of a prompt.
  void publish_blocks(std::span<const Token> tokens, std::size_t first, std::size_t end) {
    const std::vector<BlockHash> names = names_of(tokens);
    publish(std::span(names).subspan(first, end - first));
  }

  Offer query(RequestId id, std::span<const Token> tokens, std::size_t computed = 0) {
    return query_prompt(id, tokens, tokens.size(), computed);
  }
  Offer query_prompt(RequestId id, std::span<const Token> tokens, std::size_t prompt,
                     std::size_t computed = 0) {
    const RequestContent content{tokens, prompt, {}, {}};
    Result<Offer> offer = scheduler->query(id, content, computed);
    EXPECT_TRUE(offer.ok()) << offer.status().to_string();
    return *offer;
  }

  StepPlan plan(std::vector<StepRequest> batch = {}) { return scheduler->plan_step(batch); }

  const Fingerprint keyspace{std::byte{7}};
  const ObjectKeys keys{keyspace};
  SchedulerOptions options;
  std::shared_ptr<testlib::SimClock> clock = std::make_shared<testlib::SimClock>();
  std::shared_ptr<testlib::CollectingLogger> logger = std::make_shared<testlib::CollectingLogger>();
  std::shared_ptr<MemoryStore> memory;
  std::shared_ptr<testlib::GatedStore> store;
  std::unique_ptr<Scheduler> scheduler;

 private:
  std::uint32_t ranks_;
};

/// The first report of a request whose pass computes all of `tokens`.
inline StepRequest whole_pass(RequestId id, std::span<const Token> tokens,
                              std::span<const SlotIndex> slots) {
  return {.id = id,
          .is_new = true,
          .new_tokens = tokens,
          .new_slots = slots,
          .scheduled_tokens = tokens.size()};
}

inline std::vector<SlotIndex> slots_of(const std::vector<PageTask>& tasks) {
  std::vector<SlotIndex> slots;
  for (const PageTask& task : tasks) slots.push_back(task.slot);
  return slots;
}

}  // namespace kvc
