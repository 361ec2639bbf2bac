// What the load and save pipelines of one worker work with.
#pragma once

#include <memory>
#include <vector>

#include "connector/rank_shards.h"
#include "connector/shard_sets.h"
#include "connector/staging.h"
#include "connector/worker_counters.h"
#include "kvc/layout.h"
#include "kvc/worker.h"

namespace kvc {

class Stager;

struct PipelineParts {
  WorkerParts worker;
  RankShards shards;
  std::vector<PageGroup> groups;  ///< By part: where its bytes lie in the pages.
  std::shared_ptr<StagingPool> pages;
  std::shared_ptr<RecentShards> recent;
  std::shared_ptr<BrokenObjects> broken;
  std::shared_ptr<WorkerCounters> counters;
  std::shared_ptr<Stager> stager = nullptr;  ///< Of the host tier; null in leased mode.
};

}  // namespace kvc
