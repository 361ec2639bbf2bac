// The rank's side of staged promises: fetches what the leader orders into the host tier, and tells
// how far it is. Owns the tier; loads and saves of the rank go through it too.
//
//   stage()    an order: what is in the tier is told at once
//   a task     takes the blocks that are wanted first, gets them in one call, verifies them, tells
//              the leader, and goes to the end of the executor's queue as long as there is more
//
// Few calls are under way at a time, and one at most for orders that nobody waits for any more. A
// call that is given up at its deadline keeps its pages until it is over (BufferHold).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "connector/block_fetch.h"
#include "connector/host_tier.h"
#include "connector/pipeline_parts.h"
#include "kvc/stage.h"

namespace kvc {

/// Calls that fetch at the same time.
inline constexpr std::size_t kFetchTasks = 2;

/// Safe to use from any thread. What runs out of memory costs an order, a block or a report; any
/// other thing that breaks inside closes the tier: nothing more is staged.
class Stager final : public StageRank, public std::enable_shared_from_this<Stager> {
 public:
  /// A call that is not answered within `call_budget` is given up, so that a store that hangs does
  /// not keep the tasks for as long as orders may take. `parts.stager` is not used. REQUIRES:
  /// blocks are stored whole.
  Stager(PipelineParts parts, std::size_t batch_blocks, Duration call_budget);

  void stage(StageOrder order, Report report) override;
  void release(HoldRelease release) override;
  void keep_only(std::span<const HoldId> live, HoldId newest) override;

  /// Leading blocks that are in the tier.
  std::size_t resident_prefix(std::span<const BlockHash> blocks) const;
  /// Blocks that an order could stage now without waiting for others to end.
  std::size_t room_blocks() const;

  /// Null if the block is not in the tier. The payload stays as it is while the lease is held.
  StagingLease find(const BlockHash& block);
  /// `page` holds the payload of a block, verified, or computed by this rank.
  void put(const BlockHash& block, StagingLease page);
  /// As StagingPool::borrow(), making room in the tier. A load always finds a page, unless other
  /// loads, or calls that were given up, have it.
  StagingLease borrow(StagingPool::Use use);

  /// Sets the gauges of the tier.
  void read(WorkerStats& stats) const;

  /// Ends all holds and what is wanted, and waits for the calls that are under way. False if the
  /// deadline came first. No report is made afterwards but refusals of later orders. Idempotent.
  bool close(Deadline deadline);

 private:
  using SharedReport = std::shared_ptr<const Report>;
  struct Message {
    SharedReport report;
    StageProgress progress;
  };
  struct Batch {
    std::vector<HostTier::Fetch> fetches;
    bool is_loose = false;
  };

  template <typename Work>
  void guard(Work work) noexcept;
  void break_off(const char* why) noexcept KVC_EXCLUDES(mutex_);

  void take_order(StageOrder order, const SharedReport& report) KVC_EXCLUDES(mutex_);
  void collect_reports() noexcept KVC_REQUIRES(mutex_);
  void deliver() KVC_EXCLUDES(mutex_);
  void count() KVC_REQUIRES(mutex_);

  std::size_t tasks_wanted() const KVC_REQUIRES(mutex_);
  bool has_work() const KVC_REQUIRES(mutex_);
  void start_tasks() KVC_EXCLUDES(mutex_);
  bool submit_task();
  void run_task();
  bool run_batch() KVC_EXCLUDES(mutex_);
  Batch take_batch() KVC_EXCLUDES(mutex_);
  bool end_batch(Batch batch) KVC_EXCLUDES(mutex_);
  void fetch(const Batch& batch) KVC_EXCLUDES(mutex_);
  std::vector<std::size_t> settle(const Batch& batch, const BlockFetch& fetch) KVC_EXCLUDES(mutex_);

  const PipelineParts parts_;
  const std::size_t batch_blocks_;
  const Duration call_budget_;

  mutable Mutex mutex_;
  CondVar changed_;
  HostTier tier_ KVC_GUARDED_BY(mutex_);
  std::unordered_map<HoldId, SharedReport> reports_ KVC_GUARDED_BY(mutex_);
  std::deque<Message> outbox_ KVC_GUARDED_BY(mutex_);
  bool is_delivering_ KVC_GUARDED_BY(mutex_) = false;  // One at a time, so that order is kept.
  std::size_t scheduled_ KVC_GUARDED_BY(mutex_) = 0;   // Tasks in the executor, running or not.
  std::size_t running_ KVC_GUARDED_BY(mutex_) = 0;     // Of those, with a batch.
  bool is_loose_running_ KVC_GUARDED_BY(mutex_) = false;
  // In the counters already.
  std::uint64_t counted_evictions_ KVC_GUARDED_BY(mutex_) = 0;
  std::array<std::uint64_t, 6> counted_ends_ KVC_GUARDED_BY(mutex_){};  // By StageEnd.
  bool closed_ KVC_GUARDED_BY(mutex_) = false;
};

/// A rank that may be gone: orders are answered with kUnavailable then.
std::shared_ptr<StageRank> make_stage_rank(std::weak_ptr<Stager> stager);

/// A page of the staging memory, from the tier if there is one and no page is free.
StagingLease borrow_page(const PipelineParts& parts, StagingPool::Use use);
/// Pages that loads could borrow.
std::size_t pages_for_loads(const PipelineParts& parts);

}  // namespace kvc
