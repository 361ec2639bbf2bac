// What a load from the host tier costs over one copy of the same bytes.
//
//   ours      bind() and load() of blocks that are staged and held, with a hold that the load ends
//   baseline  one memcpy for each block, between buffers of the same sizes
//
// The hold is taken before the time is: its order is answered at once, since everything is warm.
// One sample each in alternating order.
//
//   tier_load [--samples=N] [--blocks=N] [--kib=N]      prints one JSON object
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "bench/result_digest.h"
#include "bench/samples.h"
#include "kvc/block_format.h"
#include "kvc/clock.h"
#include "kvc/stage.h"
#include "kvc/worker.h"
#include "store/memory/memory_store.h"

namespace kvc {
namespace {

constexpr Fingerprint kKeyspace{std::byte{1}};
constexpr std::uint64_t kSeed = 20240501;

struct Options {
  std::size_t samples = 21;
  std::size_t blocks = 32;
  std::size_t kib = 4096;
};

double nanoseconds_since(Instant begin) {
  return static_cast<double>((system_clock()->now() - begin).count());
}

/// A rank whose host tier holds the blocks of one request.
class Instance {
 public:
  explicit Instance(const Options& options)
      : page_bytes_(options.kib << 10), memory_(options.blocks * page_bytes_) {
    Random(kSeed).fill(memory_);
    expected_ = memory_;
    WorkerOptions with{.tokens_per_block = 32, .staged = true};
    with.save_queue_bytes = memory_.size();
    with.staging_bytes = 2 * memory_.size() + (std::size_t{64} << 20);
    worker_ = std::move(Worker::create(
                            with, {.store = make_memory_store({}),
                                   .executor = make_thread_pool({.name = "bench", .threads = 2}),
                                   .clock = system_clock(),
                                   .logger = make_stderr_logger(LogLevel::kWarning),
                                   .copier = make_host_page_copier()}))
                  .value();
    PageGroup group;
    group.layers = {0};
    group.regions = {{memory_.data(), page_bytes_, page_bytes_, options.blocks}};
    KVC_CHECK(worker_->register_layout(kKeyspace, {.groups = {group}}).ok(), "no layout");
    for (std::size_t b = 0; b < options.blocks; ++b) {
      BlockHash hash;
      std::memcpy(hash.bytes.data(), &b, sizeof(b));
      blocks_.push_back(hash);
      tasks_.push_back({.request = 1, .block = hash, .slot = static_cast<SlotIndex>(b)});
    }
    worker_->bind({.keyspace = kKeyspace, .loads = {}, .saves = tasks_});
    (void)worker_->save(0);
    const Deadline deadline = Deadline::after(*system_clock(), std::chrono::seconds(60));
    KVC_CHECK(worker_->drain(deadline), "the blocks were not saved");
    KVC_CHECK(worker_->resident_prefix(blocks_) == blocks_.size(), "the blocks are not warm");
  }

  double load() {
    std::ranges::fill(memory_, std::byte{0});
    std::size_t staged = 0;
    const HoldId hold = ++last_hold_;
    worker_->stage_rank()->stage(
        {.hold = hold, .blocks = blocks_, .fetch_budget = std::chrono::seconds(1)},
        [&staged](const StageProgress& progress) { staged = progress.staged; });
    KVC_CHECK(staged == blocks_.size(), "what is warm was not staged at once");
    StepPlan plan{.keyspace = kKeyspace, .loads = tasks_, .saves = {}, .done_holds = {hold}};
    const Instant begin = system_clock()->now();
    worker_->bind(std::move(plan));
    const bool loaded = worker_->load(0).empty();
    const double took = nanoseconds_since(begin);
    KVC_CHECK(loaded && std::ranges::equal(memory_, expected_), "wrong bytes");
    KVC_CHECK(worker_->stats().holds_open == 0, "the hold did not end");
    return took;
  }

  void check_that_the_store_was_not_asked(std::size_t loads) const {
    const WorkerStats stats = worker_->stats();
    KVC_CHECK(stats.tier_hits == loads * blocks_.size() && stats.tier_misses == 0,
              "loads did not come from the tier");
  }

  std::string digest() const {
    ResultDigest digest;
    digest.add(std::string_view(reinterpret_cast<const char*>(memory_.data()), memory_.size()));
    return digest.hex();
  }

 private:
  const std::size_t page_bytes_;
  std::vector<std::byte> memory_;
  std::vector<std::byte> expected_;
  std::vector<BlockHash> blocks_;
  std::vector<PageTask> tasks_;
  HoldId last_hold_ = 0;
  std::unique_ptr<Worker> worker_;
};

/// As many bytes, from buffers that lie as far apart as staging pages do.
class Copies {
 public:
  explicit Copies(const Options& options)
      : bytes_(options.kib << 10),
        stride_(bytes_ + 4096),
        blocks_(options.blocks),
        from_(blocks_ * stride_),
        to_(blocks_ * bytes_) {
    Random(kSeed).fill(from_);
  }

  double copy() {
    std::ranges::fill(to_, std::byte{0});
    const Instant begin = system_clock()->now();
    for (std::size_t b = 0; b < blocks_; ++b) {
      std::memcpy(to_.data() + b * bytes_, from_.data() + b * stride_ + kBlockHeaderBytes, bytes_);
    }
    const double took = nanoseconds_since(begin);
    KVC_CHECK(to_.back() == from_[(blocks_ - 1) * stride_ + kBlockHeaderBytes + bytes_ - 1],
              "the copy differs from its source");
    return took;
  }

 private:
  const std::size_t bytes_;
  const std::size_t stride_;
  const std::size_t blocks_;
  std::vector<std::byte> from_;
  std::vector<std::byte> to_;
};

void measure(const Options& options) {
  Instance rank(options);
  Copies copies(options);
  (void)rank.load();
  (void)copies.copy();
  std::vector<double> ours;
  std::vector<double> baseline;
  std::vector<double> ratios;
  for (std::size_t i = 0; i < options.samples; ++i) {
    if (i % 2 == 0) ours.push_back(rank.load());
    baseline.push_back(copies.copy());
    if (i % 2 != 0) ours.push_back(rank.load());
    ratios.push_back(baseline.back() / ours.back());
  }
  rank.check_that_the_store_was_not_asked(options.samples + 1);
  std::printf("{\"blocks\":%zu,\"block_bytes\":%zu,\"load_ms\":%.3f,\"memcpy_ms\":%.3f,",
              options.blocks, options.kib << 10, median(ours) / 1e6, median(baseline) / 1e6);
  std::printf("\"digest\":\"%s\",\"samples\":", rank.digest().c_str());
  print_samples(ratios);
  std::printf("}\n");
}

}  // namespace
}  // namespace kvc

int main(int argc, char** argv) {
  constexpr std::size_t kLargest = 65536;
  kvc::Options options;
  for (const std::string_view argument :
       std::span(argv, static_cast<std::size_t>(argc)).subspan(1)) {
    if (!kvc::parse_count(argument, "--samples=", kLargest, &options.samples) &&
        !kvc::parse_count(argument, "--blocks=", kLargest, &options.blocks) &&
        !kvc::parse_count(argument, "--kib=", kLargest, &options.kib)) {
      std::fprintf(stderr, "tier_load: '%s': use --samples=N, --blocks=N or --kib=N\n",
                   std::string(argument).c_str());
      return 2;
    }
  }
  kvc::measure(options);
  return 0;
}
