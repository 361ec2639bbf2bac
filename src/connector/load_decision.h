// Whether to load blocks or to let the engine compute them, and what fetches have moved so far.
//
// A load that is waited for holds back everything that is running: its whole time counts once for
// the request and once for every running decode. Computing the blocks costs the request its prefill
// time. The decodes lose a part of that only, since a pass over a piece of the prompt also brings
// each of them its next token: it is charged at half.
//
//   load       fetch time   * (1 + running decodes)
//   recompute  prefill time * (1 + running decodes / 2)
//
// So with nothing else running the faster one wins, and however much is running, a load has to be
// twice as fast. Both costs grow with the number of blocks alike: it is all or nothing, except for
// blocks that need no fetch, which are always taken.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvc/clock.h"

namespace kvc {

struct LoadQuestion {
  /// Leading blocks that rank 0 has. They are taken to need no fetch, though another rank may have
  /// to fetch them: nobody here knows.
  std::size_t resident = 0;
  std::size_t to_fetch = 0;         ///< Blocks after them that are in the store.
  double blocks_per_second = 0;     ///< Of fetches so far. 0: not known, so try.
  double prefill_tokens_per_s = 0;  ///< Of the engine. 0: do not decide, load.
  std::uint32_t tokens_per_block = 0;
  std::size_t running_decodes = 0;
  std::size_t min_blocks = 1;  ///< A shorter hit is not worth its handling.
};

enum class LoadReason : std::uint8_t {
  kLoad,
  kRecomputeCheaper,  ///< Only what needs no fetch is taken.
  kBelowMinimum,      ///< Nothing is taken.
};

struct LoadDecision {
  std::size_t blocks = 0;  ///< Leading ones, to be loaded.
  LoadReason reason = LoadReason::kLoad;
};

LoadDecision decide_load(const LoadQuestion& question);

/// How fast blocks arrived that had to be fetched. Not thread-safe.
class FetchSpeed {
 public:
  /// Without a fetch for so long the last ones say nothing any more. Bounds how long a slow moment
  /// keeps loads from being tried.
  static constexpr Duration kFreshFor = std::chrono::seconds(10);
  /// What takes less may have been a message, without any fetch.
  static constexpr Duration kTellingWait = std::chrono::milliseconds(10);

  /// `blocks` were fetched within `took`. None at all counts as a part of one, and only where that
  /// tells something: after a while, or if it is less than was known.
  void fetched(std::size_t blocks, Duration took, Instant now);
  /// 0: not known.
  double blocks_per_second(Instant now) const;

 private:
  double blocks_per_second_ = 0;
  Instant measured_at_{};
};

}  // namespace kvc
