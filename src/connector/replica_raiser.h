// Gets hot blocks more copies in the store, in the background and after everything else.
//
//   raise() takes blocks that this rank has just loaded and verified, so that what is copied was
//   right a moment ago; a copy proves itself to its reader like any other object
//   a task asks the store to copy this rank's objects of a batch of blocks; rank 0 takes care of
//   the manifests too
//
// What comes faster than the pace allows, finds the queue full or saves waiting is dropped: a block
// that stays hot is offered again. A store that has no place or no room is left alone for a while
// that grows with each refusal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "connector/load_pipeline.h"
#include "kvc/clock.h"
#include "kvc/step_plan.h"

namespace kvc {

struct ReplicaRaiserOptions {
  std::uint64_t bytes_per_second = 0;           ///< Of copies; a second's worth may come at once.
  Duration deadline = std::chrono::seconds(2);  ///< Of one call; a copy takes about one.
  /// Of one call, and at least one block: a store may take a request of its own for each.
  std::size_t batch_objects = 64;
  std::size_t queue_blocks = 256;
};

/// Safe to use from any thread.
class ReplicaRaiser : public std::enable_shared_from_this<ReplicaRaiser> {
 public:
  /// `is_busy`: saves wait, so that nothing is to be taken on now.
  ReplicaRaiser(PipelineParts parts, ReplicaRaiserOptions options, std::function<bool()> is_busy);

  void raise(std::span<const HotBlock> blocks);

  /// Drops what waits, and waits for what runs. False if the deadline came first. Idempotent.
  bool close(Deadline deadline);

 private:
  /// Whether the pace allows so many bytes more; takes them.
  bool take_allowance(std::uint64_t bytes, Instant now) KVC_REQUIRES(mutex_);
  bool is_queued(const BlockHash& block) const KVC_REQUIRES(mutex_);
  void drop_queue() KVC_REQUIRES(mutex_);
  void start_task() KVC_EXCLUDES(mutex_);
  bool submit_task();
  void run_task();
  std::vector<HotBlock> take_batch() KVC_EXCLUDES(mutex_);
  void raise_batch(const std::vector<HotBlock>& batch);
  std::size_t objects_of_block() const;
  std::vector<std::string> keys_of(const BlockHash& block) const;
  void count_dropped(std::uint64_t dropped);

  const PipelineParts parts_;
  const ReplicaRaiserOptions options_;
  const std::function<bool()> is_busy_;

  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<HotBlock> queue_ KVC_GUARDED_BY(mutex_);
  bool scheduled_ KVC_GUARDED_BY(mutex_) = false;  // A task is in the executor, running or not.
  bool running_ KVC_GUARDED_BY(mutex_) = false;
  bool closed_ KVC_GUARDED_BY(mutex_) = false;
  double allowance_ KVC_GUARDED_BY(mutex_) = 0;  // In bytes.
  Instant allowance_at_ KVC_GUARDED_BY(mutex_) = Instant::min();
  Duration pause_ KVC_GUARDED_BY(mutex_){0};
  Instant paused_until_ KVC_GUARDED_BY(mutex_) = Instant::min();
};

}  // namespace kvc
