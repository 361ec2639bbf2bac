// Copies of staged blocks into pages, by the thread that waits for them and by tasks that help it.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "connector/pipeline_parts.h"
#include "kvc/device.h"
#include "kvc/worker.h"

namespace kvc {

class PageCopies : public std::enable_shared_from_this<PageCopies> {
 public:
  struct Copy {
    const PageTask* task = nullptr;
    StagingLease page;
    Status outcome = {};
  };

  /// `parts` and the tasks must stay until run() has returned, and no longer. REQUIRES: of each
  /// page one copy, since several threads make them.
  PageCopies(const PipelineParts& parts, std::vector<Copy> copies, StreamHandle stream);

  /// Makes all copies. When it returns nobody copies any more; each has its outcome. Tasks of the
  /// executor help with many bytes, where the copier allows it; it never waits for one to begin.
  void run();

  std::vector<Copy>& copies() { return copies_; }

 private:
  void call_helpers();
  /// Copies until no copy is left to begin.
  void work();
  Status copy(const Copy& copy) const noexcept;

  const PipelineParts& parts_;
  const StreamHandle stream_;
  // Each is written by who took its number; a helper that comes late has none and touches nothing.
  std::vector<Copy> copies_;
  const std::size_t count_;
  std::atomic<std::size_t> next_{0};
  Mutex mutex_;
  CondVar changed_;
  std::size_t done_ KVC_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvc
