#include "connector/staging_plan.h"

#include <algorithm>
#include <limits>
#include <string>

#include "kvc/block_format.h"

namespace kvc {
namespace {

constexpr std::size_t kSystemPage = 4096;
/// Of all pages, at least one in so many is never lent to saves.
constexpr std::size_t kLoadShare = 4;
/// With plenty of pages, shards are read back in batches.
constexpr std::size_t kPlenty = 32;
constexpr std::size_t kChecksOfPlenty = 8;

}  // namespace

Result<StagingPlan> plan_staging(const WorkerOptions& options, std::size_t page_payload_bytes,
                                 bool atomic_publish, std::uint32_t parts) {
  if (page_payload_bytes > std::numeric_limits<std::size_t>::max() / 64) {
    return invalid("a page of " + std::to_string(page_payload_bytes) + " bytes is out of range");
  }
  StagingPlan plan;
  const std::size_t part_bytes = page_payload_bytes / parts;
  plan.page_bytes = (kBlockHeaderBytes + part_bytes + kSystemPage - 1) / kSystemPage * kSystemPage;
  plan.marker_bytes = kBlockHeaderBytes;
  // Twice what the tasks use at a time, so that a call that was given up does not stop the rest.
  plan.markers = 2 * kSaveTasks * std::min<std::size_t>(options.batch_blocks, 4096);
  const std::size_t marker_area =
      (plan.markers * plan.marker_bytes + kSystemPage - 1) / kSystemPage * kSystemPage;
  plan.check_pages = atomic_publish ? 0 : kSaveTasks;
  // One for a load while a whole block is being saved.
  const std::size_t pages_min = std::size_t{parts} + 1;
  const std::size_t needed = marker_area + (pages_min + plan.check_pages) * plan.page_bytes;
  if (options.staging_bytes < needed) {
    return invalid("staging_bytes is " + std::to_string(options.staging_bytes) +
                   ": a page of this cache has " + std::to_string(page_payload_bytes) +
                   " bytes, raise it to at least " + std::to_string(needed));
  }
  // After the whole, of which a queue that nobody named is a part.
  if (options.save_queue_bytes != 0 && options.save_queue_bytes < page_payload_bytes) {
    return invalid("save_queue_bytes is " + std::to_string(options.save_queue_bytes) +
                   ": a page of this cache has " + std::to_string(page_payload_bytes) +
                   " bytes, raise it to at least that, or set 0 to save nothing");
  }
  const std::size_t all = (options.staging_bytes - marker_area) / plan.page_bytes;
  if (!atomic_publish && all >= kPlenty) plan.check_pages = kChecksOfPlenty;
  plan.pages = all - plan.check_pages;
  if (plan.pages < pages_min) {  // The share of the checks was one too many.
    plan.check_pages -= pages_min - plan.pages;
    plan.pages = pages_min;
  }
  const std::size_t kept_for_loads =
      std::clamp<std::size_t>(plan.pages / kLoadShare, 1, plan.pages - parts);
  plan.save_pages =
      std::min(options.save_queue_bytes / page_payload_bytes * parts, plan.pages - kept_for_loads);
  return plan;
}

std::size_t blocks_per_batch(const WorkerOptions& options, std::size_t object_bytes) {
  return std::max<std::size_t>(
      std::min(options.batch_blocks, options.batch_bytes / std::max<std::size_t>(object_bytes, 1)),
      1);
}

}  // namespace kvc
