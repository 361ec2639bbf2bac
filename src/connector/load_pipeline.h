// Makes the loads of steps, and remembers how fast they were.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "connector/load_run.h"
#include "connector/load_speed.h"
#include "connector/pipeline_parts.h"

namespace kvc {

/// begin() and end() come from one thread at a time; everything else from any.
class LoadPipeline {
 public:
  LoadPipeline(PipelineParts parts, std::size_t batch_blocks, Duration budget)
      : parts_(std::move(parts)), batch_blocks_(batch_blocks), budget_(budget) {}

  /// The loads of a step, not begun yet. Ends those of the step before. May throw std::bad_alloc.
  std::shared_ptr<LoadRun> begin(std::vector<PageTask> tasks, StreamHandle stream);
  /// No page is written any more.
  void end() noexcept;

  /// Ends the loads that are under way. False if something works on them still at the deadline.
  bool close(Deadline deadline);

  /// Blocks that one load can be expected to move in half its budget, at least 1.
  std::size_t budget_blocks() const;

 private:
  std::shared_ptr<LoadRun> replace(std::shared_ptr<LoadRun> with) noexcept KVC_EXCLUDES(mutex_);

  const PipelineParts parts_;
  const std::size_t batch_blocks_;
  const Duration budget_;
  const std::shared_ptr<LoadSpeed> speed_ = std::make_shared<LoadSpeed>();
  mutable Mutex mutex_;
  std::shared_ptr<LoadRun> run_ KVC_GUARDED_BY(mutex_);
  bool closed_ KVC_GUARDED_BY(mutex_) = false;
};

}  // namespace kvc
