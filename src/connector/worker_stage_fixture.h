// What tests of a rank in staged mode share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "connector/worker_fixture.h"

namespace kvc {

/// A rank in staged mode, and a leader that writes down what it hears.
struct StageWorld : WorkerWorld {
  explicit StageWorld(bool atomic = true) : WorkerWorld(atomic) { options.staged = true; }

  /// Room for so many blocks, a few of them for saves, beside the page that is left for loads.
  void limit_pages(std::size_t pages, std::size_t save_pages = 1) {
    options.batch_blocks = 8;
    options.staging_bytes = (pages + 2) * 4096;
    options.save_queue_bytes = save_pages * kPageBytes;
  }
  void start() {
    WorkerWorld::start();
    rank = worker->stage_rank();
    ASSERT_NE(rank, nullptr);
  }
  static std::vector<BlockHash> blocks(const std::vector<std::uint64_t>& numbers) {
    std::vector<BlockHash> all;
    for (const std::uint64_t number : numbers) all.push_back(make_hash(number));
    return all;
  }
  void order(HoldId hold, const std::vector<std::uint64_t>& numbers,
             Duration budget = std::chrono::seconds(4)) {
    rank->stage({.hold = hold, .blocks = blocks(numbers), .fetch_budget = budget},
                [this](const StageProgress& progress) { hear(progress); });
  }
  /// ... and waits until it is over.
  void stage(HoldId hold, const std::vector<std::uint64_t>& numbers) {
    order(hold, numbers);
    executor->run_all();
  }
  void hear(const StageProgress& progress) {
    static const char* const kEnds[] = {"all", "missing", "rejected", "no room", "unavailable"};
    if (!heard.empty()) heard += ", ";
    heard += std::to_string(progress.hold) + ":" + std::to_string(progress.staged);
    if (progress.done) heard.append(" ").append(kEnds[static_cast<std::size_t>(progress.end)]);
    if (on_report) on_report(progress);
  }
  std::string take_heard() { return std::exchange(heard, {}); }

  std::vector<LoadFailure> load_held(const std::vector<PageTask>& loads,
                                     std::vector<HoldId> holds) {
    worker->bind(
        {.keyspace = kTestKeyspace, .loads = loads, .saves = {}, .done_holds = std::move(holds)});
    return worker->load(0);
  }
  bool all_hold(const std::vector<PageTask>& loads) {
    return std::ranges::all_of(
        loads, [this](const PageTask& t) { return pool.holds(t.slot, t.block, 0); });
  }

  std::shared_ptr<StageRank> rank;
  std::string heard;
  std::function<void(const StageProgress&)> on_report;
};

}  // namespace kvc
