// The leader of a simulated engine: it probes, orders, promises, and keeps the book of holds, as
// the connector's scheduler and StageLeader do. It drives PrefixProbe and PromiseBook.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "connector/promise_book.h"
#include "kvc/commit.h"
#include "testing/sim/link.h"
#include "testing/sim/sim_rank.h"
#include "testing/sim/site.h"

namespace kvc::sim {

/// So few that a world comes to one that lists the holds.
inline constexpr std::uint64_t kPlansPerList = 8;

struct SimLeaderOptions {
  std::uint32_t keyspace = 0;
  bool staged = true;
  Tick stage_deadline = 300;  ///< 0: none.
  Tick hold_for = 3000;
  Tick fetch_budget = 3000;
};

class SimLeader {
 public:
  struct Promise {
    HoldId hold = 0;
    std::uint32_t blocks = 0;
  };

  /// `ranks` and `links` outlive the leader; one of each for each rank.
  SimLeader(Site& site, const SimLeaderOptions& options,
            std::vector<std::unique_ptr<SimRank>>& ranks,
            std::vector<std::unique_ptr<SimLink>>& links);

  Process& process() { return process_; }
  void crash();
  /// Says on the ranks' side that it ends, and ends. Their connections are the caller's.
  void say_goodbye();
  /// As another leader, whose holds come after those of all before.
  void restart();

  /// How many leading blocks may be promised. Not answered if the leader dies.
  void query(std::vector<NamedBlock> blocks, std::function<void(Promise)> answer);
  /// As query(), of blocks that a probe is taken to have found.
  void order_directly(std::vector<NamedBlock> blocks, std::function<void(Promise)> answer);
  bool renew(HoldId hold);
  /// False: the hold is over.
  bool allocated(HoldId hold);
  void release(HoldId hold, std::uint32_t from_block);
  /// Completes a step's plan.
  PromiseBook::PlanEnds plan(const std::vector<HoldId>& loaded);
  /// Ends promises whose time is over.
  void expire();
  /// From here on the deadline is long enough for a store without faults.
  void be_patient() { options_.stage_deadline = std::max(options_.stage_deadline, Tick{5000}); }

  const PromiseBook& book() const { return *book_; }

 private:
  struct Query;

  std::shared_ptr<Query> begin(std::vector<NamedBlock> blocks, std::function<void(Promise)> answer);
  bool all_connected() const;
  void probe(const std::shared_ptr<Query>& query);
  void probed(const std::shared_ptr<Query>& query);
  void order(const std::shared_ptr<Query>& query, std::size_t count);
  void close(const std::shared_ptr<Query>& query, bool late);
  void check_promise(const Query& query, std::uint32_t blocks) const;
  void send_releases();
  void connected(std::uint32_t rank);
  Instant now() const { return Instant(std::chrono::microseconds(site_.loop.now())); }

  Site& site_;
  SimLeaderOptions options_;
  const RankShards shards_;
  std::vector<std::unique_ptr<SimRank>>& ranks_;
  std::vector<std::unique_ptr<SimLink>>& links_;
  Process process_;
  std::unique_ptr<PromiseBook> book_;
  std::vector<HoldId> firm_;       // Allocated: nothing but the engine or a load ends them.
  std::shared_ptr<Query> newest_;  // One query at a time; an earlier one has nobody left.
  std::shared_ptr<Query> open_;    // Whose order is out.
};

}  // namespace kvc::sim
