// A scheduler whose memory runs out: whatever an engine asks it, it answers; what it has promised
// is planned to be loaded or told to be lost; nothing is kept of requests that are over.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "tests/out_of_memory/world.h"

namespace kvc::testlib {
namespace {

constexpr std::size_t kStored = 6;

std::vector<Token> stored_prompt() { return make_tokens(kStored * kBlockTokens + 1); }

/// An engine that calls in whatever order, and believes what it is told.
class Caller {
 public:
  explicit Caller(World& world) : world_(world) {}

  void query(RequestId id, const std::vector<Token>& tokens, std::size_t computed = 0) {
    const RequestContent content{tokens, tokens.size(), {}, {}};
    Request& request = request_of(id);
    request.owed = 0;
    must_not_throw("query", [&] {
      const Result<Offer> offer = world_.scheduler().query(id, content, computed);
      request.offered = offer.ok() ? offer->blocks : 0;
    });
  }
  void cancel(RequestId id, std::size_t blocks) {
    Request& request = request_of(id);
    request.offered = std::min(request.offered, blocks);
    request.owed = std::min(request.owed, blocks);
    must_not_throw("cancel_load",
                   [&] { world_.scheduler().cancel_load(id, blocks * kBlockTokens); });
  }
  void allocate(RequestId id, const std::vector<SlotIndex>& slots) {
    bool known = false;
    must_not_throw("allocated", [&] { known = world_.scheduler().allocated(id, slots); });
    // Otherwise the engine fails it.
    request_of(id).owed = known ? request_of(id).offered : 0;
  }
  void finish(RequestId id) {
    request_of(id) = {};
    must_not_throw("finished", [&] { world_.scheduler().finished(id); });
  }
  /// Checks that each load that is owed is in the plan, unless they are said to be lost.
  StepPlan plan(const std::vector<StepRequest>& batch) {
    StepPlan plan;
    must_not_throw("plan_step", [&] { plan = world_.scheduler().plan_step(batch); });
    for (RequestId id = 1; id < requests_.size(); ++id) {
      const auto loads = static_cast<std::size_t>(std::ranges::count_if(
          plan.loads, [id](const PageTask& task) { return task.request == id; }));
      EXPECT_TRUE(plan.loads_lost || loads == requests_[id].owed) << "request " << id;
      requests_[id].owed = 0;
    }
    return plan;
  }

 private:
  struct Request {
    std::size_t offered = 0;
    std::size_t owed = 0;
  };
  Request& request_of(RequestId id) { return requests_.at(id); }

  World& world_;
  std::vector<Request> requests_ = std::vector<Request>(8);
};

struct Kind {
  const char* name;
  bool staged = false;
  Duration lease{0};
};

void ask_short_of_memory(const Kind& kind, Shortage shortage) {
  std::unique_ptr<World> world;
  std::vector<Token> tokens;
  std::vector<Token> others;
  std::vector<SlotIndex> slots;
  std::optional<Caller> caller;
  {
    const Spared spared;
    WorldOptions options;
    options.ranks = 2;
    options.staged = kind.staged;
    options.lease = kind.lease;
    options.shortage = shortage;
    tokens = stored_prompt();
    others = make_tokens(3 * kBlockTokens + 1, 8000);
    slots = make_slots(kStored + 1, 0);
    World writer(options);
    (void)writer.serve(tokens);
    writer.end();
    world = std::make_unique<World>(options);
    caller.emplace(*world);
  }
  Scheduler& scheduler = world->scheduler();
  caller->query(1, tokens);
  caller->query(1, tokens);  // Once more, as of an engine that found no room for it.
  caller->query(2, tokens, kBlockTokens);
  caller->query(3, others);
  caller->cancel(1, 4);
  caller->allocate(1, slots);
  caller->allocate(1, slots);
  must_not_throw("renew_leases", [&] {
    world->advance(std::chrono::seconds(5));
    scheduler.renew_leases();
  });
  must_not_throw("note_opted_out",
                 [&] { scheduler.note_opted_out(4, "a reason that takes more than a few bytes"); });
  const auto first_pass = [&](RequestId id, std::span<const Token> of, std::size_t promised) {
    return StepRequest{.id = id,
                       .is_new = true,
                       .new_tokens = of,
                       .new_slots = slots,
                       .computed_tokens = 0,
                       .scheduled_tokens = of.size() - promised * kBlockTokens};
  };
  (void)caller->plan({});  // Loads follow their allocation, whatever the batch.
  (void)caller->plan({first_pass(1, tokens, 4), first_pass(5, tokens, 0)});
  caller->allocate(2, slots);
  caller->query(2, tokens);  // Preempted before its loads were planned.
  caller->finish(1);
  caller->allocate(3, slots);
  (void)caller->plan({first_pass(3, others, 0)});
  must_not_throw("stats", [&] { (void)scheduler.stats(); });
  for (RequestId id = 1; id <= 5; ++id) caller->finish(id);
  (void)caller->plan({});
  world->run_tasks();

  const Spared spared;
  world->advance(std::chrono::seconds(60));
  world->idle();
  world->expect_nothing_held();
  const Served served = world->serve(tokens);
  EXPECT_EQ(served.offered, kStored);
  EXPECT_FALSE(served.failed);
  world->end();
}

void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

constexpr Kind kKinds[] = {{"Leased", false, std::chrono::seconds(8)},
                           {"Staged", true, Duration{0}}};

class OutOfMemoryInAScheduler : public ::testing::TestWithParam<std::tuple<Kind, Shortage>> {};

TEST_P(OutOfMemoryInAScheduler, WhatIsPromisedIsPlannedOrToldAndNothingIsKept) {
  const auto& [kind, shortage] = GetParam();
  const std::size_t points = at_every_allocation(
      shortage, [] { ask_short_of_memory(std::get<0>(GetParam()), std::get<1>(GetParam())); });
  RecordProperty("allocations", static_cast<int>(points));
  EXPECT_GT(points, 100u);
}

INSTANTIATE_TEST_SUITE_P(All, OutOfMemoryInAScheduler,
                         ::testing::Combine(::testing::ValuesIn(kKinds),
                                            ::testing::Values(Shortage::kOnce,
                                                              Shortage::kFromThenOn)),
                         name_of_kind<Kind>);

}  // namespace
}  // namespace kvc::testlib
