// One rank of a simulated engine: its KV pages, its staging with the host tier, the fetches and the
// saves. It drives HostTier and BlockCommit as the connector's stager and save pipeline do.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "connector/host_tier.h"
#include "testing/sim/shard_writer.h"
#include "testing/sim/site.h"
#include "testing/sim/staging_memory.h"

namespace kvc::sim {

struct SimRankOptions {
  std::uint32_t rank = 0;
  std::uint32_t keyspace = 0;
  std::size_t staging_pages = 8;
  std::size_t save_pages = 4;
  std::size_t spare_pages = 0;  ///< Neither staged into nor saved from.
  std::size_t fetch_batch = 2;
  std::uint32_t fetch_calls = 2;  ///< At a time.
  std::uint32_t writers = 2;      ///< Save batches at a time.
  Tick copy_ticks = 5;            ///< Of a block, at most.
  Tick pass_ticks = 10;
};

/// A page of the KV cache, a part after the other.
using KvPage = std::vector<std::byte>;

/// What a rank is told to do in one step of the engine.
struct RankPlan {
  struct Load {
    NamedBlock block;
    KvPage* page = nullptr;
    bool firm = true;  ///< Staged and promised: it must be in the tier.
  };
  struct Save {
    NamedBlock block;
    const KvPage* page = nullptr;
  };
  bool runs = true;  ///< Else its pass ends before it asks for the loads.
  std::vector<HoldRelease> released;
  std::vector<HoldId> done_holds;
  LiveHolds live_holds;
  std::vector<Load> loads;
  std::vector<NamedBlock> computed;
  std::vector<KvPage*> computed_pages;
  std::vector<Save> saves;
};

class SimRank {
 public:
  SimRank(Site& site, const SimRankOptions& options);

  Process& process() { return process_; }
  void crash();
  void restart();

  // As StageRank.
  using Report = std::function<void(const StageProgress&)>;
  void set_report(Report report) { report_ = std::move(report); }
  void stage(const StageOrder& order, Tick budget);
  void release(const HoldRelease& release);
  /// The connection is there (again), with this one of the engine's leaders.
  void welcome(std::uint32_t leader, const LiveHolds& holds);
  /// The leader has said that it ends.
  void end_holds();

  /// Answers whether every load of the plan is in place; not at all if the rank dies. Plans run one
  /// after the other.
  void run_plan(RankPlan plan, std::function<void(bool loaded)> done);
  /// Nobody runs what has not begun.
  void drop_plans();

  const HostTier& tier() const { return *tier_; }
  std::size_t pages_lent() const { return pages_->lent(); }
  std::size_t writers_running() const { return writers_running_; }
  std::size_t saves_waiting() const { return saves_.size(); }
  std::uint64_t state() const;

 private:
  struct Loading;

  void keep_only(const LiveHolds& holds);
  void end_holds_of(const RankPlan& plan);
  void pump();
  void fetch(std::vector<HostTier::Fetch> fetches, bool is_loose);
  void fetched(const std::vector<HostTier::Fetch>& fetches, std::vector<GetResult> results);
  void refuse(const std::string& key, std::function<void()> then);
  void send_reports();

  void next_plan();
  void load_next(const std::shared_ptr<Loading>& loading);
  void load_directly(const std::shared_ptr<Loading>& loading);
  void copy(const std::shared_ptr<Loading>& loading, const StagingLease& page);
  void loads_done(const std::shared_ptr<Loading>& loading);
  void save(const RankPlan::Save& save);
  std::optional<ShardWriter::Item> snapshot(const RankPlan::Save& save);
  StagingLease page_for_save();
  void start_writers();
  void write(std::vector<ShardWriter::Item> items);
  Instant now() const { return Instant(std::chrono::microseconds(site_.loop.now())); }

  Site& site_;
  const SimRankOptions options_;
  const RankShards shards_;
  Process process_;
  std::shared_ptr<StagingPool> pages_;
  std::unique_ptr<HostTier> tier_;
  Report report_;
  std::vector<std::pair<BlockHash, Content>> contents_;  // Of what was ordered or saved here.
  std::vector<HoldId> ordered_;
  std::vector<HoldId> done_reported_;
  std::uint32_t leader_ = 0;  // Met last.
  HoldId newest_heard_ = 0;   // Of its holds.
  std::uint32_t fetch_calls_ = 0;
  bool loose_running_ = false;  // One call of them at a time.
  BrokenKeys broken_;
  std::deque<std::shared_ptr<Loading>> plans_;  // The first one is running.
  RankPlan not_run_;                            // Bound; the next one ends its holds.
  std::vector<ShardWriter::Item> saves_;
  std::uint32_t writers_running_ = 0;

 public:
  /// The oracle's number of a block that this rank will be asked for.
  void know(const NamedBlock& block);

 private:
  Content content_of(const BlockHash& hash) const;
};

}  // namespace kvc::sim
