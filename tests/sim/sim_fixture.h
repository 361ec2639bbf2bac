// A simulated store with writers and staging ranks, put together by hand: for worlds that are tried
// in full, and for stories that are told event by event.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "testing/sim/shard_writer.h"
#include "testing/sim/sim_engine.h"

namespace kvc::sim {

struct StageWorldOptions {
  Shape shape;
  EventOrder order = EventOrder::kByTime;
  FaultPlan faults = {};
  std::uint32_t fault_budget = 0;
  SimStoreOptions store = {};
};

/// What a simulated world consists of, without inhabitants.
class SimStageWorld {
 public:
  SimStageWorld(Choice& choice, const StageWorldOptions& options)
      : loop(choice, options.order),
        journal(nullptr),
        faults(options.faults, choice, options.fault_budget, options.order == EventOrder::kAny),
        oracle(loop, options.shape),
        store(loop, choice, faults, oracle, journal, options.store, options.shape.atomic_publish),
        site{loop, choice, faults, oracle, journal, coverage, store, options.shape} {}

  /// Runs until nothing is left to happen, or something is wrong.
  void run() {
    while (!oracle.violated() && loop.step()) {
    }
  }

  EventLoop loop;
  Journal journal;
  Faults faults;
  Coverage coverage;
  Oracle oracle;
  SimStore store;
  Site site;
};

/// The blocks of one prompt, each named after its place.
inline std::vector<NamedBlock> some_blocks(Oracle& oracle, std::uint32_t count) {
  std::vector<NamedBlock> blocks;
  std::vector<Token> tokens;
  for (std::uint32_t i = 0; i < count; ++i) {
    tokens.insert(tokens.end(), kTokensPerBlock, static_cast<Token>(i));
    NamedBlock block{oracle.content(0, 0, tokens), {}};
    block.hash.bytes.fill(static_cast<std::byte>(i + 1));
    blocks.push_back(block);
  }
  return blocks;
}

/// One rank that saves blocks, without staging.
class SimWriter {
 public:
  SimWriter(Site& site, std::uint32_t rank)
      : site_(site), shards_(shards_of(0, rank, site.shape)) {}

  void save(const std::vector<NamedBlock>& blocks) {
    std::vector<ShardWriter::Item> items;
    for (const NamedBlock& block : blocks) {
      ShardWriter::Item item{block, {}};
      for (std::uint32_t part = 0; part < shards_.parts(); ++part) {
        auto page = std::make_shared<std::vector<std::byte>>(kObjectBytes);
        Oracle::fill(block.content, shards_.role.rank, part,
                     std::span(*page).subspan(kBlockHeaderBytes));
        seal_block(shards_.describe_part(block.hash, part), *page);
        item.parts.push_back({*page, page});
      }
      items.push_back(std::move(item));
    }
    ended_ = false;
    std::make_shared<ShardWriter>(site_, process_, shards_, broken_, std::move(items))
        ->start([this](const ShardWriter::Ending& ending) {
          ended_ = true;
          ending_ = ending;
        });
  }

  Process& process() { return process_; }
  bool ended() const { return ended_; }
  const ShardWriter::Ending& ending() const { return ending_; }

 private:
  Site& site_;
  const RankShards shards_;
  Process process_;
  BrokenKeys broken_;
  bool ended_ = false;
  ShardWriter::Ending ending_;
};

inline constexpr std::uint32_t kAlways = 1'000'000;

}  // namespace kvc::sim
