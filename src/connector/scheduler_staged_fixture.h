// What tests of the scheduler with staged promises share: ranks that are played by hand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "connector/scheduler_fixture.h"
#include "connector/stage_fixture.h"

namespace kvc {

using Releases = std::vector<HoldRelease>;

class StagedWorld : public SchedulerFixture {
 public:
  explicit StagedWorld(std::uint32_t ranks = 2, std::size_t tracked_max = 1024)
      : SchedulerFixture(ranks, tracked_max), stage(ranks, clock) {
    options.stage_leader = stage.leader;
    options.resident_prefix = [this](std::span<const BlockHash>) { return resident; };
    remake();
  }

  /// After a change of `options`.
  void remake() { scheduler = make(store); }

  Releases releases(std::uint32_t rank = 0) const { return stage.links[rank]->releases(); }
  HoldId last_hold() const { return stage.links[0]->orders().back().hold; }
  std::string explained() const {
    const std::vector<std::string> lines = scheduler->explain();
    return lines.empty() ? "" : lines.back();
  }

  /// A prompt of so many blocks, all stored, with one token left to compute.
  std::vector<Token> stored_prompt(std::size_t blocks, Token first = 0) {
    std::vector<Token> tokens = make_tokens(blocks * kBlockTokens + 1, first);
    publish(names_of(tokens));
    return tokens;
  }

  StageFixture stage;
  std::size_t resident = 0;
};

}  // namespace kvc
