// One promise over two ranks and two blocks: every order of the messages, fetches and copies, and
// the deadline at any moment. Then with any one call to the store lost, stalled, refused or
// answered wrongly, any one message repeated, or a connection that breaks at any moment. What these
// leave out, so that they end within seconds, is said at each: one block instead of two, or no
// deadline.
#include <gtest/gtest.h>

#include <string>

#include "tests/sim/exhaustive.h"
#include "tests/sim/sim_fixture.h"

namespace kvc::sim {
namespace {

struct SmallPromise {
  std::uint32_t faults = 0;
  FaultPlan plan = {};
  std::uint32_t ranks = 2;
  std::uint32_t blocks = 2;
  /// Blocks of which rank 1 has no shard.
  std::uint32_t missing = 0;
  /// The engine drops the request instead of loading it.
  bool dropped = false;
  /// One page less than there are blocks.
  bool short_of_pages = false;
  /// The connection of the last rank breaks at any moment, and comes back.
  bool breaks = false;
  /// The deadline comes at any moment; else never.
  bool deadline = true;
};

FaultPlan plan_of(std::initializer_list<Fault> faults) {
  FaultPlan plan;
  for (const Fault fault : faults) plan[fault] = kAlways;
  return plan;
}

class StageRun {
 public:
  StageRun(Choice& choice, const SmallPromise& small)
      : small_(small),
        world_(choice, {.shape = {.ranks = small.ranks},
                        .order = EventOrder::kAny,
                        .faults = small.plan,
                        .fault_budget = small.faults,
                        .store = {.whole_batches = true}}),
        blocks_(some_blocks(world_.oracle, small.blocks)) {
    for (std::uint32_t rank = 0; rank < small.ranks; ++rank) {
      ranks_.push_back(std::make_unique<SimRank>(
          world_.site,
          SimRankOptions{.rank = rank,
                         .staging_pages = small.short_of_pages ? small.blocks - 1 : 4}));
      links_.push_back(std::make_unique<SimLink>(world_.site, 1, 1));
      for (const NamedBlock& block : blocks_) ranks_.back()->know(block);
    }
    leader_ = std::make_unique<SimLeader>(
        world_.site, SimLeaderOptions{.stage_deadline = small.deadline ? Tick{1} : Tick{0}}, ranks_,
        links_);
    store_blocks();
  }

  std::string run() {
    if (small_.breaks) world_.loop.after(0, [this] { break_connection(); });
    leader_->order_directly(blocks_, [this](SimLeader::Promise promise) { promised(promise); });
    world_.run();
    world_.faults.stop();
    // The next plan reaches every rank, and tells what no link has told.
    if (!world_.oracle.violated()) send_plan({}, 0);
    world_.run();
    if (world_.oracle.violated()) return world_.oracle.first_violation();
    if (!answered_) return "the query is not answered";
    if (leader_->book().size() != 0) return "a hold is left in the book";
    for (const auto& rank : ranks_) {
      if (rank->tier().holds() + rank->tier().held() + rank->tier().in_flight() != 0) {
        return "a rank still holds something";
      }
      if (rank->pages_lent() != rank->tier().resident()) return "a page is lost";
    }
    const bool quiet = world_.faults.total() == 0 && small_.missing == 0;
    if (quiet && loads_ != small_.ranks && promise_ == small_.blocks && !small_.dropped)
      return "no load";
    return "";
  }

  std::uint32_t promise() const { return promise_; }
  /// A fault struck, and all was promised and loaded all the same.
  bool survived() const { return world_.faults.total() > 0 && loaded_in_full(); }
  /// The connection broke between the promise and the end of its loads, which were made.
  bool broke_in_time() const { return broke_before_loads_ && loaded_in_full(); }

 private:
  bool loaded_in_full() const { return promise_ == small_.blocks && loads_ == small_.ranks; }

  void break_connection() {
    broke_before_loads_ = promise_ == small_.blocks && loads_ < small_.ranks;
    links_.back()->lose();
  }

  void store_blocks() {
    for (std::uint32_t rank = 0; rank < small_.ranks; ++rank) {
      const RankShards shards = shards_of(0, rank, world_.site.shape);
      for (std::uint32_t i = 0; i < small_.blocks; ++i) {
        if (rank == 1 && i >= small_.blocks - small_.missing) continue;
        std::vector<std::byte> object(kObjectBytes);
        Oracle::fill(blocks_[i].content, rank, 0, std::span(object).subspan(kBlockHeaderBytes));
        seal_block(shards.describe_part(blocks_[i].hash, 0), object);
        world_.store.preload(shards.key(blocks_[i].hash, 0), shard_tag(blocks_[i], rank, 0),
                             object);
      }
    }
  }

  void promised(SimLeader::Promise promise) {
    answered_ = true;
    promise_ = promise.blocks;
    if (promise.blocks == 0) return;
    if (small_.dropped) return leader_->release(promise.hold, 0);
    if (!leader_->allocated(promise.hold)) return world_.oracle.violation("a promise is over");
    send_plan({promise.hold}, promise.blocks);
  }

  void send_plan(const std::vector<HoldId>& loaded, std::uint32_t blocks) {
    const PromiseBook::PlanEnds ends = leader_->plan(loaded);
    for (std::uint32_t rank = 0; rank < small_.ranks; ++rank) {
      RankPlan plan{.released = ends.released,
                    .done_holds = ends.done,
                    .live_holds = ends.live,
                    .loads = {},
                    .computed = {},
                    .computed_pages = {},
                    .saves = {}};
      for (std::uint32_t i = 0; i < blocks; ++i) {
        kv_.emplace_back(kPayloadBytes);
        plan.loads.push_back({blocks_[i], &kv_.back(), true});
      }
      world_.loop.after(0, [this, rank, plan] {
        ranks_[rank]->run_plan(
            plan, [this, plan](bool ok) { loads_ += ok && !plan.loads.empty() ? 1 : 0; });
      });
    }
  }

  const SmallPromise small_;
  SimStageWorld world_;
  std::vector<NamedBlock> blocks_;
  std::vector<std::unique_ptr<SimRank>> ranks_;
  std::vector<std::unique_ptr<SimLink>> links_;
  std::unique_ptr<SimLeader> leader_;
  std::deque<KvPage> kv_;
  bool answered_ = false;
  std::uint32_t promise_ = 0;
  std::uint32_t loads_ = 0;
  bool broke_before_loads_ = false;
};

struct Tried {
  std::uint64_t runs = 0;
  std::uint64_t full = 0;
  std::uint64_t cut = 0;
  std::uint64_t survived = 0;
  std::uint64_t broke_in_time = 0;
};

Tried try_all(const SmallPromise& small) {
  Tried tried;
  tried.runs = try_every_choice<StageRun>(small, [&](const StageRun& run) {
    tried.full += run.promise() == small.blocks ? 1 : 0;
    tried.cut += run.promise() < small.blocks ? 1 : 0;
    tried.survived += run.survived() ? 1 : 0;
    tried.broke_in_time += run.broke_in_time() ? 1 : 0;
  });
  return tried;
}

TEST(ExhaustiveStage, EveryOrderWithoutFaults) {
  const Tried tried = try_all({});
  EXPECT_GT(tried.full, 0u);
  EXPECT_GT(tried.cut, 0u) << "the deadline came before the fetches";
}

void try_fault_of_the_store(Fault fault, std::uint32_t blocks) {
  SCOPED_TRACE(to_string(fault));
  const Tried tried = try_all({.faults = 1, .plan = plan_of({fault}), .blocks = blocks});
  EXPECT_GT(tried.full, 0u);
  EXPECT_GT(tried.cut, 0u);
}

TEST(ExhaustiveStage, EveryOrderWithAFaultOfTheStore) {
  for (const Fault fault : {Fault::kRequestLost, Fault::kReplyLost, Fault::kStall,
                            Fault::kWrongLength, Fault::kStaleRead}) {
    try_fault_of_the_store(fault, 2);
  }
}

/// A refusal goes the way of a stale read; what is rejected is removed from the store first, which
/// takes two blocks too far.
TEST(ExhaustiveStage, EveryOrderWithAReadThatIsRefusedOrWrong) {
  for (const Fault fault : {Fault::kBackOff, Fault::kDamagedRead, Fault::kMisdirectedRead}) {
    try_fault_of_the_store(fault, 1);
  }
}

TEST(ExhaustiveStage, EveryOrderWithAConnectionThatBreaks) {
  const Tried tried = try_all({.blocks = 1, .breaks = true, .deadline = false});
  EXPECT_GT(tried.broke_in_time, 100'000u);
  EXPECT_GT(tried.cut, 0u);
}

TEST(ExhaustiveStage, RequestThatIsDroppedWithAConnectionThatBreaks) {
  const Tried tried = try_all({.blocks = 1, .dropped = true, .breaks = true, .deadline = false});
  EXPECT_GT(tried.full, 0u);
  EXPECT_GT(tried.cut, 0u);
}

TEST(ExhaustiveStage, EveryOrderWithARepeatedMessage) {
  const Tried tried = try_all(
      {.faults = 1, .plan = plan_of({Fault::kMessageRepeated}), .blocks = 1, .deadline = false});
  EXPECT_GT(tried.survived, 100'000u);
  EXPECT_EQ(tried.cut, 0u);
}

TEST(ExhaustiveStage, EveryOrderWithTwoRepeatedMessages) {
  const Tried tried =
      try_all({.faults = 2, .plan = plan_of({Fault::kMessageRepeated}), .ranks = 1});
  EXPECT_GT(tried.survived, 0u);
  EXPECT_GT(tried.cut, 0u);
}

TEST(ExhaustiveStage, ShardThatOneRankLacks) {
  const Tried tried = try_all({.blocks = 1, .missing = 1});
  EXPECT_EQ(tried.full, 0u);
  EXPECT_GT(tried.runs, 50u);
}

TEST(ExhaustiveStage, RequestThatIsDropped) {
  const Tried tried = try_all({.dropped = true});
  EXPECT_GT(tried.full, 0u);
}

TEST(ExhaustiveStage, TooFewPages) {
  const Tried tried = try_all({.dropped = true, .short_of_pages = true});
  EXPECT_EQ(tried.full, 0u);
  EXPECT_GT(tried.cut, 0u);
}

}  // namespace
}  // namespace kvc::sim
