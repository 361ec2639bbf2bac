// Saves of all steps: a bounded queue of snapshots, put and committed by background tasks.
//
//   save() copies pages into staging, on the engine's thread; the store is not touched
//   snapshot() does so for one layer, while the pass goes on, and save() then takes what there is
//   a task takes a batch from the queue, commits it, and goes to the end of the executor's queue
//   as long as there is more
//
// When there is no room the newest save is dropped. When the store refuses for lack of room, saves
// are dropped for a while that grows with each refusal; with a host tier their snapshots go there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/mutex.h"
#include "connector/commit_batch.h"
#include "kvc/clock.h"
#include "kvc/worker.h"

namespace kvc {

/// snapshot(), forget_snapshots() and save() come from one thread at a time; everything else from
/// any.
class SavePipeline : public std::enable_shared_from_this<SavePipeline> {
 public:
  SavePipeline(PipelineParts parts, CommitBatch::Pools pools, std::size_t batch_blocks,
               Duration batch_budget);

  /// Copies one part of the pages of `tasks`, the same for every part of a pass. Nothing is stored
  /// before save() takes the snapshots of the pass. May throw std::bad_alloc.
  void snapshot(std::span<const PageTask> tasks, std::uint32_t part, StreamHandle stream);
  /// The pass did not come to its end.
  void forget_snapshots() { snapshots_.reset(); }
  /// What was copied may not be what the pass has computed: save() copies it again.
  void distrust_snapshots();

  /// Queues the pages of `tasks` after copying what snapshot() has not copied of them; `tasks` are
  /// those of snapshot(), if that was called in this pass. Blocks that are `hot` are put with the
  /// copies that they say. Whatever happens, the pages are not read
  /// afterwards. May throw std::bad_alloc: what had not been queued is lost.
  void save(std::span<const PageTask> tasks, std::span<const HotBlock> hot, StreamHandle stream);

  /// Waits until every save taken so far ended. False if the deadline came first.
  bool drain(Deadline deadline);

  /// Drops what waits, and waits for what runs. False if the deadline came first. Idempotent.
  bool close(Deadline deadline);

  /// Payload of the saves that have not ended.
  std::size_t queued_bytes() const;

 private:
  struct Queued {
    SaveItem item;
    std::uint64_t ticket = 0;  // Counts the saves taken.
  };
  /// What identifies a save once its page has gone.
  struct Name {
    BlockHash block;
    std::uint64_t ticket = 0;
  };

  using WantedCopies = std::unordered_map<BlockHash, std::uint32_t, BlockHashHasher>;

  /// What becomes of snapshots.
  enum class Fate : std::uint8_t { kStored, kOnlyInTier, kDropped };

  /// A pass of which parts are being copied.
  struct Snapshots {
    Fate fate = Fate::kStored;
    std::vector<SaveItem> items;
    std::vector<SlotIndex> slots;  // By item.
    std::vector<bool> copied;      // By part.
    std::uint64_t already_stored = 0;
    std::uint64_t dropped = 0;
    std::uint64_t failed = 0;
  };

  /// The blocks that are to be saved and have room, without their bytes.
  Snapshots make_room(std::span<const PageTask> tasks);
  /// Blocks that cannot be copied are taken out.
  void copy_part(Snapshots& into, std::uint32_t part, StreamHandle stream);
  std::vector<StagingLease> borrow_pages();
  /// Copies what is missing, and queues all. Returns what is not to be stored.
  std::vector<SaveItem> finish(Snapshots taken, const WantedCopies& wanted, StreamHandle stream);
  void keep_in_tier(const std::vector<SaveItem>& items);
  void enqueue(std::vector<SaveItem> items);
  bool is_queued(const BlockHash& block) const KVC_EXCLUDES(mutex_);
  Fate fate_now() const KVC_EXCLUDES(mutex_);

  std::size_t tasks_wanted() const KVC_REQUIRES(mutex_);
  void drop_queue() KVC_REQUIRES(mutex_);
  void end_save(const Name& name) KVC_REQUIRES(mutex_);

  void start_tasks() KVC_EXCLUDES(mutex_);
  bool submit_task();
  void run_task();
  bool run_batch() KVC_EXCLUDES(mutex_);
  std::vector<SaveItem> take_batch(std::vector<Name>* names) KVC_EXCLUDES(mutex_);
  CommitTotals commit(std::vector<SaveItem> items);
  void end_batch(const std::vector<Name>& names, const CommitTotals& totals, Duration took)
      KVC_EXCLUDES(mutex_);
  void adjust_pace(const CommitTotals& totals, Instant now) KVC_REQUIRES(mutex_);
  void tell(const CommitTotals& totals) KVC_EXCLUDES(mutex_);
  void tell_broken_off(const char* why) KVC_EXCLUDES(mutex_);

  const PipelineParts parts_;
  const CommitBatch::Pools pools_;
  const std::size_t batch_blocks_;
  const Duration batch_budget_;
  std::unique_ptr<Snapshots> snapshots_;  // The engine's thread only.

  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<Queued> queue_ KVC_GUARDED_BY(mutex_);
  std::unordered_set<BlockHash, BlockHashHasher> blocks_ KVC_GUARDED_BY(mutex_);  // Not ended.
  // Of saves that have not ended, by ticket.
  std::set<std::uint64_t> tickets_ KVC_GUARDED_BY(mutex_);
  std::uint64_t last_ticket_ KVC_GUARDED_BY(mutex_) = 0;
  std::size_t scheduled_ KVC_GUARDED_BY(mutex_) = 0;  // Tasks in the executor, running or not.
  std::size_t running_ KVC_GUARDED_BY(mutex_) = 0;    // Of those, inside a batch.
  Duration pause_ KVC_GUARDED_BY(mutex_){0};
  Instant paused_until_ KVC_GUARDED_BY(mutex_){};
  bool closed_ KVC_GUARDED_BY(mutex_) = false;
  bool failing_ KVC_GUARDED_BY(mutex_) = false;
  bool told_broken_off_ KVC_GUARDED_BY(mutex_) = false;
};

}  // namespace kvc
