// How each query was answered, and why not better: for the counters, and as one line a request for
// people who ask why there was no hit.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <string>
#include <string_view>

#include "kvc/step_plan.h"

namespace kvc {

/// What ended the prefix that was offered.
enum class PrefixEnd : std::uint8_t {
  kAll,              ///< Nothing: all that the prompt could have got.
  kNoManifest,       ///< A block that nobody has committed.
  kShardLost,        ///< A block that some rank's shard is missing of.
  kStoreFailed,      ///< No answer of the store in time.
  kOverBudget,       ///< More than one step can look up and load in time.
  kUnaligned,        ///< The engine's own match ends inside a block.
  kUntracked,        ///< As many requests are tracked as can be.
  kRejected,         ///< A block that failed its check on some rank.
  kLate,             ///< A block that some rank had not staged in time.
  kNoRoom,           ///< No staging memory on some rank.
  kTooManyPromises,  ///< As many are given as can be.
  kUnavailable,      ///< A rank that is not connected, is lost, or gets no answer of the store.
  kRecomputeCheaper,
  kBelowMinimum,  ///< So short a hit is not worth its handling.
  kCancelled,     ///< Promised once, and then cancelled by the caller.
  kOptedOut,      ///< The request was not looked up at all.
};
inline constexpr std::size_t kPrefixEnds = static_cast<std::size_t>(PrefixEnd::kOptedOut) + 1;

/// Of one query, and of those that repeat it, in blocks. Blocks that the prompt could have got are
/// offered or missed for one reason each.
struct Decision {
  static constexpr std::size_t kNothingAbsent = std::numeric_limits<std::size_t>::max();

  RequestId request = 0;
  std::size_t matched = 0;   ///< By the engine itself, before.
  std::size_t wanted = 0;    ///< That the prompt could have got after that.
  std::size_t resident = 0;  ///< Of these, leading ones that rank 0 had in memory.
  std::size_t offered = 0;
  std::array<std::size_t, kPrefixEnds> missed{};
  PrefixEnd end = PrefixEnd::kAll;
  /// The first of the wanted ones that the store, or a rank's part of it, was found to lack.
  std::size_t absent_from = kNothingAbsent;
  std::uint32_t rank = 0;     ///< Where `end` names one.
  std::uint32_t repeats = 0;  ///< How often it was given again since, for the same question.
  // What the choice between loading and computing was made from.
  double blocks_per_second = 0;
  double prefill_tokens_per_s = 0;
  std::size_t running_decodes = 0;
  std::string why = {};  ///< With kOptedOut, in the caller's words.

  /// All that is wanted is offered, until it is cut.
  void want(std::size_t blocks) { wanted = offered = blocks; }
  /// Only the leading `keep` blocks of what is offered are.
  void cut(std::size_t keep, PrefixEnd why_not, std::uint32_t at_rank = 0);
};

/// "request 7: matched 2, offered 3 of 5 (1 resident), ended by: shard lost on rank 1"
std::string to_line(const Decision& decision);

/// The newest decisions, one for each request. Not thread-safe.
class DecisionLog {
 public:
  explicit DecisionLog(std::size_t limit) : limit_(limit) {}

  /// It replaces what was known of the request.
  void add(Decision decision);
  /// Oldest first.
  const std::deque<Decision>& entries() const { return entries_; }

 private:
  std::size_t limit_;
  std::deque<Decision> entries_;  // Oldest first.
};

}  // namespace kvc
