#include "tests/out_of_memory/world.h"

#include <algorithm>

namespace kvc::testlib {
namespace {

constexpr std::size_t kIdleSteps = 40;  // More than it takes until a plan lists the live holds.

/// The way of orders to a rank whose tasks run while the leader waits.
class WorkingLink final : public StageLink {
 public:
  WorkingLink(std::shared_ptr<StageLink> inner, std::shared_ptr<SteppableExecutor> executor)
      : inner_(std::move(inner)), executor_(std::move(executor)) {}
  bool connected() const override { return inner_->connected(); }
  bool stage(StageOrder order) override {
    const bool taken = inner_->stage(std::move(order));
    executor_->run_all();
    return taken;
  }
  void release(HoldRelease release) override { inner_->release(release); }

 private:
  const std::shared_ptr<StageLink> inner_;
  const std::shared_ptr<SteppableExecutor> executor_;
};

}  // namespace

World::World(WorldOptions options)
    : options_(std::move(options)),
      store_(std::make_shared<OutsideStore>(options_.memory, options_.lease)) {
  for (std::uint32_t rank = 0; rank < options_.ranks; ++rank) start_rank(rank);
  start_scheduler();
}

World::~World() = default;

void World::start_rank(std::uint32_t rank) {
  Rank made{.pool = std::make_unique<TestPool>(kPagesOfRank, kBytesOfPage),
            .copier = std::make_shared<LateCopier>(),
            .worker = nullptr};
  if (options_.by_layer) {
    PageGroup& group = made.pool->layout.groups.front();
    group.layers = {0, 1, 2};
    group.layer_bytes = kBytesOfPage / kLayersOfPage;
  }
  made.worker = make_worker(rank, made.copier);
  ASSERT_TRUE(made.worker->register_layout(kTestKeyspace, made.pool->layout).ok());
  ranks_.push_back(std::move(made));
}

std::unique_ptr<Worker> World::make_worker(std::uint32_t rank,
                                           std::shared_ptr<PageCopier> copier) const {
  WorkerOptions with;
  with.rank = rank;
  with.world_size = options_.ranks;
  with.tokens_per_block = kBlockTokens;
  with.granularity = options_.by_layer ? Granularity::kLayer : Granularity::kBlock;
  with.staging_bytes = options_.staging_bytes;
  with.save_queue_bytes = options_.save_queue_bytes;
  with.batch_blocks = 3;
  with.staged = options_.staged;
  Result<std::unique_ptr<Worker>> worker = Worker::create(with, {.store = store_,
                                                                 .executor = executor_,
                                                                 .clock = clock_,
                                                                 .logger = logger_,
                                                                 .copier = copier});
  EXPECT_TRUE(worker.ok());
  return std::move(worker).value();
}

void World::start_scheduler() {
  SchedulerOptions with;
  with.tokens_per_block = kBlockTokens;
  with.world_size = options_.ranks;
  with.layers = options_.by_layer ? kLayersOfPage : 0;
  with.replication = {.max_replicas = 3, .hot_at = 2};
  if (options_.staged) {
    leader_ =
        std::make_shared<StageLeader>(StageLeaderOptions{.world_size = options_.ranks}, clock_);
    std::vector<std::shared_ptr<StageLink>> links;
    for (std::uint32_t rank = 0; rank < options_.ranks; ++rank) {
      links.push_back(std::make_shared<WorkingLink>(
          make_direct_link(rank, worker(rank).stage_rank(), leader_, 0), executor_));
    }
    leader_->set_links(std::move(links));
    with.stage_leader = leader_;
    with.resident_prefix = [this](std::span<const BlockHash> blocks) {
      return worker(0).resident_prefix(blocks);
    };
  }
  Result<std::unique_ptr<Scheduler>> made =
      Scheduler::create(with, kTestKeyspace, store_, clock_, logger_);
  ASSERT_TRUE(made.ok());
  scheduler_ = std::move(made).value();
}

Served World::serve(const std::vector<Token>& tokens) {
  const std::vector<BlockHash> names = names_of(tokens);
  const std::size_t pages = (tokens.size() + kBlockTokens - 1) / kBlockTokens;
  const std::vector<SlotIndex> slots = make_slots(pages, 0);
  const RequestId id = ++last_id_;
  for (Rank& rank : ranks_) rank.pool->poison_all();

  Served served;
  const RequestContent content{tokens, tokens.size(), {}, {}};
  std::size_t promised_tokens = 0;
  must_not_throw("query", [&] {
    const Result<Offer> offer = scheduler_->query(id, content, 0);
    served.offered = offer.ok() ? offer->blocks : 0;
    promised_tokens = offer.ok() ? offer->tokens : 0;
  });
  // What nothing is known of must not have been promised anything; the engine fails it if it was.
  bool known = false;
  must_not_throw("allocated", [&] { known = scheduler_->allocated(id, slots); });
  served.failed = !known && served.offered > 0;

  const StepRequest step{.id = id,
                         .is_new = true,
                         .new_tokens = tokens,
                         .new_slots = slots,
                         .computed_tokens = 0,
                         .scheduled_tokens = tokens.size() - promised_tokens};
  StepPlan plan;
  must_not_throw("plan_step", [&] { plan = scheduler_->plan_step(std::span(&step, 1)); });
  const std::size_t promised = served.failed ? 0 : served.offered;
  for (std::uint32_t rank = 0; rank < options_.ranks; ++rank) {
    if (!pass(rank, plan, names, promised, slots)) served.failed = true;
  }
  must_not_throw("finished", [&] { scheduler_->finished(id); });
  for (Rank& rank : ranks_) rank.pool->poison_all();
  run_tasks();
  // The pages are others' by now.
  for (Rank& rank : ranks_) {
    for (const SlotIndex slot : slots) EXPECT_TRUE(rank.pool->is_poison(slot)) << slot;
    EXPECT_TRUE(rank.pool->guards_intact());
  }
  return served;
}

template <typename Call>
bool World::is_done(std::uint32_t rank, Call call) {
  try {
    std::vector<LoadFailure> failures;
    {
      const Armed armed;
      failures = call(worker(rank));
    }
    return failures.empty();
  } catch (const std::bad_alloc&) {
    // Not even the failure could be written down; the engine is told all the same.
    EXPECT_EQ(options_.shortage, Shortage::kFromThenOn);
  }
  return false;
}

bool World::pass(std::uint32_t rank, const StepPlan& plan, std::span<const BlockHash> names,
                 std::size_t promised, std::span<const SlotIndex> slots) {
  StepPlan copy = plan;
  must_not_throw("bind", [&] { worker(rank).bind(std::move(copy)); });
  bool good = is_done(rank, [](Worker& worker) { return worker.load(0); });
  if (!options_.by_layer) {
    EXPECT_EQ(ranks_[rank].copier->under_way(), 0u) << "copies that nobody waits for";
  }
  const std::span<const BlockHash> loaded = names.first(promised);
  if (good && !options_.by_layer) expect_filled(rank, loaded, slots, {});
  for (std::uint32_t layer = 0; layer < (options_.by_layer ? kLayersOfPage : 1); ++layer) {
    if (options_.by_layer) {
      must_not_throw("a task", [&] { (void)executor_->step(); });
      good = good &&
             is_done(rank, [layer](Worker& worker) { return worker.wait_for_layer(layer, 0); });
    }
    if (!good) break;
    if (options_.by_layer) expect_filled(rank, loaded, slots, layer);
    compute(rank, names.subspan(promised), slots.subspan(promised), layer);
    if (options_.by_layer) {
      must_not_throw("layer_computed", [&] { worker(rank).layer_computed(layer, 0); });
    }
  }
  // An engine whose pass has failed does not come to its end.
  if (good) good = is_done(rank, [](Worker& worker) { return worker.save(0); });
  must_not_throw("end_loads", [&] { worker(rank).end_loads(); });
  EXPECT_EQ(ranks_[rank].copier->under_way(), 0u) << "copies that nobody waits for";
  return good;
}

std::span<std::byte> World::layer_of(std::uint32_t rank, SlotIndex slot,
                                     std::uint32_t layer) const {
  constexpr std::size_t kBytes = kBytesOfPage / kLayersOfPage;
  return pool(rank).page(slot).subspan(layer * kBytes, kBytes);
}

void World::expect_filled(std::uint32_t rank, std::span<const BlockHash> names,
                          std::span<const SlotIndex> slots, std::optional<std::uint32_t> layer) {
  constexpr std::size_t kBytes = kBytesOfPage / kLayersOfPage;
  for (std::size_t b = 0; b < names.size(); ++b) {
    const std::vector<std::byte> page = oracle_page(names[b], rank, kBytesOfPage);
    const bool is_right = layer
                              ? std::ranges::equal(layer_of(rank, slots[b], *layer),
                                                   std::span(page).subspan(*layer * kBytes, kBytes))
                              : std::ranges::equal(pool(rank).page(slots[b]), page);
    EXPECT_TRUE(is_right) << "block " << b << " of rank " << rank;
  }
}

void World::compute(std::uint32_t rank, std::span<const BlockHash> names,
                    std::span<const SlotIndex> slots, std::uint32_t layer) {
  constexpr std::size_t kBytes = kBytesOfPage / kLayersOfPage;
  for (std::size_t b = 0; b < names.size(); ++b) {
    const std::vector<std::byte> page = oracle_page(names[b], rank, kBytesOfPage);
    if (options_.by_layer) {
      std::ranges::copy(std::span(page).subspan(layer * kBytes, kBytes),
                        layer_of(rank, slots[b], layer).begin());
    } else {
      std::ranges::copy(page, pool(rank).page(slots[b]).begin());
    }
  }
}

void World::run_tasks() {
  must_not_throw("a task", [&] { executor_->run_all(); });
}

void World::idle() {
  for (std::size_t i = 0; i < kIdleSteps; ++i) {
    const StepPlan plan = scheduler_->plan_step({});
    EXPECT_TRUE(plan.loads.empty());
    for (Rank& rank : ranks_) {
      rank.worker->bind(plan);
      EXPECT_TRUE(rank.worker->load(0).empty());
      EXPECT_TRUE(rank.worker->save(0).empty());
    }
    executor_->run_all();
  }
}

void World::expect_nothing_held() const {
  for (std::uint32_t rank = 0; rank < options_.ranks; ++rank) {
    EXPECT_TRUE(worker(rank).drain(Deadline{})) << "saves that never end";
    const WorkerStats stats = worker(rank).stats();
    EXPECT_EQ(stats.holds_open, 0u);
    EXPECT_EQ(stats.tier_blocks_held, 0u);
    EXPECT_EQ(stats.fetches_in_flight, 0u);
    EXPECT_EQ(stats.save_queue_bytes, 0u);
  }
  const SchedulerStats stats = scheduler_->stats();
  EXPECT_EQ(stats.requests_tracked, 0u);
  EXPECT_EQ(stats.promises_held, 0u);
  if (leader_ != nullptr) {
    EXPECT_TRUE(leader_->live_holds().live.empty());
  }
}

void World::end() {
  idle();
  expect_nothing_held();
  for (Rank& rank : ranks_) rank.worker->close(Deadline::after(*clock_, std::chrono::seconds(1)));
  EXPECT_EQ(store_->registered(), 0) << "staging that counts as in use";
}

}  // namespace kvc::testlib
