// Micro-benchmarks of what every block costs on its way: name, seal, verify, page copy, plan.
//
// Absolute times of one machine, for finding where time goes; the claims with bars are ratios in
// results.json (bench/run.py). Each benchmark shows a digest of its result as its label.
#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "bench/result_digest.h"
#include "kvc/block_format.h"
#include "kvc/block_hash.h"
#include "kvc/device.h"
#include "kvc/layout.h"
#include "kvc/object_key.h"
#include "kvc/step_plan.h"

namespace kvc {
namespace {

constexpr std::uint32_t kTokensPerBlock = 32;
constexpr std::int64_t kSmallPayload = 64 << 10;
constexpr std::int64_t kLargePayload = 4 << 20;

std::vector<std::byte> random_bytes(std::size_t count) {
  std::vector<std::byte> bytes(count);
  Random(count).fill(bytes);
  return bytes;
}

std::size_t argument(const benchmark::State& state) {
  return static_cast<std::size_t>(state.range(0));
}

void finish(benchmark::State& state, std::size_t bytes, const ResultDigest& digest) {
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(bytes));
  state.SetLabel("result " + digest.hex());
}

BlockDescription describe(std::size_t payload_bytes) {
  BlockDescription description;
  description.token_count = kTokensPerBlock;
  description.payload_bytes = payload_bytes;
  return description;
}

/// A whole prompt at once, as a lookup hashes it.
void bm_name_prompt(benchmark::State& state) {
  const std::size_t blocks = argument(state);
  std::vector<Token> prompt(blocks * kTokensPerBlock);
  Random random(1);
  for (Token& token : prompt) token = static_cast<Token>(random.below(128000));
  const ObjectKeys keys{Fingerprint{}};
  ResultDigest digest;
  for (auto _ : state) {
    auto chain = BlockChain::create({kTokensPerBlock, ""}, {}, {});
    KVC_CHECK(chain.ok() && chain->append(prompt).ok(), "the prompt is refused");
    for (const BlockHash& block : chain->blocks()) benchmark::DoNotOptimize(keys.manifest(block));
    digest = {};
    digest.add(keys.manifest(chain->blocks().back()));
  }
  finish(state, prompt.size() * sizeof(Token), digest);
}
BENCHMARK(bm_name_prompt)->Arg(32)->Arg(1024);

void bm_seal_block(benchmark::State& state) {
  std::vector<std::byte> object = random_bytes(kBlockHeaderBytes + argument(state));
  const BlockDescription description = describe(argument(state));
  for (auto _ : state) {
    seal_block(description, object);
    benchmark::ClobberMemory();
  }
  ResultDigest digest;
  digest.add(std::string_view(reinterpret_cast<const char*>(object.data()), kBlockHeaderBytes));
  finish(state, argument(state), digest);
}
BENCHMARK(bm_seal_block)->Arg(kSmallPayload)->Arg(kLargePayload);

void bm_verify_block(benchmark::State& state) {
  std::vector<std::byte> object = random_bytes(kBlockHeaderBytes + argument(state));
  const BlockDescription description = describe(argument(state));
  seal_block(description, object);
  ResultDigest digest;
  for (auto _ : state) {
    const Rejection rejection = verify_block(description, object);
    KVC_CHECK(rejection == Rejection::kNone, "an intact block was rejected");
  }
  digest.add(std::string_view(reinterpret_cast<const char*>(object.data()), kBlockHeaderBytes));
  finish(state, argument(state), digest);
}
BENCHMARK(bm_verify_block)->Arg(kSmallPayload)->Arg(kLargePayload);

/// Pages are taken in turn, as a real pool gives them, and not one page that stays in the cache.
void bm_copy_page_out(benchmark::State& state) {
  constexpr std::size_t kSlots = 16;
  std::vector<std::byte> pool = random_bytes(kSlots * argument(state));
  std::vector<std::byte> staging(argument(state));
  const PageGroup group{{0}, {{pool.data(), argument(state), argument(state), kSlots}}, 0};
  const auto copier = make_host_page_copier();
  ResultDigest digest;
  std::size_t slot = 0;
  for (auto _ : state) {
    const Status status = copier->copy_out(group, static_cast<SlotIndex>(slot), staging, 0);
    KVC_CHECK(status.ok(), "a page was not copied");
    slot = (slot + 1) % kSlots;
  }
  KVC_CHECK(copier->copy_out(group, 0, staging, 0).ok(), "a page was not copied");
  digest.add(std::string_view(reinterpret_cast<const char*>(staging.data()), 64));
  finish(state, argument(state), digest);
}
BENCHMARK(bm_copy_page_out)->Arg(kSmallPayload)->Arg(kLargePayload);

/// The plan of a step crosses the ranks as bytes in every step.
void bm_step_plan(benchmark::State& state) {
  StepPlan plan;
  for (std::size_t i = 0; i < argument(state); ++i) {
    PageTask task;
    task.request = i / 8;
    task.slot = static_cast<SlotIndex>(i);
    (i % 2 == 0 ? plan.loads : plan.saves).push_back(task);
  }
  ResultDigest digest;
  std::size_t bytes = 0;
  for (auto _ : state) {
    const std::string encoded = encode_step_plan(plan);
    const auto decoded =
        decode_step_plan({reinterpret_cast<const std::byte*>(encoded.data()), encoded.size()});
    KVC_CHECK(decoded.ok() && decoded->loads.size() == plan.loads.size(), "a plan got lost");
    bytes = encoded.size();
    digest = {};
    digest.add(std::string_view(encoded));
  }
  finish(state, bytes, digest);
}
BENCHMARK(bm_step_plan)->Arg(64)->Arg(4096);

}  // namespace
}  // namespace kvc

BENCHMARK_MAIN();
