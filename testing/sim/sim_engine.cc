#include "testing/sim/sim_engine.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"

namespace kvc::sim {

SimEngine::SimEngine(Site& site, const SimEngineOptions& options) : site_(site), options_(options) {
  for (std::uint32_t rank = 0; rank < site.shape.ranks; ++rank) {
    SimRankOptions of_rank = options.rank;
    of_rank.rank = rank;
    of_rank.keyspace = options.keyspace;
    ranks_.push_back(std::make_unique<SimRank>(site, of_rank));
    links_.push_back(std::make_unique<SimLink>(site, options.link_latency, options.link_away));
  }
  SimLeaderOptions of_leader = options.leader;
  of_leader.keyspace = options.keyspace;
  of_leader.staged = options.staged;
  leader_ = std::make_unique<SimLeader>(site, of_leader, ranks_, links_);
}

void SimEngine::submit(const Prompt& prompt) {
  auto request = std::make_unique<Request>();
  request->id = next_id_++;
  request->prompt = prompt;
  name_blocks(*request);
  requests_.push_back(std::move(request));
  begin_step();
}

void SimEngine::name_blocks(Request& request) {
  RequestScope scope;
  if (request.prompt.salt != 0) scope.cache_salt = std::to_string(request.prompt.salt);
  const BlockHashOptions options{.tokens_per_block = kTokensPerBlock, .deployment_secret = {}};
  Result<BlockChain> chain = BlockChain::create(options, scope, {});
  KVC_CHECK(chain.ok() && chain->append(request.prompt.tokens).ok(), "a prompt of the simulation");
  const std::span<const Token> tokens = request.prompt.tokens;
  for (std::size_t i = 0; i < chain->blocks().size(); ++i) {
    const Content content = site_.oracle.content(options_.keyspace, request.prompt.salt,
                                                 tokens.first((i + 1) * kTokensPerBlock));
    request.blocks.push_back({content, chain->blocks()[i]});
    site_.oracle.named(options_.keyspace, content, chain->blocks()[i].bytes);
    for (const auto& rank : ranks_) rank->know(request.blocks.back());
  }
}

bool SimEngine::all_up() const {
  return leader_ != nullptr &&
         std::ranges::all_of(ranks_, [](const auto& rank) { return rank->process().up(); });
}

SimEngine::Request* SimEngine::find(std::uint64_t id) {
  for (const auto& request : requests_) {
    if (request->id == id) return request.get();
  }
  return nullptr;
}

void SimEngine::erase(std::uint64_t id) {
  std::erase_if(requests_, [id](const auto& request) { return request->id == id; });
}

// ---- a step ----

void SimEngine::begin_step() {
  if (preparing_ || steps_ > options_.steps_ahead || !all_up()) return;
  if (std::ranges::none_of(requests_, [](const auto& request) { return !request->in_step; }))
    return;
  preparing_ = true;
  site_.loop.after(site_.loop.some_delay(10), job_.in_this_life([this] { query_next(0); }));
}

/// Queries run one after the other, as an engine's do.
void SimEngine::query_next(std::size_t at) {
  while (at < requests_.size() && requests_[at]->phase != Phase::kWaiting) ++at;
  if (at >= requests_.size()) return make_plan();
  Request& request = *requests_[at];
  if (request.hold != 0) {  // Queried before.
    if (leader_->renew(request.hold) && site_.choice.below(2) == 1) {
      site_.coverage.hit(Mark::kPromiseRenewed);
      return promised(request.id, {request.hold, request.promised}, at);
    }
    leader_->release(request.hold, 0);
    request.hold = 0;
  }
  leader_->query(request.blocks,
                 job_.in_this_life([this, id = request.id, at](SimLeader::Promise promise) {
                   promised(id, promise, at);
                 }));
}

void SimEngine::promised(std::uint64_t id, SimLeader::Promise promise, std::size_t at) {
  Request* request = find(id);
  KVC_CHECK(request != nullptr, "a request that is being queried");
  request->hold = promise.hold;
  request->promised = promise.blocks;
  if (site_.faults.strikes(Fault::kNeverScheduled)) {
    erase(id);  // Nobody is told: its hold expires.
    return query_next(at);
  }
  if (site_.faults.strikes(Fault::kQueriedAgain)) return query_next(at + 1);
  request->phase = Phase::kPromised;
  // At once or, if pages are short, when the plan is made or in a later step.
  if (site_.choice.below(2) == 0) allocate(*request);
  query_next(at + 1);
}

void SimEngine::allocate(Request& request) {
  last_promise_ = request.promised;
  request.firm = request.hold == 0 || leader_->allocated(request.hold);
  if (!request.firm) {
    site_.coverage.hit(Mark::kAllocatedTooLate);
    request.hold = 0;
  }
  if (request.promised > 1 && site_.faults.strikes(Fault::kTrimmed)) {
    site_.coverage.hit(Mark::kPromiseHonouredLess);
    request.promised = 1 + site_.choice.below(request.promised - 1);
    if (request.hold != 0) leader_->release(request.hold, request.promised);
  }
  for (std::uint32_t rank = 0; rank < ranks(); ++rank) {
    request.pages.emplace_back();
    for (std::size_t i = 0; i < request.blocks.size(); ++i) {
      kv_.emplace_back(kPayloadBytes * site_.shape.parts, std::byte{0xee});
      request.pages.back().push_back(&kv_.back());
    }
  }
  request.phase = Phase::kFirm;
}

void SimEngine::cancel_some() {
  for (std::size_t i = 0; i < requests_.size();) {
    Request& request = *requests_[i];
    if (request.cancelled || (request.phase == Phase::kWaiting && request.hold == 0) ||
        !site_.faults.strikes(Fault::kCancelled)) {
      ++i;
      continue;
    }
    if (request.phase == Phase::kPlanned) {  // Its pages are in use until the step is over.
      site_.coverage.hit(Mark::kCancelledPlanned);
      request.cancelled = true;
      ++i;
      continue;
    }
    site_.coverage.hit(request.phase == Phase::kFirm ? Mark::kCancelledFirm
                                                     : Mark::kCancelledPromised);
    if (request.hold != 0) leader_->release(request.hold, 0);
    erase(request.id);
  }
}

void SimEngine::make_plan() {
  cancel_some();
  for (const auto& request : requests_) {
    if (request->phase == Phase::kPromised && !site_.faults.strikes(Fault::kTrimmed)) {
      allocate(*request);
    }
  }
  cancel_some();
  std::vector<RankPlan> plans(ranks());
  std::vector<HoldId> loaded;
  std::vector<std::uint64_t> planned;
  for (const auto& request : requests_) {
    if (request->phase == Phase::kFirm && request->hold != 0) loaded.push_back(request->hold);
    const bool before = request->in_step;
    add_to_plans(*request, plans);
    if (request->in_step && !before) planned.push_back(request->id);
  }
  const PromiseBook::PlanEnds ends = leader_->plan(loaded);
  for (RankPlan& plan : plans) {
    plan.released = ends.released;
    plan.done_holds = ends.done;
    plan.live_holds = ends.live;
  }
  send_plans(std::move(plans), std::move(planned));
}

/// Its loads are planned with the first plan after the allocation, whether or not it is in the
/// batch.
void SimEngine::add_to_plans(Request& request, std::vector<RankPlan>& plans) {
  const bool planned_before = request.phase == Phase::kPlanned;
  if (request.in_step || (request.phase != Phase::kFirm && !planned_before)) return;
  request.in_step = true;
  for (std::uint32_t rank = 0; !planned_before && rank < ranks(); ++rank) {
    for (std::uint32_t i = 0; i < request.promised; ++i) {
      plans[rank].loads.push_back({.block = request.blocks[i],
                                   .page = request.pages[rank][i],
                                   .firm = options_.staged && request.firm});
    }
  }
  request.phase = Phase::kPlanned;
  request.hold = 0;  // It ends with the load.
  request.runs = !site_.faults.strikes(Fault::kTrimmed);
  if (!request.runs) return;
  if (planned_before) site_.coverage.hit(Mark::kTrimmedThenRun);
  for (std::uint32_t rank = 0; rank < ranks(); ++rank) {
    for (std::size_t i = request.promised; i < request.blocks.size(); ++i) {
      plans[rank].computed.push_back(request.blocks[i]);
      plans[rank].computed_pages.push_back(request.pages[rank][i]);
      plans[rank].saves.push_back({request.blocks[i], request.pages[rank][i]});
    }
  }
}

void SimEngine::send_plans(std::vector<RankPlan> plans, std::vector<std::uint64_t> requests) {
  auto step = std::make_shared<Step>();
  step->ranks_running = ranks();
  step->requests = std::move(requests);
  ++steps_;
  preparing_ = false;
  for (std::uint32_t rank = 0; rank < ranks(); ++rank) {
    // The engine's own broadcast: in order, and it reaches whoever lives.
    const Tick arrival =
        std::max(site_.loop.now() + site_.loop.some_delay(options_.plan_latency), last_plan_ + 1);
    last_plan_ = arrival;
    plans[rank].runs = !site_.faults.strikes(Fault::kPlanNotRun);
    const auto deliver = [this, rank, step, plan = std::move(plans[rank]), life = job_.life(),
                          leader = leader_->process().life(),
                          lost = site_.faults.strikes(Fault::kPlanLost)]() mutable {
      if (leader != leader_->process().life()) return;  // It goes with its engine.
      const auto done = [this, step, life](bool loaded) {
        if (life == job_.life()) step_done(step, loaded);
      };
      if (lost) return done(false);
      ranks_[rank]->run_plan(std::move(plan), done);
    };
    site_.loop.after(arrival - site_.loop.now(), ranks_[rank]->process().in_this_life(deliver));
  }
  begin_step();
}

void SimEngine::step_done(const std::shared_ptr<Step>& step, bool loaded) {
  step->loaded = step->loaded && loaded;
  if (--step->ranks_running > 0) return;
  --steps_;
  end_step(*step);
  begin_step();
}

void SimEngine::end_step(const Step& step) {
  for (const std::uint64_t id : step.requests) {
    Request* request = find(id);
    if (request == nullptr) continue;
    request->in_step = false;
    if (request->cancelled || (step.loaded && request->runs)) {
      erase(id);
    } else if (!step.loaded) {  // Fails, and its client asks again.
      site_.coverage.hit(Mark::kLeasedLoadFailed);
      start_again(*request);
    }
  }
}

void SimEngine::empty_step() {
  if (preparing_ || !all_up()) return;
  preparing_ = true;
  make_plan();
}

// ---- crashes ----

void SimEngine::start_again(Request& request) {
  request.phase = Phase::kWaiting;
  request.hold = 0;
  request.promised = 0;
  request.in_step = false;
  request.runs = false;
  request.pages.clear();
}

void SimEngine::abort_all() {
  job_.crash();
  job_.restart();
  preparing_ = false;
  steps_ = 0;
  for (const auto& request : requests_) {
    if (request->hold != 0 && leader_->process().up()) leader_->release(request->hold, 0);
    start_again(*request);
    site_.coverage.hit(Mark::kRequestAborted);
  }
}

void SimEngine::crash_rank(std::uint32_t rank) {
  if (!ranks_[rank]->process().up()) return;
  if (rank == 0) return crash_all();
  site_.journal.note(site_.loop.now(), "engine: rank crashes", rank);
  ranks_[rank]->crash();
  links_[rank]->lose_for_good();
  abort_all();
  restart_later(rank);
}

void SimEngine::restart_later(std::uint32_t rank) {
  site_.loop.after(site_.loop.some_delay(options_.restart),
                   [this, rank, life = ranks_[rank]->process().life()] {
                     SimRank& of = *ranks_[rank];
                     if (of.process().up() || of.process().life() != life) return;
                     of.restart();
                     links_[rank]->come_back();
                     begin_step();
                   });
}

void SimEngine::crash_all() {
  site_.journal.note(site_.loop.now(), "engine: all crash");
  leader_->crash();
  for (const auto& rank : ranks_) rank->crash();
  for (const auto& link : links_) link->lose_for_good();
  abort_all();
  leader_->restart();
  for (std::uint32_t rank = 0; rank < ranks(); ++rank) restart_later(rank);
}

/// The one before has ended in good order, or not; with its process, which is rank 0's, or not.
void SimEngine::replace_leader() {
  if (!all_up()) return;
  site_.journal.note(site_.loop.now(), "engine: another leader");
  const bool in_order = site_.choice.below(2) == 0;
  const bool with_process = !in_order && site_.choice.below(2) == 0;
  if (in_order) {
    leader_->say_goodbye();
  } else {
    leader_->crash();
  }
  if (with_process) ranks_[0]->crash();
  for (const auto& rank : ranks_) rank->drop_plans();
  abort_all();
  leader_->restart();
  links_[0]->lose_for_good();
  for (std::uint32_t rank = 1; rank < ranks(); ++rank) links_[rank]->lose();
  if (with_process) {
    restart_later(0);
  } else {
    links_[0]->come_back();
  }
  begin_step();
}

void SimEngine::lose_connection(std::uint32_t rank) {
  if (rank != 0 && ranks_[rank]->process().up()) links_[rank]->lose();
}

void SimEngine::recover() {
  leader_->be_patient();
  for (std::uint32_t rank = 0; rank < ranks(); ++rank) {
    if (!ranks_[rank]->process().up()) ranks_[rank]->restart();
    links_[rank]->come_back();
  }
  begin_step();
}

std::uint64_t SimEngine::state() const {
  std::uint64_t state = mix_bits(leader_->book().size() + (leader_->book().live().size() << 8));
  for (const auto& rank : ranks_) state = mix_bits(state ^ rank->state());
  for (const auto& request : requests_) {
    state = mix_bits(state + (static_cast<std::uint64_t>(request->phase) << 8) + request->promised +
                     (request->hold != 0 ? 64 : 0));
  }
  return state;
}

}  // namespace kvc::sim
