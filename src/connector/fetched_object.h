// What an object is worth that was fetched into staging, and what follows from that for its rank.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "connector/block_fetch.h"
#include "connector/fetch_end.h"
#include "connector/pipeline_parts.h"
#include "kvc/block_format.h"

namespace kvc {

struct Verdict {
  FetchEnd end = FetchEnd::kUnavailable;
  Rejection rejection = Rejection::kNone;  ///< With kRejected: why.
};

/// "Said to be there, could not be read" passes: a placement that moved, a lease that lapsed during
/// the transfer. Asked once more, then it is a miss. REQUIRES: fetch.finish() returned true.
void retry_stale(BlockFetch& fetch);

/// The same for what is said to be missing, since a promise rests on it: a master that was just
/// replaced, or a placement that moved, is asked twice before a request fails. How many were asked
/// for again. REQUIRES: fetch.finish() returned true.
std::size_t retry_missing(BlockFetch& fetch);

/// Verifies an object of `block`. Sightings in the store that this contradicts are forgotten; what
/// is refused is counted in `gained`.
Verdict judge(const PipelineParts& parts, const BlockHash& block, const BlockFetch::Item& item,
              const GetResult& result, WorkerStats& gained);

/// To be called before a refusal is told, so that the same bytes are not promised again. What
/// cannot be removed now is removed by the next save of the block.
void remove_rejected(const PipelineParts& parts, const std::vector<std::string>& keys,
                     Deadline deadline);

}  // namespace kvc
