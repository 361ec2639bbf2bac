#include "testing/sim/world.h"

#include <algorithm>
#include <utility>

namespace kvc::sim {
namespace {

/// Generous: an ordinary request takes a few hundred ticks.
constexpr Tick kTicksToEnd = 60'000;
constexpr std::uint64_t kEventsToEnd = 60'000;
/// A damaged shard is found by one request, replaced by it or by the next, and there for a third.
/// Where there is one page for snapshots, each request saves one block.
constexpr std::uint32_t kTriesToHeal = 8;

Site site_of(EventLoop& loop, Choice& choice, Faults& faults, Oracle& oracle, Journal& journal,
             Coverage& coverage, SimStore& store, const Shape& shape) {
  return {loop, choice, faults, oracle, journal, coverage, store, shape};
}

}  // namespace

World::World(const WorldOptions& options, Choice& choice, std::FILE* text)
    : options_(options),
      choice_(choice),
      loop_(choice, EventOrder::kByTime),
      journal_(text),
      faults_(options.faults, choice, options.fault_budget, false),
      oracle_(loop_, options.shape, options.rules),
      store_(loop_, choice, faults_, oracle_, journal_, options.store,
             options.shape.atomic_publish),
      site_(site_of(loop_, choice, faults_, oracle_, journal_, coverage_, store_, options.shape)) {
  for (std::uint32_t i = 0; i < options.engines; ++i) {
    SimEngineOptions engine = options.engine;
    engine.keyspace = options.one_keyspace ? 0 : i;
    engine.staged = options.staged;
    engines_.push_back(std::make_unique<SimEngine>(site_, engine));
  }
}

void World::make_prompts() {
  for (std::uint32_t i = 0; i < options_.prompts; ++i) {
    Prompt prompt;
    prompt.salt = choice_.below(options_.salts);
    // Few different tokens, so that equal blocks stand behind different prefixes.
    const std::uint32_t blocks = 1 + choice_.below(options_.blocks);
    for (std::uint32_t block = 0; block < blocks; ++block) {
      const auto token = static_cast<Token>(choice_.below(2));
      prompt.tokens.insert(prompt.tokens.end(), kTokensPerBlock, token);
    }
    prompts_.push_back(std::move(prompt));
  }
}

void World::begin() {
  make_prompts();
  submit_some();
  loop_.after(1 + choice_.below(static_cast<std::uint32_t>(options_.nemesis_every)),
              [this] { nemesis(); });
}

void World::submit_some() {
  if (submitted_++ >= options_.requests) return;
  const Prompt& prompt = prompts_[pick(prompts_.size())];
  engines_[pick(engines_.size())]->submit(prompt);
  if (faults_.strikes(Fault::kSameAtOnce)) engines_[pick(engines_.size())]->submit(prompt);
  const Tick mean = options_.horizon / options_.requests;
  loop_.after(1 + choice_.below(static_cast<std::uint32_t>(2 * mean)), [this] { submit_some(); });
}

// ---- the nemesis ----

void World::nemesis() {
  if (faults_.stopped()) return;
  strike_store();
  strike_processes();
  loop_.after(1 + choice_.below(static_cast<std::uint32_t>(2 * options_.nemesis_every)),
              [this] { nemesis(); });
}

void World::strike_store() {
  if (store_.size() > 0) {
    if (faults_.strikes(Fault::kEviction)) store_.evict_one();
    if (store_.size() > 0 && faults_.strikes(Fault::kDamageAtRest)) store_.damage_one();
    if (store_.size() > 0 && faults_.strikes(Fault::kTruncation)) store_.truncate_one();
    if (store_.size() > 0 && faults_.strikes(Fault::kWipe)) store_.wipe();
  }
  if (faults_.strikes(Fault::kOutage)) store_.outage(1 + choice_.below(600));
}

void World::strike_processes() {
  SimEngine& engine = *engines_[pick(engines_.size())];
  const std::uint32_t rank = pick(engine.ranks());
  if (rank != 0 && faults_.strikes(Fault::kRankCrash)) engine.crash_rank(rank);
  if (faults_.strikes(Fault::kLeaderCrash)) engine.crash_all();
  if (faults_.strikes(Fault::kLeaderReplaced)) engine.replace_leader();
  if (rank != 0 && faults_.strikes(Fault::kConnectionLost)) engine.lose_connection(rank);
}

// ---- the stages ----

bool World::idle() const {
  return std::ranges::all_of(engines_, [](const auto& engine) { return engine->idle(); });
}

/// Nobody waits, nothing is being saved, and no transfer that was given up keeps its pages.
bool World::at_rest() const {
  return idle() && store_.transfers().size() == 0 &&
         std::ranges::all_of(engines_, [](const auto& engine) {
           for (std::uint32_t i = 0; i < engine->ranks(); ++i) {
             const SimRank& rank = engine->rank(i);
             if (rank.writers_running() + rank.saves_waiting() > 0) return false;
           }
           return true;
         });
}

bool World::advance() {
  if (oracle_.violated() || stage_ == Stage::kOver) return false;
  switch (stage_) {
    case Stage::kStriking:
      if (now() >= options_.horizon || !loop_.step()) next_stage();
      return true;
    case Stage::kEnding:
      if (idle() || !loop_.step()) next_stage();
      break;
    case Stage::kHealing:
      if (may_heal_ && at_rest() && !heal()) {
        next_stage();
      } else if (!loop_.step()) {
        oracle_.violation("nothing happens any more although requests wait");
      }
      break;
    case Stage::kDraining:
      if (!loop_.step()) next_stage();
      break;
    case Stage::kOver:
      return false;
  }
  fail_if_it_takes_too_long();
  return true;
}

void World::next_stage() {
  stage_ = static_cast<Stage>(static_cast<int>(stage_) + 1);
  stage_began_ = now();
  stage_steps_ = loop_.steps();
  switch (stage_) {
    case Stage::kStriking:
      return;
    case Stage::kEnding:
      faults_.stop();
      store_.recover();
      for (const auto& engine : engines_) engine->recover();
      journal_.note(now(), "world: faults stop");
      return;
    case Stage::kHealing:
      if (!idle()) oracle_.violation("nothing happens any more although requests wait");
      journal_.note(now(), "world: heal");
      settle_holds();
      return;
    case Stage::kDraining:
      settle_holds();
      return;
    case Stage::kOver:
      return check_balance();
  }
}

/// What was promised and never allocated expires; then steps tell what no link has told, and one of
/// them what no plan has.
void World::settle_holds() {
  loop_.after(2 * options_.engine.leader.hold_for, [this] {
    for (std::uint64_t step = 0; step < kPlansPerList; ++step) {
      for (const auto& engine : engines_) engine->empty_step();
    }
    may_heal_ = true;
  });
}

void World::fail_if_it_takes_too_long() {
  if (now() - stage_began_ > kTicksToEnd || loop_.steps() - stage_steps_ > kEventsToEnd) {
    oracle_.violation("work does not end although all faults have");
  }
}

/// Whether there is more to do: each prompt is asked for again until it is promised in full.
bool World::heal() {
  const std::size_t all = prompts_.size() * engines_.size();
  if (healing_ == all) return false;
  SimEngine& engine = *engines_[healing_ / prompts_.size()];
  const Prompt& prompt = prompts_[healing_ % prompts_.size()];
  const bool full = tries_ > 0 && engine.last_promise() * kTokensPerBlock == prompt.tokens.size();
  if (full || tries_ == kTriesToHeal) {
    if (!full) oracle_.violation("a prompt is not promised in full after all faults have ended");
    ++healing_;
    tries_ = 0;
    return heal();
  }
  ++tries_;
  engine.submit(prompt);
  return true;
}

void World::check_balance() {
  const auto zero = [this](std::size_t value, const char* what) {
    if (value != 0) {
      oracle_.violation(std::to_string(value) + " " + what + " at rest, when there should be none");
    }
  };
  zero(store_.transfers().size(), "transfers");
  for (const auto& engine : engines_) {
    zero(engine->leader().book().size(), "holds in the leader's book");
    for (std::uint32_t i = 0; i < engine->ranks(); ++i) {
      const SimRank& rank = engine->rank(i);
      zero(rank.tier().holds(), "holds of a rank");
      zero(rank.tier().held(), "held blocks of a rank");
      zero(rank.tier().in_flight(), "flights of a rank");
      zero(rank.tier().wanted() + rank.tier().wanted_loose(), "wanted blocks of a rank");
      zero(rank.writers_running() + rank.saves_waiting(), "saves");
      zero(rank.pages_lent() - rank.tier().resident(), "lost staging pages");
    }
  }
}

std::uint64_t World::state() const {
  std::uint64_t state = store_.state();
  for (const auto& engine : engines_) state = mix_bits(state ^ engine->state());
  return state;
}

WorldResult World::result() const {
  WorldResult result;
  result.violation = oracle_.first_violation();
  result.digest = mix_bits(journal_.digest() ^ loop_.steps() ^ state());
  result.events = loop_.steps();
  result.committed = oracle_.manifests();
  result.loaded = oracle_.loaded();
  result.faults = faults_.total();
  result.by_fault = faults_.fired();
  result.marks = coverage_.hits();
  return result;
}

// ---- what a seed decides ----

WorldOptions WorldOptions::draw(Choice& choice) {
  const auto one_in = [&choice](std::uint32_t n) { return choice.below(n) == 0; };
  const auto from = [&choice](std::uint32_t low, std::uint32_t high) {
    return low + choice.below(high - low + 1);
  };
  WorldOptions options;
  options.staged = !one_in(4);
  options.shape.ranks = one_in(6) ? 1 : one_in(4) ? 3 : 2;
  options.shape.atomic_publish = !one_in(3);
  options.shape.by_layer = !options.staged && one_in(3);
  options.shape.parts = options.shape.by_layer ? kMaxParts : 1;
  options.engines = one_in(3) ? 2 : 1;
  options.one_keyspace = options.engines == 1 || !one_in(2);
  options.requests = one_in(4) ? from(8, 20) : from(2, 10);
  options.prompts = one_in(4) ? from(4, 8) : from(1, 4);
  options.salts = one_in(3) ? 2 : 1;
  options.blocks = from(1, 3);
  options.store.tells_existing = !one_in(3);
  options.store.lease = one_in(3) ? from(50, 800) : 0;
  options.store.capacity = one_in(6) ? from(8, 24) : 0;
  options.store.latency = from(2, 40);
  options.store.deadline = from(150, 400);
  options.engine.link_latency = from(2, 30);
  options.engine.link_away = from(20, 400);
  options.engine.restart = from(20, 500);
  options.engine.plan_latency = one_in(3) ? from(50, 400) : from(2, 30);
  options.engine.steps_ahead = from(0, 2);
  options.engine.rank.copy_ticks = one_in(3) ? from(20, 100) : from(1, 8);
  options.engine.rank.pass_ticks = from(1, 60);
  options.engine.leader.stage_deadline = from(60, 500);
  options.engine.leader.hold_for = one_in(3) ? from(5, 120) : from(100, 2000);
  options.engine.leader.fetch_budget = from(300, 3000);
  // Few pages: eviction, and no room at times. A prompt and a save fit in any case.
  options.engine.rank.staging_pages =
      options.blocks * options.shape.parts + (one_in(2) ? 1 : from(1, 8));
  options.engine.rank.spare_pages = one_in(3) ? 1 : 0;
  options.engine.rank.staging_pages += options.engine.rank.spare_pages;
  options.engine.rank.save_pages = std::max(options.shape.parts, from(1, 4));
  options.engine.rank.fetch_batch = from(1, 3);
  options.engine.rank.fetch_calls = from(1, 2);
  options.engine.rank.writers = from(1, 2);
  // At times all requests come at once: then one waits long between its allocation and the plan.
  options.horizon = one_in(4) ? from(50, 400) : from(300, 4000);
  options.nemesis_every = from(20, 300);
  options.fault_budget = one_in(4) ? from(1, 3) : from(4, 60);
  options.faults = FaultPlan::draw(choice);
  if (!options.one_keyspace && one_in(2)) options.faults[Fault::kMisdirectedRead] = 200'000;
  return options;
}

std::string WorldOptions::to_string() const {
  std::string text;
  const auto add = [&text](const char* name, std::uint64_t value) {
    text += std::string(text.empty() ? "" : " ") + name + "=" + std::to_string(value);
  };
  add("staged", staged);
  add("ranks", shape.ranks);
  add("atomic", shape.atomic_publish);
  add("layers", shape.by_layer ? shape.parts : 0);
  add("engines", engines);
  add("one_keyspace", one_keyspace);
  add("requests", requests);
  add("prompts", prompts);
  add("salts", salts);
  add("blocks", blocks);
  add("tells_existing", store.tells_existing);
  add("lease", store.lease);
  add("capacity", store.capacity);
  add("latency", store.latency);
  add("deadline", store.deadline);
  add("stage_deadline", engine.leader.stage_deadline);
  add("hold_for", engine.leader.hold_for);
  add("fetch_budget", engine.leader.fetch_budget);
  add("staging_pages", engine.rank.staging_pages);
  add("save_pages", engine.rank.save_pages);
  add("spare_pages", engine.rank.spare_pages);
  add("plan_latency", engine.plan_latency);
  add("steps_ahead", engine.steps_ahead);
  add("copy_ticks", engine.rank.copy_ticks);
  add("horizon", horizon);
  add("nemesis_every", nemesis_every);
  add("fault_budget", fault_budget);
  text += "\nfaults (per million):";
  for (std::size_t i = 0; i < kFaults; ++i) {
    if (faults.millionths[i] == 0) continue;
    text += " " + std::string(sim::to_string(static_cast<Fault>(i))) + "=" +
            std::to_string(faults.millionths[i]);
  }
  return text;
}

}  // namespace kvc::sim
