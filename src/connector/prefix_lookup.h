// Asks a store how long a prefix is there, under one deadline for all of its calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kvc/clock.h"
#include "kvc/commit.h"
#include "kvc/store.h"

namespace kvc {

struct PrefixLookup {
  std::size_t available_blocks = 0;
  PrefixProbe::End end = PrefixProbe::End::kPending;
  std::uint32_t lost_rank = 0;  ///< With kShardLost.
};

/// Runs a probe to its end, or until `deadline`: then what is proven on every rank counts.
PrefixLookup look_up_prefix(Store& store, const Clock& clock, const ProbeOptions& options,
                            const ObjectKeys& keys, std::span<const BlockHash> blocks,
                            Deadline deadline);

}  // namespace kvc
