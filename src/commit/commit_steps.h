// The commits of a batch of blocks of one rank, in step: what is done next for which of them, what
// is known of each part of their shards, and what the answers of the store mean for each block. No
// threads, clock or I/O: the driver asks for the step, performs it with one batched call for all
// its blocks (a put: one for each part), tells the answers, and ends it. The save pipeline and the
// simulation drive the same steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kvc/commit.h"
#include "kvc/store.h"

namespace kvc {

/// What is known of an item that a call left unanswered.
template <typename Answer>
inline constexpr Answer kUnanswered = {};
template <>
inline constexpr Reaction kUnanswered<Reaction> = Reaction::kDown;
template <>
inline constexpr PutResult kUnanswered<PutResult> = {Reaction::kDown, PutEffect::kUnknown};
template <>
inline constexpr GetResult kUnanswered<GetResult> = {Reaction::kDown, 0};

/// The answers of a call for `count` items. A wrong number of them answers none.
template <typename Answer>
std::vector<Answer> checked(std::vector<Answer> answers, std::size_t count) {
  if (answers.size() == count) return answers;
  return std::vector<Answer>(count, kUnanswered<Answer>);
}

/// Whether a removal with this answer left nothing under its key.
inline bool is_gone(Reaction reaction) {
  return reaction == Reaction::kOk || reaction == Reaction::kMiss;
}

/// Single-threaded. At most BlockCommit::kMaxActions steps have the same block.
class CommitSteps {
 public:
  using Action = BlockCommit::Action;
  using Indices = std::vector<std::size_t>;
  struct Part {
    std::size_t block = 0;  ///< Its index in the batch.
    std::uint32_t part = 0;
    bool operator==(const Part&) const = default;
  };
  using Parts = std::vector<Part>;

  /// Shards are of `parts` objects. Begins with the first step.
  CommitSteps(const CommitRole& role, std::size_t blocks, std::uint32_t parts);

  /// The step at hand. Blocks that lag behind in the protocol catch up first, so that all ask for
  /// the quorum, and for the manifest, in one step. kDone: every commit has ended.
  Action action() const { return action_; }
  /// Its blocks, ascending.
  const Indices& blocks() const { return ready_; }
  /// The objects that it reads, removes or probes, in order of block and part; of a put of shards,
  /// what may be put of them.
  Parts parts() const;
  /// The blocks that still put this part in a step that puts shards: none of a block that failed.
  Indices puts(std::uint32_t part) const;

  // What the store answered, told in the step that asked for it; checked() is applied.

  /// One result for each of puts(part).
  void on_put(std::uint32_t part, std::vector<PutResult> results);
  /// Of one of parts(); `intact` iff the bytes verified. One that could not be looked at is told as
  /// unanswered.
  void on_read(const Part& at, const GetResult& result, bool intact);
  /// One reaction for each of parts().
  void on_removed(std::vector<Reaction> reactions);
  /// One reaction for each of parts().
  void on_probed(std::vector<Reaction> reactions);
  /// One result for each of blocks().
  void on_markers_put(std::vector<PutResult> results);
  /// One reaction for each of quorum_keys() of each of blocks().
  void on_quorum(std::vector<Reaction> reactions);

  /// REQUIRES: everything that the step asked for was told.
  void end_step();

  const BlockCommit& commit(std::size_t block) const { return blocks_[block].commit; }

 private:
  enum class PartState : std::uint8_t {
    kToPut,
    kOurs,    // Stored by this rank, whole.
    kUnsure,  // There; whether it is whole has not been seen.
    kIntact,  // Read back and verified.
    kBad,
  };
  struct Block {
    BlockCommit commit;
    std::vector<PartState> parts;
    PutResult put_outcome = kNothingPut;  // Of the parts put in this step.
    Reaction failure = Reaction::kOk;     // Of a part that this step could not deal with.

    bool any(PartState state) const;
    void on_part_put(std::uint32_t part, const PutResult& result);
    void end_verification();
  };
  static constexpr PutResult kNothingPut = {Reaction::kOk, PutEffect::kNone};

  void choose();

  const std::size_t ranks_;
  std::vector<Block> blocks_;
  Action action_ = Action::kDone;
  Indices ready_;
};

}  // namespace kvc
