// How much earlier the first token comes when a pass computes while later layers are loaded.
//
//   block     load() of whole blocks, then the pass
//   layer     load() begins; before each layer of the pass wait_for_layer()
//
// Both go through the same worker over the same store, which takes a fixed time for the bytes of
// one layer of all blocks, one call at a time, as a link does; computing a layer takes as long.
// Neither is modelled: threads wait for the times, bytes move and are verified. One sample each in
// alternating order.
//
//   layer_overlap [--samples=N] [--layers=N]      prints one JSON object
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/mutex.h"
#include "base/random.h"
#include "bench/result_digest.h"
#include "bench/samples.h"
#include "kvc/clock.h"
#include "kvc/worker.h"
#include "store/memory/memory_store.h"
#include "testing/passing_store.h"

namespace kvc {
namespace {

constexpr std::size_t kBlocks = 8;
constexpr std::size_t kLayerBytes = std::size_t{32} << 10;
constexpr Duration kTimeOfALayer = std::chrono::milliseconds(1);
constexpr Fingerprint kKeyspace{std::byte{1}};
constexpr std::uint64_t kSeed = 20240501;

constexpr std::size_t kLargest = 1024;  // Of a count on the command line.

struct Options {
  std::size_t samples = 21;
  std::size_t layers = 32;
};

/// Waits as a thread does that has nothing to do until then.
void wait_for(Duration time) {
  const Instant until = system_clock()->now() + time;
  Mutex mutex;
  CondVar nobody;
  const MutexLock lock(mutex);
  while (system_clock()->now() < until) nobody.wait_until(mutex, until);
}

/// One instance over a pool of its own.
class Instance {
 public:
  Instance(const Options& options, Granularity granularity, std::shared_ptr<Store> store)
      : layers_(static_cast<std::uint32_t>(options.layers)),
        page_bytes_(options.layers * kLayerBytes),
        memory_(kBlocks * page_bytes_) {
    Random(kSeed).fill(memory_);
    expected_ = memory_;
    const WorkerOptions with{.tokens_per_block = 32,
                             .granularity = granularity,
                             .load_deadline = std::chrono::seconds(60)};
    worker_ = std::move(Worker::create(
                            with, {.store = std::move(store),
                                   .executor = make_thread_pool({.name = "bench", .threads = 4}),
                                   .clock = system_clock(),
                                   .logger = make_stderr_logger(LogLevel::kWarning),
                                   .copier = make_host_page_copier()}))
                  .value();
    PageGroup group;
    for (std::uint32_t layer = 0; layer < layers_; ++layer) group.layers.push_back(layer);
    group.regions = {{memory_.data(), page_bytes_, page_bytes_, kBlocks}};
    group.layer_bytes = kLayerBytes;
    KVC_CHECK(worker_->register_layout(kKeyspace, {.groups = {group}}).ok(), "no layout");
    for (std::size_t b = 0; b < kBlocks; ++b) {
      BlockHash hash;
      hash.bytes[0] = static_cast<std::byte>(b);
      tasks_.push_back({.request = 1, .block = hash, .slot = static_cast<SlotIndex>(b)});
    }
    save();
    (void)first_token();  // Whoever calls the hooks once is believed to do so again.
  }

  /// Nanoseconds from the begin of the load to the end of the last layer.
  double first_token() {
    std::ranges::fill(memory_, std::byte{0});
    worker_->bind({.keyspace = kKeyspace, .loads_in_batch = true, .loads = tasks_, .saves = {}});
    const Instant begin = system_clock()->now();
    KVC_CHECK(worker_->load(0).empty(), "a load failed");
    for (std::uint32_t layer = 0; layer < layers_; ++layer) {
      KVC_CHECK(worker_->wait_for_layer(layer, 0).empty(), "a layer failed");
      wait_for(kTimeOfALayer);
      worker_->layer_computed(layer, 0);
    }
    const Duration took = system_clock()->now() - begin;
    KVC_CHECK(worker_->save(0).empty(), "the pass did not wait");
    KVC_CHECK(std::ranges::equal(memory_, expected_), "wrong bytes");
    return static_cast<double>(took.count());
  }

  std::string digest() const {
    ResultDigest digest;
    digest.add(std::string_view(reinterpret_cast<const char*>(memory_.data()), memory_.size()));
    return digest.hex();
  }

 private:
  void save() {
    worker_->bind({.keyspace = kKeyspace, .loads = {}, .saves = tasks_});
    (void)worker_->save(0);
    const Deadline deadline = Deadline::after(*system_clock(), std::chrono::seconds(30));
    KVC_CHECK(worker_->drain(deadline) && worker_->stats().blocks_committed == kBlocks,
              "the blocks were not saved");
  }

  const std::uint32_t layers_;
  const std::size_t page_bytes_;
  std::vector<std::byte> memory_;
  std::vector<std::byte> expected_;
  std::vector<PageTask> tasks_;
  std::unique_ptr<Worker> worker_;
};

/// A read takes the time of its bytes, one call after the other.
class LinkStore final : public testlib::PassingStore {
 public:
  using testlib::PassingStore::PassingStore;

  std::vector<GetResult> get(std::vector<GetItem> items, CallContext context) override {
    std::size_t bytes = 0;
    for (const GetItem& item : items) bytes += item.capacity;
    const auto layers = static_cast<Duration::rep>(bytes / (kBlocks * kLayerBytes));
    const MutexLock lock(link_);
    wait_for(kTimeOfALayer * layers);
    return inner_->get(std::move(items), std::move(context));
  }

 private:
  Mutex link_;
};

void measure(const Options& options) {
  const auto store = std::make_shared<LinkStore>(make_memory_store({}));
  Instance block(options, Granularity::kBlock, store);
  Instance layer(options, Granularity::kLayer, store);
  PairedSamples samples;
  for (std::size_t i = 0; i < options.samples; ++i) {
    samples.take([&] { return layer.first_token(); }, [&] { return block.first_token(); });
  }
  KVC_CHECK(block.digest() == layer.digest(), "the two paths loaded different bytes");
  std::printf("{\"layers\":%zu,\"blocks\":%zu,\"layer_ms\":%.3f,\"block_ms\":%.3f,", options.layers,
              kBlocks, median(samples.ours) / 1e6, median(samples.baseline) / 1e6);
  print_end(layer.digest(), samples.ratios());
}

}  // namespace
}  // namespace kvc

int main(int argc, char** argv) {
  kvc::Options options;
  if (!kvc::parse_counts(argc, argv, kvc::kLargest,
                         {{"--samples=", &options.samples}, {"--layers=", &options.layers}})) {
    return 2;
  }
  kvc::measure(options);
  return 0;
}
