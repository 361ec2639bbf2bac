// What it costs to name the blocks of a conversation that grew by one block.
//
//   ours      ChainCache::take() of the longer prompt, in a cache that has the shorter one: all
//             tokens that were known are compared, one block is hashed
//   baseline  memcmp of as many tokens
//
// The chain goes back into the cache, as at the end of a request, before the time is taken again.
//
//   requery [--samples=N] [--blocks=N]      prints one JSON object, samples in microseconds
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "bench/result_digest.h"
#include "bench/samples.h"
#include "keyspace/chain_cache.h"
#include "kvc/block_hash.h"
#include "kvc/clock.h"

namespace kvc {
namespace {

constexpr std::uint32_t kTokensPerBlock = 32;
constexpr std::size_t kTokensKept = std::size_t{4} << 20;
constexpr std::uint64_t kSeed = 20240501;

struct Options {
  std::size_t samples = 101;
  std::size_t blocks = 4096;
};

double microseconds_since(Instant begin) {
  return static_cast<double>((system_clock()->now() - begin).count()) / 1e3;
}

class Conversation {
 public:
  explicit Conversation(std::size_t tokens) : tokens_(tokens), known_(tokens) {
    Random random(kSeed);
    for (Token& token : tokens_) token = static_cast<Token>(random.below(128000));
    known_ = tokens_;
  }

  /// Names all blocks up to `tokens`; what an earlier call named is in the cache.
  double name(std::size_t tokens) {
    // The prompt of a request is a copy of its own, and just written.
    const std::vector<Token> prompt(tokens_.begin(), tokens_.begin() + static_cast<long>(tokens));
    const Instant begin = system_clock()->now();
    Result<BlockChain> chain = cache_.take({}, {}, prompt);
    const double took = microseconds_since(begin);
    KVC_CHECK(chain.ok() && chain->blocks().size() == tokens / kTokensPerBlock, "not named");
    last_ = chain->blocks().back();
    cache_.keep(std::move(chain).value(), {}, {});
    return took;
  }

  double compare(std::size_t tokens) {
    const std::vector<Token> prompt(tokens_.begin(), tokens_.begin() + static_cast<long>(tokens));
    const Instant begin = system_clock()->now();
    const int differs = std::memcmp(prompt.data(), known_.data(), tokens * sizeof(Token));
    const double took = microseconds_since(begin);
    KVC_CHECK(differs == 0, "a copy differs");
    return took;
  }

  /// Checks the last name against that of a chain that was hashed from the beginning.
  BlockHash checked_name(std::size_t tokens) const {
    Result<BlockChain> chain = BlockChain::create(options_, {}, {});
    KVC_CHECK(chain.ok() && chain->append(std::span(tokens_).first(tokens)).ok(), "not hashed");
    KVC_CHECK(chain->blocks().back() == last_, "another name than that of a new chain");
    return last_;
  }

 private:
  const BlockHashOptions options_{kTokensPerBlock, ""};
  std::vector<Token> tokens_;
  std::vector<Token> known_;
  ChainCache cache_{options_, kTokensKept};
  BlockHash last_;
};

void measure(const Options& options) {
  std::size_t tokens = options.blocks * kTokensPerBlock;
  Conversation conversation(tokens + options.samples * kTokensPerBlock);
  (void)conversation.name(tokens);
  PairedSamples samples;
  for (std::size_t i = 0; i < options.samples; ++i) {
    tokens += kTokensPerBlock;
    samples.take([&] { return conversation.name(tokens); },
                 [&] { return conversation.compare(tokens - kTokensPerBlock); });
  }
  ResultDigest digest;
  const BlockHash name = conversation.checked_name(tokens);
  digest.add(std::string_view(reinterpret_cast<const char*>(name.bytes.data()), name.bytes.size()));
  std::printf("{\"tokens\":%zu,\"memcmp_us\":%.3f,", options.blocks * kTokensPerBlock,
              median(samples.baseline));
  print_end(digest.hex(), samples.ours);
}

}  // namespace
}  // namespace kvc

int main(int argc, char** argv) {
  constexpr std::size_t kLargest = 65536;
  kvc::Options options;
  if (!kvc::parse_counts(argc, argv, kLargest,
                         {{"--samples=", &options.samples}, {"--blocks=", &options.blocks}})) {
    return 2;
  }
  kvc::measure(options);
  return 0;
}
