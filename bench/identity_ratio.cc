// What a block's key costs over the hash that it cannot do without.
//
//   ours      append one more block of tokens to a BlockChain, format its shard key
//   baseline  SHA-256 of the very same bytes, in one reused EVP context of OpenSSL
//
// Both run over the blocks of one long prompt, one sample each in alternating order, so that drift
// of the machine hits both alike. Before anything is timed the digests of the baseline's messages
// are compared with the chain's: equal digests prove that both hash the same bytes.
//
//   identity_ratio [--samples=N] [--blocks=N]      prints one JSON object
#include <openssl/evp.h>

#include <algorithm>
#include <array>
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

#include "base/bytes.h"
#include "base/check.h"
#include "base/random.h"
#include "bench/result_digest.h"
#include "bench/samples.h"
#include "kvc/block_hash.h"
#include "kvc/clock.h"
#include "kvc/object_key.h"

namespace kvc {
namespace {

constexpr std::uint32_t kTokensPerBlock = 32;
constexpr std::uint64_t kSeed = 20240501;
constexpr std::string_view kBlockTag = "kvc1blck";
constexpr std::size_t kHashBytes = sizeof(BlockHash);
/// Tag, previous hash, token count, tokens, number of media items (docs/format/key.md).
constexpr std::size_t kMessageBytes = kBlockTag.size() + kHashBytes + sizeof(std::uint32_t) +
                                      kTokensPerBlock * sizeof(Token) + sizeof(std::uint32_t);

constexpr std::size_t kLargest = std::size_t{1} << 20;  // Of a count on the command line.

struct Options {
  std::size_t samples = 101;
  std::size_t blocks = 1024;
};

/// A reused context, reset the cheapest way that OpenSSL has: without naming the algorithm again.
class ReusedContext {
 public:
  ReusedContext() : context_(EVP_MD_CTX_new(), &EVP_MD_CTX_free) {
    KVC_CHECK(EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1, "no SHA-256");
  }

  void digest(const std::byte* message, std::size_t bytes, BlockHash* out) {
    KVC_CHECK(
        EVP_DigestInit_ex(context_.get(), nullptr, nullptr) == 1 &&
            EVP_DigestUpdate(context_.get(), message, bytes) == 1 &&
            EVP_DigestFinal_ex(context_.get(), reinterpret_cast<unsigned char*>(out->bytes.data()),
                               nullptr) == 1,
        "SHA-256 failed");
  }

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

std::vector<Token> make_prompt(std::size_t blocks) {
  Random random(kSeed);
  std::vector<Token> prompt(blocks * kTokensPerBlock);
  for (Token& token : prompt) token = static_cast<Token>(random.below(128000));
  return prompt;
}

BlockChain new_chain() {
  auto chain = BlockChain::create({kTokensPerBlock, ""}, {}, {});
  KVC_CHECK(chain.ok(), "a chain without scope is refused");
  return *std::move(chain);
}

std::span<const Token> tokens_of(const std::vector<Token>& prompt, std::size_t block) {
  return std::span(prompt).subspan(block * kTokensPerBlock, kTokensPerBlock);
}

/// The messages that the chain hashes, back to back. Checks each against the chain's own digest.
std::vector<std::byte> make_messages(const std::vector<Token>& prompt) {
  BlockChain chain = new_chain();
  KVC_CHECK(chain.append(prompt).ok(), "the prompt is refused");
  const std::span<const BlockHash> names = chain.blocks();

  std::vector<std::byte> messages(names.size() * kMessageBytes);
  ReusedContext context;
  // The root is no block: the first message starts from what hashing nothing but the scope gives,
  // which the chain does not show. It is hashed here as docs/format/key.md says: absent salt, no
  // LoRA.
  const std::string root_message = std::string("kvc1root") + '\0' + '\0';
  BlockHash previous;
  context.digest(as_bytes(root_message).data(), root_message.size(), &previous);
  for (std::size_t i = 0; i < names.size(); ++i) {
    std::byte* out = messages.data() + i * kMessageBytes;
    std::memcpy(out, kBlockTag.data(), kBlockTag.size());
    out += kBlockTag.size();
    std::memcpy(out, previous.bytes.data(), kHashBytes);
    out += kHashBytes;
    put_le(out, kTokensPerBlock);
    out += sizeof(std::uint32_t);
    for (const Token token : tokens_of(prompt, i)) {
      put_le(out, static_cast<std::uint32_t>(token));
      out += sizeof(std::uint32_t);
    }
    put_le(out, std::uint32_t{0});
    context.digest(messages.data() + i * kMessageBytes, kMessageBytes, &previous);
    KVC_CHECK(previous == names[i], "the baseline hashes other bytes than the chain");
  }
  return messages;
}

class Measurement {
 public:
  explicit Measurement(const Options& options)
      : prompt_(make_prompt(options.blocks)),
        messages_(make_messages(prompt_)),
        keys_(keyspace()) {}

  /// Nanoseconds per block.
  double time_keys() {
    BlockChain chain = new_chain();
    const std::size_t blocks = prompt_.size() / kTokensPerBlock;
    const Instant begin = clock_->now();
    for (std::size_t i = 0; i < blocks; ++i) {
      KVC_CHECK(chain.append(tokens_of(prompt_, i)).ok(), "the prompt is refused");
      const std::string key = keys_.shard(chain.blocks().back(), 0);
      key_digest_.add(std::string_view(key).substr(key.size() - 16));
    }
    return per_block(begin, blocks);
  }

  double time_baseline() {
    const std::size_t blocks = messages_.size() / kMessageBytes;
    BlockHash digest;
    const Instant begin = clock_->now();
    for (std::size_t i = 0; i < blocks; ++i) {
      context_.digest(messages_.data() + i * kMessageBytes, kMessageBytes, &digest);
      baseline_digest_.add(
          std::string_view(reinterpret_cast<const char*>(digest.bytes.data()), 16));
    }
    return per_block(begin, blocks);
  }

  std::string result() const { return key_digest_.hex() + baseline_digest_.hex(); }

 private:
  static Fingerprint keyspace() {
    Fingerprint fingerprint;
    Random(kSeed).fill(fingerprint);
    return fingerprint;
  }

  double per_block(Instant begin, std::size_t blocks) const {
    return static_cast<double>((clock_->now() - begin).count()) / static_cast<double>(blocks);
  }

  std::shared_ptr<const Clock> clock_ = system_clock();
  std::vector<Token> prompt_;
  std::vector<std::byte> messages_;
  ObjectKeys keys_;
  ReusedContext context_;
  ResultDigest key_digest_;
  ResultDigest baseline_digest_;
};

void measure(const Options& options) {
  Measurement measurement(options);
  measurement.time_keys();
  measurement.time_baseline();
  PairedSamples samples;
  for (std::size_t i = 0; i < options.samples; ++i) {
    samples.take([&] { return measurement.time_keys(); },
                 [&] { return measurement.time_baseline(); });
  }
  std::printf("{\"tokens_per_block\":%u,\"message_bytes\":%zu,\"blocks\":%zu,", kTokensPerBlock,
              kMessageBytes, options.blocks);
  std::printf("\"key_ns\":%.1f,\"sha256_ns\":%.1f,", median(samples.ours),
              median(samples.baseline));
  print_end(measurement.result(), samples.ratios());
}

}  // namespace
}  // namespace kvc

int main(int argc, char** argv) {
  kvc::Options options;
  if (!kvc::parse_counts(argc, argv, kvc::kLargest,
                         {{"--samples=", &options.samples}, {"--blocks=", &options.blocks}})) {
    return 2;
  }
  kvc::measure(options);
  return 0;
}
