// An engine in simulated time: it queries, allocates, plans and runs steps as runtimes do, in the
// connector's contract. It may drop a request after its query, query again, let pages be allocated
// and leave the request out of the next batch, and cancel at any point. If one of its processes
// dies, every request of it begins anew once the process is back.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "kvc/block_hash.h"
#include "testing/sim/sim_leader.h"
#include "testing/sim/sim_rank.h"

namespace kvc::sim {

/// What a client asks for.
struct Prompt {
  std::uint32_t salt = 0;  ///< 0: none.
  std::vector<Token> tokens;

  friend bool operator==(const Prompt&, const Prompt&) = default;
};

struct SimEngineOptions {
  std::uint32_t keyspace = 0;
  bool staged = true;
  SimLeaderOptions leader;
  SimRankOptions rank;
  Tick link_latency = 10;
  Tick link_away = 200;
  Tick plan_latency = 20;         ///< Of the engine's own broadcast.
  std::uint32_t steps_ahead = 1;  ///< Steps that are under way while another is prepared.
  Tick restart = 300;             ///< A process that died is back after at most so long.
};

class SimEngine {
 public:
  SimEngine(Site& site, const SimEngineOptions& options);

  /// Takes a request; it ends whatever happens. Whether it was dropped on purpose or ran.
  void submit(const Prompt& prompt);
  bool idle() const { return requests_.empty() && !preparing_ && steps_ == 0; }
  /// Blocks that the last request to be allocated was promised.
  std::uint32_t last_promise() const { return last_promise_; }

  void crash_rank(std::uint32_t rank);
  /// The leader's process is rank 0's; the job dies with it.
  void crash_all();
  /// Another leader takes over the ranks, as they are.
  void replace_leader();
  void lose_connection(std::uint32_t rank);
  /// Faults have stopped: everything that is down comes back now.
  void recover();
  /// A step without requests, which tells the ranks what no link has told.
  void empty_step();

  std::uint32_t ranks() const { return static_cast<std::uint32_t>(ranks_.size()); }
  const SimRank& rank(std::uint32_t i) const { return *ranks_[i]; }
  const SimLeader& leader() const { return *leader_; }
  std::uint64_t state() const;

 private:
  enum class Phase : std::uint8_t { kWaiting, kPromised, kFirm, kPlanned };
  struct Request {
    std::uint64_t id = 0;
    Prompt prompt;
    std::vector<NamedBlock> blocks;
    Phase phase = Phase::kWaiting;
    HoldId hold = 0;
    std::uint32_t promised = 0;
    bool firm = false;  ///< The hold was there when it was allocated.
    bool cancelled = false;
    bool in_step = false;                     ///< Of a step that is under way.
    bool runs = false;                        ///< In its batch.
    std::vector<std::vector<KvPage*>> pages;  // By rank, by block.
  };

  void name_blocks(Request& request);
  struct Step {
    std::uint32_t ranks_running = 0;
    bool loaded = true;
    std::vector<std::uint64_t> requests;
  };

  void begin_step();
  void query_next(std::size_t at);
  void promised(std::uint64_t id, SimLeader::Promise promise, std::size_t at);
  void allocate(Request& request);
  void cancel_some();
  void make_plan();
  void add_to_plans(Request& request, std::vector<RankPlan>& plans);
  void send_plans(std::vector<RankPlan> plans, std::vector<std::uint64_t> requests);
  void step_done(const std::shared_ptr<Step>& step, bool loaded);
  void end_step(const Step& step);
  void abort_all();
  void start_again(Request& request);
  void restart_later(std::uint32_t rank);
  void erase(std::uint64_t id);
  bool all_up() const;
  Request* find(std::uint64_t id);

  Site& site_;
  const SimEngineOptions options_;
  std::vector<std::unique_ptr<SimLink>> links_;
  std::vector<std::unique_ptr<SimRank>> ranks_;
  std::unique_ptr<SimLeader> leader_;
  std::vector<std::unique_ptr<Request>> requests_;
  std::deque<KvPage> kv_;    // Pages are never used twice, so that a late write is seen.
  Process job_;              // Dies with each process of it: a step is of one life.
  bool preparing_ = false;   // A step, by queries and a plan.
  std::uint32_t steps_ = 0;  // Under way on the ranks.
  Tick last_plan_ = 0;
  std::uint64_t next_id_ = 1;
  std::uint32_t last_promise_ = 0;
};

}  // namespace kvc::sim
