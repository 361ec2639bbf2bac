// The loads of one step: get into staging, verify, copy into pages. While one batch is verified and
// copied, the get of the next one is under way.
//
// Parts come in order: the first part of every block, then the second, and so on, so that the
// layers of a pass are there one after another. The work is done by whoever has time for it: a task
// of the executor, or the thread that waits for a part.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "connector/block_fetch.h"
#include "connector/load_speed.h"
#include "connector/pipeline_parts.h"
#include "kvc/worker.h"

namespace kvc {

/// wait() and cancel() come from any thread, and nothing is written into a page once wait()
/// returned false or cancel() returned.
class LoadRun : public std::enable_shared_from_this<LoadRun> {
 public:
  /// A block that several tasks want is fetched once.
  LoadRun(const PipelineParts& parts, std::shared_ptr<LoadSpeed> speed, std::vector<PageTask> tasks,
          StreamHandle stream, std::size_t batch_blocks, Duration budget);

  /// Lets the executor work on it. Without an executor that does, the waiting threads do.
  void start();

  /// Waits until the parts up to `part` are in place in every page; true then. False if the run has
  /// failed before, or was cancelled: failures() tells why. Returns within the budget of the run.
  bool wait(std::uint32_t part);

  /// Leading parts that are in place in every page.
  std::uint32_t parts_in_place() const;

  bool is_complete() const { return parts_in_place() == parts_.shards.parts(); }

  /// Of each task that is not in place, once wait() returned false. Of a run that ended at a part
  /// that is not the last, every task is one of these. Empty although it is not complete: it broke
  /// off, or was cancelled, and nothing counts as in place.
  std::vector<LoadFailure> failures() const;

  /// Ends the run where it stands.
  void cancel() noexcept;
  /// Waits until no thread works on the run any more. False if the deadline came first.
  bool wait_until_idle(Deadline deadline);

 private:
  /// A block and its tasks, as a chain through next_task_.
  struct Wanted {
    std::size_t first_task = 0;
    std::size_t last_task = 0;
  };
  struct Outcome {
    std::uint32_t placed_parts = 0;
    bool failed = false;
  };
  struct Failed {
    std::size_t wanted = 0;
    std::string key;
    Status status;
  };
  /// What became of a batch.
  struct Settled {
    std::vector<std::size_t> placed;  // Of wanted_.
    std::vector<Failed> failed;
    std::vector<std::string> rejected;  // Keys.
    WorkerStats gained;
  };

  void collect_blocks();
  const BlockHash& block(std::size_t wanted) const {
    return tasks_[wanted_[wanted].first_task].block;
  }

  // The driver's: one thread at a time, which has taken the role.
  void drive_in_background() KVC_EXCLUDES(mutex_);
  void drive_to(std::uint32_t part) KVC_EXCLUDES(mutex_);
  bool advance() KVC_EXCLUDES(mutex_);
  std::shared_ptr<BlockFetch> next_fetch();
  std::size_t objects_in_half_a_lease() const;
  void keep_leases();
  bool begin_copying() KVC_EXCLUDES(mutex_);
  void end_copying() KVC_EXCLUDES(mutex_);
  Settled settle(const BlockFetch& fetch);
  Settled place_all(const BlockFetch& fetch);
  Status place(const BlockFetch::Item& item, const GetResult& result, Settled& settled);
  Status copy_in(const BlockFetch::Item& item);
  void keep_in_tier(const std::vector<const BlockFetch::Item*>& intact);
  void take_in(const Settled& settled) KVC_EXCLUDES(mutex_);
  std::string add_up(const Settled& settled) KVC_REQUIRES(mutex_);

  bool has_ended() const KVC_EXCLUDES(mutex_);
  void run_out_of_time() KVC_EXCLUDES(mutex_);
  void run_out_of_staging() KVC_EXCLUDES(mutex_);
  void fail(std::size_t index, const std::string& key, const Status& status) KVC_REQUIRES(mutex_);
  std::size_t fail_rest(const Status& status) KVC_REQUIRES(mutex_);
  std::string give_up(Code code, const char* why) noexcept KVC_REQUIRES(mutex_);
  std::string break_off() noexcept KVC_REQUIRES(mutex_);
  std::string end() noexcept KVC_REQUIRES(mutex_);
  std::string account() KVC_REQUIRES(mutex_);
  void tell(const std::string& failed) const noexcept KVC_EXCLUDES(mutex_);

  const PipelineParts parts_;
  const std::shared_ptr<LoadSpeed> speed_;
  const std::vector<PageTask> tasks_;
  const StreamHandle stream_;
  const Instant begin_;
  const Deadline deadline_;
  const std::size_t batch_blocks_max_;
  const Duration lease_;  // Zero: the store grants none.
  // Complete when the constructor returns.
  std::vector<Wanted> wanted_;
  std::vector<std::size_t> next_task_;

  // The driver's, and of whoever ends the run while there is none.
  std::size_t begun_ = 0;      // Of the objects, part by part, handed to a fetch.
  Instant leases_due_;         // When those of what is left are to be renewed.
  std::uint64_t fetched_ = 0;  // Bytes.
  std::shared_ptr<BlockFetch> current_;

  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<Outcome> outcomes_ KVC_GUARDED_BY(mutex_);  // By wanted block.
  std::uint32_t in_place_ KVC_GUARDED_BY(mutex_) = 0;     // Leading parts.
  std::size_t settled_ KVC_GUARDED_BY(mutex_) = 0;        // Objects, part by part.
  std::vector<LoadFailure> failures_ KVC_GUARDED_BY(mutex_);
  WorkerStats gained_ KVC_GUARDED_BY(mutex_);
  bool driving_ KVC_GUARDED_BY(mutex_) = false;
  bool copying_ KVC_GUARDED_BY(mutex_) = false;
  bool ended_ KVC_GUARDED_BY(mutex_) = false;
};

}  // namespace kvc
