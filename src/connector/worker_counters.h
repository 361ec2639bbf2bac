// The counters of a worker, shared by its pipelines.
#pragma once

#include "base/mutex.h"
#include "kvc/block_format.h"
#include "kvc/worker.h"

namespace kvc {

/// Safe to use from any thread.
class WorkerCounters {
 public:
  /// Runs `change` on the counters; all that it changes is seen at once.
  template <typename Change>
  void update(Change change) {
    const MutexLock lock(mutex_);
    change(stats_);
  }

  WorkerStats read() const {
    const MutexLock lock(mutex_);
    return stats_;
  }

 private:
  mutable Mutex mutex_;
  WorkerStats stats_ KVC_GUARDED_BY(mutex_);
};

/// Adds what `from` says of loads.
inline void add_loads(WorkerStats& stats, const WorkerStats& from) {
  stats.blocks_loaded += from.blocks_loaded;
  stats.bytes_loaded += from.bytes_loaded;
  stats.load_nanoseconds += from.load_nanoseconds;
  stats.loads_missing += from.loads_missing;
  stats.loads_unavailable += from.loads_unavailable;
  stats.rejected_checksum += from.rejected_checksum;
  stats.rejected_layout += from.rejected_layout;
  stats.rejected_header += from.rejected_header;
  stats.rejected_size += from.rejected_size;
}

inline void count_rejection(WorkerStats& stats, Rejection rejection) {
  switch (rejection) {
    case Rejection::kNone:
      return;
    case Rejection::kSize:
      ++stats.rejected_size;
      return;
    case Rejection::kLayout:
      ++stats.rejected_layout;
      return;
    case Rejection::kChecksum:
      ++stats.rejected_checksum;
      return;
    case Rejection::kMagic:
    case Rejection::kVersion:
    case Rejection::kIdentity:
      ++stats.rejected_header;
      return;
  }
}

}  // namespace kvc
