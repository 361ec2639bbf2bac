// The counters of a worker, shared by its pipelines.
#pragma once

#include "base/counters.h"
#include "kvc/block_format.h"
#include "kvc/worker.h"

namespace kvc {

/// Safe to use from any thread.
using WorkerCounters = Counters<WorkerStats>;

/// Adds the counters of a part of the work.
inline void add(WorkerStats& stats, const WorkerStats& gained) {
  for (const StatField<WorkerStats>& row : kWorkerStats) stats.*row.field += gained.*row.field;
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
