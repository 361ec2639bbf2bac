// A whole simulated world for one seed: a store, one or two engines of one to three ranks each,
// their clients, and a nemesis. First everything goes wrong that the fault plan knows; then the
// faults stop, and all work must end, heal and leave nothing behind.
#pragma once

#include <array>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "testing/sim/sim_engine.h"

namespace kvc::sim {

struct WorldOptions {
  Shape shape;
  bool staged = true;
  std::uint32_t engines = 1;
  bool one_keyspace = true;  ///< All engines run the same model.
  std::uint32_t requests = 6;
  std::uint32_t prompts = 3;  ///< Different ones.
  std::uint32_t salts = 1;    ///< Isolated scopes, the absent salt included.
  std::uint32_t blocks = 3;   ///< Of a prompt, at most.
  SimStoreOptions store;
  SimEngineOptions engine;
  Tick horizon = 4000;  ///< Faults strike until then.
  Tick nemesis_every = 150;
  std::uint32_t fault_budget = 60;
  FaultPlan faults;
  Rules rules = Rules::kAll;  ///< No seed decides it.

  static WorldOptions draw(Choice& choice);
  std::string to_string() const;
};

struct WorldResult {
  std::string violation;  ///< Empty: none.
  std::uint64_t digest = 0;
  std::uint64_t events = 0;
  std::uint32_t committed = 0;  ///< Manifests.
  std::uint32_t loaded = 0;     ///< Blocks that reached KV pages, or staging.
  std::uint64_t faults = 0;
  std::array<std::uint32_t, kFaults> by_fault{};
  std::array<std::uint32_t, kMarks> marks{};

  /// A schedule counts only if something went wrong and something was stored all the same.
  bool counts() const { return faults > 0 && committed > 0; }
};

class World {
 public:
  /// `text`: where to write what happens; null: nowhere.
  World(const WorldOptions& options, Choice& choice, std::FILE* text);

  /// Called with a number for each state that the world passes through.
  template <typename Seen>
  WorldResult run(Seen seen) {
    begin();
    while (advance()) seen(state());
    return result();
  }

 private:
  enum class Stage : std::uint8_t { kStriking, kEnding, kHealing, kDraining, kOver };

  void begin();
  /// One event, or the passage to the next stage. False: over.
  bool advance();
  WorldResult result() const;
  std::uint64_t state() const;

  void make_prompts();
  void submit_some();
  void nemesis();
  void strike_store();
  void strike_processes();
  void next_stage();
  void settle_holds();
  bool heal();
  void check_balance();
  bool idle() const;
  bool at_rest() const;
  void fail_if_it_takes_too_long();
  Tick now() const { return loop_.now(); }
  std::uint32_t pick(std::size_t count) { return choice_.below(static_cast<std::uint32_t>(count)); }

  const WorldOptions options_;
  Choice& choice_;
  EventLoop loop_;
  Journal journal_;
  Faults faults_;
  Coverage coverage_;
  Oracle oracle_;
  SimStore store_;
  Site site_;
  std::vector<std::unique_ptr<SimEngine>> engines_;
  std::vector<Prompt> prompts_;
  Stage stage_ = Stage::kStriking;
  Tick stage_began_ = 0;
  std::uint64_t stage_steps_ = 0;
  std::uint32_t submitted_ = 0;
  // Healing: each prompt on each engine, until it is promised in full.
  bool may_heal_ = false;
  std::size_t healing_ = 0;
  std::uint32_t tries_ = 0;
};

}  // namespace kvc::sim
