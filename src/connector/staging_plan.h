// How the staging memory of a worker is divided.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvc/result.h"
#include "kvc/worker.h"

namespace kvc {

struct StagingPlan {
  std::size_t page_bytes = 0;  ///< An object with its header, rounded up to whole system pages.
  std::size_t pages = 0;       ///< For payload, shared by loads and saves.
  std::size_t save_pages = 0;  ///< Of those, lent to saves at most.
  std::size_t check_pages =
      0;  ///< For reading back an existing shard (stores that publish in pieces).
  std::size_t marker_bytes = 0;  ///< A READY marker or a manifest.
  std::size_t markers = 0;

  std::size_t total_bytes() const {
    return (pages + check_pages) * page_bytes + markers * marker_bytes;
  }
};

/// Background tasks that save at the same time.
inline constexpr std::size_t kSaveTasks = 2;

/// A staging page takes one of the `parts` objects that a page of the cache is stored as. kInvalid,
/// naming the setting and what would do, if a page of the cache does not fit.
Result<StagingPlan> plan_staging(const WorkerOptions& options, std::size_t page_payload_bytes,
                                 bool atomic_publish, std::uint32_t parts = 1);

/// Blocks of one store call.
std::size_t blocks_per_batch(const WorkerOptions& options, std::size_t object_bytes);

}  // namespace kvc
