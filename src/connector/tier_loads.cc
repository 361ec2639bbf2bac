#include "connector/tier_loads.h"

#include <memory>
#include <unordered_set>
#include <utility>

#include "base/planted.h"
#include "connector/stager.h"
#include "kvc/block_format.h"

namespace kvc {

TierLoads::TierLoads(const PipelineParts& parts, std::span<const PageTask> tasks) : parts_(parts) {
  found_.reserve(tasks.size());
  std::unordered_set<SlotIndex> filled;
  filled.reserve(tasks.size());
  for (const PageTask& task : tasks) {
    if (StagingLease page = parts_.stager->find(task.block); page == nullptr) {
      others_.push_back(task);
    } else if (filled.insert(task.slot).second) {
      found_.push_back({&task, std::move(page)});
    } else {
      repeated_.emplace(task.slot, &task);
    }
  }
}

std::vector<LoadFailure> TierLoads::copy(std::span<const HoldId> holds, StreamHandle stream) {
  try {
    return copy_all(holds, stream);
  } catch (...) {
    // What was issued reads the staging and writes to the pages until it is complete.
    (void)parts_.worker.copier->flush(stream);
    throw;
  }
}

std::vector<LoadFailure> TierLoads::copy_all(std::span<const HoldId> holds, StreamHandle stream) {
  std::vector<LoadFailure> failures;
  const Instant begin = parts_.worker.clock->now();
  std::vector<const PageTask*> copied;
  copied.reserve(found_.size());
  const auto all = std::make_shared<PageCopies>(parts_, std::exchange(found_, {}), stream);
  all->run();
  for (const PageCopies::Copy& copy : all->copies()) {
    if (copy.outcome.ok()) {
      copied.push_back(copy.task);
    } else {
      fail(*copy.task, copy.outcome, &failures);
    }
  }
  if (KVC_PLANTED("release_before_copy")) {
    all->copies().clear();
    for (const HoldId hold : holds) parts_.stager->release({.hold = hold, .from_block = 0});
  }
  // Only now may the pages be used for other blocks.
  if (const Status flushed = parts_.worker.copier->flush(stream); !flushed.ok()) {
    for (const PageTask* task : std::exchange(copied, {})) fail(*task, flushed, &failures);
  }
  all->copies().clear();
  count(copied.size(), parts_.worker.clock->now() - begin);
  return failures;
}

void TierLoads::fail(const PageTask& task, const Status& status,
                     std::vector<LoadFailure>* failures) const {
  const auto add = [&](const PageTask& of) {
    failures->push_back(
        {of.request,
         parts_.shards.key(of.block, 0),
         {Code::kUnavailable, "the copy into the page failed: " + status.message()}});
  };
  add(task);
  const auto [first, last] = repeated_.equal_range(task.slot);
  for (auto same = first; same != last; ++same) add(*same->second);
}

void TierLoads::count(std::size_t copied, Duration took) const {
  parts_.counters->update([&](WorkerStats& stats) {
    stats.blocks_loaded += copied;
    stats.bytes_loaded += copied * parts_.shards.page_bytes;
    stats.tier_hits += copied;
    stats.tier_misses += others_.size();
    if (!others_.empty()) return;  // Their load takes the time of the whole step.
    stats.load_latency.add(took);
  });
}

}  // namespace kvc
