// What tests of the layer path share: a worker whose pages are stored layer by layer, and passes
// that call its hooks in whatever way a test wants.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "connector/worker_fixture.h"
#include "kvc/executor.h"

namespace kvc {

inline constexpr std::uint32_t kLayers = 4;
/// The first layer of the pool, since an engine counts all layers of its model.
inline constexpr std::uint32_t kFirstLayer = 10;

struct LayerWorld : WorkerWorld {
  static constexpr std::size_t kLayerBytes = kPageBytes / kLayers;

  explicit LayerWorld(bool atomic = true) : WorkerWorld(atomic) {
    options.granularity = Granularity::kLayer;
    PageGroup& group = pool.layout.groups.front();
    group.layers.clear();
    for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
      group.layers.push_back(kFirstLayer + layer);
    }
    group.layer_bytes = kLayerBytes;
  }

  std::string layer_key(std::uint64_t number, std::uint32_t layer) const {
    return by_layer.layer(make_hash(number), options.rank, layer);
  }
  std::string ready(std::uint64_t number) const {
    return by_layer.ready(make_hash(number), options.rank);
  }
  std::string manifest(std::uint64_t number) const { return by_layer.manifest(make_hash(number)); }

  std::span<std::byte> layer_of_page(SlotIndex slot, std::uint32_t layer) {
    return pool.page(slot).subspan(layer * kLayerBytes, kLayerBytes);
  }
  bool holds_layer(const PageTask& task, std::uint32_t layer) {
    const std::vector<std::byte> page = oracle_page(task.block, options.rank, kPageBytes);
    return std::ranges::equal(layer_of_page(task.slot, layer),
                              std::span(page).subspan(layer * kLayerBytes, kLayerBytes));
  }
  bool all_hold(const std::vector<PageTask>& tasks) {
    return std::ranges::all_of(
        tasks, [this](const PageTask& t) { return pool.holds(t.slot, t.block, options.rank); });
  }
  void write_layer(const PageTask& task, std::uint32_t layer) {
    const std::vector<std::byte> page = oracle_page(task.block, options.rank, kPageBytes);
    std::ranges::copy(std::span(page).subspan(layer * kLayerBytes, kLayerBytes),
                      layer_of_page(task.slot, layer).begin());
  }

  std::vector<LoadFailure> wait(std::uint32_t layer) {
    return worker->wait_for_layer(kFirstLayer + layer, 0);
  }
  void computed(std::uint32_t layer) { worker->layer_computed(kFirstLayer + layer, 0); }

  /// A pass that fills the pages to save and calls the hooks `times` times for each layer.
  std::vector<LoadFailure> pass(const std::vector<PageTask>& saves, int times = 1) {
    for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
      for (int i = 0; i < times; ++i) {
        if (std::vector<LoadFailure> failures = wait(layer); !failures.empty()) return failures;
      }
      for (const PageTask& each : saves) write_layer(each, layer);
      for (int i = 0; i < times; ++i) computed(layer);
    }
    return worker->save(0);
  }
  /// Saves blocks by such a pass, and waits until it is done.
  void save_by_layer(const std::vector<PageTask>& saves) {
    bind({}, saves);
    ASSERT_TRUE(pass(saves).empty());
    executor->run_all();
    ASSERT_TRUE(worker->drain(Deadline{}));
  }
  /// A pass with loads that waits for every layer, so that the hooks are trusted from now on.
  void earn_trust(const std::vector<PageTask>& loads) {
    bind(loads, {});
    ASSERT_TRUE(worker->load(0).empty());
    ASSERT_TRUE(pass({}).empty());
  }

  const ObjectKeys by_layer{kTestKeyspace, Granularity::kLayer};
};

inline std::vector<std::uint64_t> some(std::size_t count) {
  std::vector<std::uint64_t> numbers(count);
  for (std::size_t i = 0; i < count; ++i) numbers[i] = i + 1;
  return numbers;
}

/// Blocks 1 to 5 are stored, and a first pass has waited for every layer.
struct TrustedWorld : LayerWorld {
  explicit TrustedWorld(bool threads = false) {
    if (threads) executor_in_use = make_thread_pool({.name = "t", .threads = 3});
    start();
    loads = tasks(some(5));
    bind({}, loads);
    EXPECT_TRUE(pass(loads).empty());
    executor->run_all();
    EXPECT_TRUE(worker->drain(Deadline{}));
    earn_trust(loads);
    pool.poison_all();
    gets_before = store->count(StoreOp::kGet);
  }
  std::size_t gets() const { return store->count(StoreOp::kGet) - gets_before; }
  bool in_place(std::uint32_t layer) {
    return std::ranges::all_of(loads,
                               [&](const PageTask& task) { return holds_layer(task, layer); });
  }
  bool untouched(std::uint32_t layer) {
    return std::ranges::all_of(loads, [&](const PageTask& task) {
      return std::ranges::all_of(layer_of_page(task.slot, layer),
                                 [](std::byte byte) { return byte == kPoison; });
    });
  }

  std::vector<PageTask> loads;
  std::size_t gets_before = 0;
};

}  // namespace kvc
