// Loads of one step: get into staging, verify, copy into pages. While one batch is verified and
// copied, the get of the next one is under way.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "connector/block_fetch.h"
#include "connector/hot_blocks.h"
#include "connector/rank_shards.h"
#include "connector/shard_sets.h"
#include "connector/staging.h"
#include "connector/worker_counters.h"
#include "kvc/device.h"
#include "kvc/worker.h"

namespace kvc {

/// What load and save pipelines of one worker work with.
struct PipelineParts {
  WorkerParts worker;
  RankShards shards;
  PageGroup group;
  std::shared_ptr<StagingPool> pages;
  std::shared_ptr<RecentShards> recent;
  std::shared_ptr<BrokenShards> broken;
  std::shared_ptr<HotBlocks> hot;
  std::shared_ptr<WorkerCounters> counters;
};

/// One thread at a time.
class LoadPipeline {
 public:
  /// Until a load was measured.
  static constexpr std::uint64_t kFirstGuessBytesPerSecond = std::uint64_t{1} << 30;

  LoadPipeline(PipelineParts parts, std::size_t batch_blocks, Duration budget)
      : parts_(std::move(parts)), batch_blocks_(batch_blocks), budget_(budget) {}

  /// Puts every task's block into its page or says why not, within the budget. A block that several
  /// tasks want is fetched once. May throw std::bad_alloc: then nothing may be taken for loaded.
  std::vector<LoadFailure> load(std::span<const PageTask> tasks, StreamHandle stream);

  /// Blocks that one load can be expected to move in half its budget, at least 1. Safe to call from
  /// any thread.
  std::size_t budget_blocks() const;

 private:
  struct Run;

  std::shared_ptr<BlockFetch> next_fetch(Run& run);
  void start(const std::shared_ptr<BlockFetch>& fetch);
  void settle(Run& run, BlockFetch& fetch);
  void retry_stale(BlockFetch& fetch);
  Status place(Run& run, const BlockFetch::Item& item, const GetResult& result);
  Status reject(Run& run, const BlockFetch::Item& item, Rejection rejection);
  void remove_rejected(Run& run);
  void report(const Run& run);
  void learn_speed(const Run& run);

  PipelineParts parts_;
  std::size_t batch_blocks_;
  Duration budget_;
  std::atomic<std::uint64_t> bytes_per_second_{kFirstGuessBytesPerSecond};
};

}  // namespace kvc
