// Where a simulation takes its decisions from. The same world runs on choices that are drawn from a
// seed, and on a generator that counts through all of them, so that a small world is tried in full.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/random.h"

namespace kvc::sim {

class Choice {
 public:
  virtual ~Choice() = default;
  /// One of [0, bound). REQUIRES: bound > 0.
  virtual std::uint32_t below(std::uint32_t bound) = 0;
};

class SeededChoice final : public Choice {
 public:
  explicit SeededChoice(std::uint64_t seed) : random_(seed) {}
  std::uint32_t below(std::uint32_t bound) override {
    return static_cast<std::uint32_t>(random_.below(bound));
  }

 private:
  Random random_;
};

/// Counts through every sequence of choices that a program asks for, as an odometer counts through
/// its digits, although each digit's range depends on those before it:
///
///   CountingChoice choice;
///   do { run(choice); } while (choice.next());
///
/// REQUIRES: `run` is deterministic.
class CountingChoice final : public Choice {
 public:
  std::uint32_t below(std::uint32_t bound) override;

  /// Prepares the next sequence. False: every one has been tried.
  bool next();
  /// Replays a sequence that values() has told.
  void replay(const std::vector<std::uint32_t>& values);
  std::vector<std::uint32_t> values() const;
  /// Leaves out what differs from the present sequence only in choices that are still to come: the
  /// caller has seen this state before.
  void cut() { cut_at_ = position_; }

 private:
  struct Digit {
    std::uint32_t value;
    std::uint32_t bound;
  };
  std::vector<Digit> digits_;
  std::size_t position_ = 0;
  std::size_t cut_at_ = SIZE_MAX;
};

}  // namespace kvc::sim
