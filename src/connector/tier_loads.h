// Loads of blocks that are in the host tier: copies, without the store.
#pragma once

#include <span>
#include <unordered_map>
#include <vector>

#include "connector/page_copies.h"
#include "connector/pipeline_parts.h"
#include "kvc/device.h"
#include "kvc/worker.h"

namespace kvc {

/// One step's; one use, one thread.
class TierLoads {
 public:
  /// Takes the blocks that are in the tier now. REQUIRES: parts.stager, and that no two tasks want
  /// different blocks in a page. `parts` and `tasks` must outlive this.
  TierLoads(const PipelineParts& parts, std::span<const PageTask> tasks);

  /// The tasks whose block is not there.
  const std::vector<PageTask>& others() const { return others_; }

  /// Copies, and returns when the copies are complete, so that the holds of these blocks may end:
  /// they are `holds`, and the caller ends them. Returns what could not be copied.
  std::vector<LoadFailure> copy(std::span<const HoldId> holds, StreamHandle stream);

 private:
  std::vector<LoadFailure> copy_all(std::span<const HoldId> holds, StreamHandle stream);
  /// With all that rely on the same page.
  void fail(const PageTask& task, const Status& status, std::vector<LoadFailure>* failures) const;
  void count(std::size_t copied, Duration took) const;

  const PipelineParts& parts_;
  std::vector<PageCopies::Copy> found_;  // One for each page.
  /// Tasks whose page another one fills with the same block; by page.
  std::unordered_multimap<SlotIndex, const PageTask*> repeated_;
  std::vector<PageTask> others_;
};

}  // namespace kvc
