#include "kvc/block_hash.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <unordered_set>

#include "base/bytes.h"
#include "base/random.h"
#include "testing/seed.h"

namespace kvc {
namespace {

constexpr std::uint32_t kBlock = 8;

std::vector<Token> tokens_of(std::size_t count, std::uint64_t seed = 1) {
  Random random(seed);
  std::vector<Token> tokens(count);
  for (Token& token : tokens) token = static_cast<Token>(random.below(150000));
  return tokens;
}

std::vector<std::byte> digest_of(std::uint64_t seed, std::size_t size = 32) {
  std::vector<std::byte> digest(size);
  Random(seed).fill(digest);
  return digest;
}

struct Request {
  std::vector<Token> tokens = tokens_of(32);
  RequestScope scope;
  std::vector<MediaItem> media;
  BlockHashOptions options = {kBlock, ""};
};

std::vector<BlockHash> blocks_of(const Request& request) {
  Result<BlockChain> chain = BlockChain::create(request.options, request.scope, request.media);
  EXPECT_TRUE(chain.ok()) << chain.status().to_string();
  if (!chain.ok()) return {};
  EXPECT_TRUE(chain->append(request.tokens).ok());
  return {chain->blocks().begin(), chain->blocks().end()};
}

/// Leading blocks that two requests have in common.
std::size_t shared(const Request& a, const Request& b) {
  const std::vector<BlockHash> first = blocks_of(a);
  const std::vector<BlockHash> second = blocks_of(b);
  std::size_t count = 0;
  while (count < std::min(first.size(), second.size()) && first[count] == second[count]) ++count;
  // Chained: nothing after the first difference may agree again.
  for (std::size_t i = count; i < std::min(first.size(), second.size()); ++i) {
    EXPECT_NE(first[i], second[i]);
  }
  return count;
}

Request with_salt(CacheSalt salt) {
  Request request;
  request.scope.cache_salt = std::move(salt);
  return request;
}

Request with_media(std::vector<MediaItem> media) {
  Request request;
  request.media = std::move(media);
  return request;
}

TEST(BlockChain, NamesOnlyCompleteBlocks) {
  for (const std::size_t count : {0u, 1u, 7u, 8u, 9u, 15u, 16u, 17u}) {
    Request request;
    request.tokens = tokens_of(count);
    EXPECT_EQ(blocks_of(request).size(), count / kBlock) << count;
  }
}

TEST(BlockChain, HowTheTokensArriveDoesNotMatter) {
  const Request request;
  const std::vector<BlockHash> whole = blocks_of(request);
  Random random(testlib::test_seed(2));
  for (int round = 0; round < 50; ++round) {
    Result<BlockChain> chain = BlockChain::create(request.options, {}, {});
    ASSERT_TRUE(chain.ok());
    std::span<const Token> rest = request.tokens;
    while (!rest.empty()) {
      const std::size_t count = random.below(rest.size() + 1);
      ASSERT_TRUE(chain->append(rest.first(count)).ok());
      rest = rest.subspan(count);
    }
    EXPECT_TRUE(std::ranges::equal(chain->blocks(), whole));
    EXPECT_TRUE(std::ranges::equal(chain->tokens(), request.tokens));
  }
}

TEST(BlockChain, OneTokenChangesItsBlockAndAllLaterOnes) {
  const Request request;
  for (std::size_t at = 0; at < request.tokens.size(); ++at) {
    Request other = request;
    other.tokens[at] ^= 1;
    EXPECT_EQ(shared(request, other), at / kBlock) << at;
  }
}

TEST(BlockChain, EqualTokensInAnotherPlaceHaveAnotherName) {
  Request request;
  request.tokens.assign(64, 7);
  const std::vector<BlockHash> blocks = blocks_of(request);
  EXPECT_EQ((std::set<BlockHash>(blocks.begin(), blocks.end())).size(), 8u);
}

TEST(BlockChain, ANegativeTokenIsRefusedAndNothingAppended) {
  Result<BlockChain> chain = BlockChain::create({kBlock, ""}, {}, {});
  ASSERT_TRUE(chain.ok());
  ASSERT_TRUE(chain->append(tokens_of(9)).ok());
  std::vector<Token> bad = tokens_of(20);
  bad[13] = -3;
  const Status status = chain->append(bad);
  EXPECT_EQ(status.code(), Code::kInvalid);
  EXPECT_NE(status.message().find("token 22 is -3"), std::string::npos) << status.message();
  EXPECT_EQ(chain->tokens().size(), 9u);
  EXPECT_EQ(chain->blocks().size(), 1u);
  bad[13] = std::numeric_limits<Token>::min();
  EXPECT_FALSE(chain->append(bad).ok());
  bad[13] = std::numeric_limits<Token>::max();
  EXPECT_TRUE(chain->append(bad).ok());
}

TEST(BlockChain, TheBlockSizeIsPartOfTheName) {
  Request small;
  Request large;
  large.options.tokens_per_block = 16;
  EXPECT_EQ(shared(small, large), 0u);
}

TEST(BlockChain, EveryScopeHasNamesOfItsOwn) {
  const std::int64_t smallest = std::numeric_limits<std::int64_t>::min();
  const std::uint64_t largest = std::numeric_limits<std::uint64_t>::max();
  const std::vector<CacheSalt> salts = {{},
                                        "",
                                        "5",
                                        std::int64_t{5},
                                        std::int64_t{-5},
                                        std::int64_t{0},
                                        smallest,
                                        largest,
                                        "X",
                                        "\x05",
                                        "absent",
                                        "null",
                                        "0",
                                        "-5",
                                        std::string("\0", 1),
                                        std::string("5\0\0\0\0\0\0\0", 8)};
  const std::vector<std::optional<std::string>> loras = {std::nullopt, "",   "X",
                                                         "5",          "XX", std::string("\0", 1)};
  std::map<BlockHash, std::string> seen;
  int scopes = 0;
  for (std::size_t salt = 0; salt < salts.size(); ++salt) {
    for (std::size_t lora = 0; lora < loras.size(); ++lora) {
      for (const char* secret : {"", "X", "XX", "5"}) {
        Request request = with_salt(salts[salt]);
        request.scope.lora = loras[lora];
        request.options.deployment_secret = secret;
        ++scopes;
        for (const BlockHash& block : blocks_of(request)) {
          const std::string name =
              std::to_string(salt) + " " + std::to_string(lora) + " '" + secret + "'";
          const auto [at, inserted] = seen.emplace(block, name);
          EXPECT_TRUE(inserted) << name << " equals " << at->second;
        }
      }
    }
  }
  EXPECT_EQ(seen.size(), 4u * static_cast<std::size_t>(scopes));
}

TEST(BlockChain, EqualNumbersAreEqualSaltsWhateverTheirType) {
  EXPECT_EQ(shared(with_salt(std::int64_t{5}), with_salt(std::uint64_t{5})), 4u);
  EXPECT_EQ(
      shared(with_salt(std::int64_t{-1}), with_salt(std::numeric_limits<std::uint64_t>::max())),
      0u);
}

TEST(BlockChain, ConcatenationOfSaltAndLoraIsNoTrap) {
  Request first = with_salt("ab");
  first.scope.lora = "c";
  Request second = with_salt("a");
  second.scope.lora = "bc";
  EXPECT_EQ(shared(first, second), 0u);
  Request third = with_salt("abc");
  EXPECT_EQ(shared(first, third), 0u);
}

TEST(BlockChain, TextBeforeAMediaItemIsSharedAndNothingAfter) {
  const Request text;
  for (std::uint64_t start = 0; start < 32; ++start) {
    for (const std::uint64_t length : {1u, 3u, 8u, 9u, 20u}) {
      const Request first = with_media({{digest_of(1), start, length}});
      const Request second = with_media({{digest_of(2), start, length}});
      EXPECT_EQ(shared(first, second), start / kBlock) << start << " " << length;
      EXPECT_EQ(shared(first, text), start / kBlock) << start << " " << length;
      EXPECT_EQ(shared(first, first), 4u);
    }
  }
}

TEST(BlockChain, TheSameItemAtAnotherPlaceOrLengthDiffersFromTheFirstBlockItTouches) {
  for (std::uint64_t start = 0; start < 31; ++start) {
    for (std::uint64_t length = 1; length < 20; ++length) {
      const Request here = with_media({{digest_of(1), start, length}});
      const Request later = with_media({{digest_of(1), start + 1, length}});
      const Request longer = with_media({{digest_of(1), start, length + 1}});
      EXPECT_EQ(shared(here, later), start / kBlock) << start << " " << length;
      EXPECT_EQ(shared(here, longer), start / kBlock) << start << " " << length;
    }
  }
}

// That an item is named in every block it touches, not only in the first, cannot be seen through
// the chain; the golden vector "media straddling" pins it.
TEST(BlockChain, AnItemThatEndsInABlockDiffersFromOneThatStartsThere) {
  const Request ends = with_media({{digest_of(1), 4, 8}});
  const Request split = with_media({{digest_of(1), 4, 4}, {digest_of(1), 8, 4}});
  EXPECT_EQ(shared(ends, split), 0u);
  const Request apart = with_media({{digest_of(1), 4, 3}, {digest_of(1), 8, 4}});
  EXPECT_EQ(shared(apart, split), 0u);
}

TEST(BlockChain, OrderAndNumberOfItemsInABlockMatter) {
  const auto a = digest_of(1);
  const auto b = digest_of(2);
  const Request both = with_media({{a, 0, 2}, {b, 2, 2}});
  const Request swapped = with_media({{b, 0, 2}, {a, 2, 2}});
  const Request one = with_media({{a, 0, 2}});
  EXPECT_EQ(shared(both, swapped), 0u);
  EXPECT_EQ(shared(both, one), 0u);
  std::vector<std::byte> joined = a;
  joined.insert(joined.end(), b.begin(), b.end());
  EXPECT_EQ(shared(both, with_media({{joined, 0, 4}})), 0u);
}

TEST(BlockChain, DigestsThatAgreeInAPartDiffer) {
  for (const std::size_t low_bytes : {2u, 4u, 8u, 15u}) {
    for (const bool at_front : {true, false}) {
      std::vector<std::byte> first = digest_of(1, 16);
      std::vector<std::byte> second = digest_of(2, 16);
      const std::size_t from = at_front ? 0 : 16 - low_bytes;
      std::copy_n(first.begin() + static_cast<std::ptrdiff_t>(from), low_bytes,
                  second.begin() + static_cast<std::ptrdiff_t>(from));
      EXPECT_EQ(shared(with_media({{first, 8, 4}}), with_media({{second, 8, 4}})), 1u);
    }
  }
}

TEST(BlockChain, AHundredThousandMediaIdentitiesDoNotCollide) {
  const std::vector<Token> tokens = tokens_of(kBlock);
  std::unordered_set<BlockHash, BlockHashHasher> names;
  std::set<std::uint64_t> low_halves;
  for (std::uint64_t id = 0; id < 100000; ++id) {
    Result<BlockChain> chain = BlockChain::create({kBlock, ""}, {}, {{digest_of(id), 0, 4}});
    ASSERT_TRUE(chain.ok());
    ASSERT_TRUE(chain->append(tokens).ok());
    names.insert(chain->blocks()[0]);
    low_halves.insert(get_le<std::uint64_t>(chain->blocks()[0].bytes.data() + 24));
  }
  EXPECT_EQ(names.size(), 100000u);
  EXPECT_EQ(low_halves.size(), 100000u) << "the end of the name carries no entropy";
}

TEST(BlockChain, MediaThatIdentifiesNothingIsRefused) {
  const auto refusal = [](std::vector<MediaItem> media) {
    return BlockChain::create({kBlock, ""}, {}, std::move(media)).status();
  };
  const std::uint64_t far = std::numeric_limits<std::uint64_t>::max();
  EXPECT_EQ(refusal({{{}, 0, 1}}).code(), Code::kInvalid);
  EXPECT_EQ(refusal({{digest_of(1, 15), 0, 1}}).code(), Code::kInvalid);
  EXPECT_EQ(refusal({{digest_of(1, 1025), 0, 1}}).code(), Code::kInvalid);
  EXPECT_EQ(refusal({{digest_of(1), 0, 0}}).code(), Code::kInvalid);
  EXPECT_EQ(refusal({{digest_of(1), far, 1}}).code(), Code::kInvalid);
  EXPECT_EQ(refusal({{digest_of(1), 1, far}}).code(), Code::kInvalid);
  EXPECT_EQ(refusal({{digest_of(1), 0, 4}, {digest_of(2), 3, 4}}).code(), Code::kInvalid);
  EXPECT_EQ(refusal({{digest_of(1), 8, 4}, {digest_of(2), 0, 4}}).code(), Code::kInvalid);
  EXPECT_NE(refusal({{digest_of(1), 8, 4}, {digest_of(2, 3), 20, 4}})
                .message()
                .find("media item 1 has a digest of 3 bytes"),
            std::string::npos);
  EXPECT_TRUE(refusal({{digest_of(1, 16), 0, 4}, {digest_of(2, 1024), 4, 4}}).ok());
}

TEST(BlockChain, MediaBehindThePromptsEndDoesNoHarm) {
  const Request request = with_media({{digest_of(1), 1000, 50}});
  EXPECT_EQ(shared(request, Request()), 4u);
}

TEST(BlockChain, OptionsOutOfRangeAreRefused) {
  EXPECT_EQ(BlockChain::create({0, ""}, {}, {}).status().code(), Code::kInvalid);
  EXPECT_EQ(BlockChain::create({~0u, ""}, {}, {}).status().code(), Code::kInvalid);
  const std::string huge(2u << 20, 'x');
  EXPECT_EQ(BlockChain::create({kBlock, huge}, {}, {}).status().code(), Code::kInvalid);
  EXPECT_EQ(BlockChain::create({kBlock, ""}, {CacheSalt(huge), {}}, {}).status().code(),
            Code::kInvalid);
  EXPECT_EQ(BlockChain::create({kBlock, ""}, {{}, huge}, {}).status().code(), Code::kInvalid);
}

TEST(BlockChain, MovesAndGoesOn) {
  const Request request;
  const std::span<const Token> tokens = request.tokens;
  Result<BlockChain> chain = BlockChain::create(request.options, {}, {});
  ASSERT_TRUE(chain.ok());
  ASSERT_TRUE(chain->append(tokens.first(13)).ok());
  BlockChain moved = std::move(chain).value();
  ASSERT_TRUE(moved.append(tokens.subspan(13)).ok());
  EXPECT_TRUE(std::ranges::equal(moved.blocks(), blocks_of(request)));
}

// Identity tuples of small alphabets, so that near misses are common: names are equal exactly when
// the tuples are.
TEST(BlockChain, RandomTuplesAreEqualExactlyWhenTheirFieldsAre) {
  Random random(testlib::test_seed(3));
  const std::vector<CacheSalt> salts = {{}, "", "1", "x", std::int64_t{1}, std::int64_t{-1}};
  const std::vector<std::optional<std::string>> loras = {std::nullopt, "", "1", "x"};
  std::map<BlockHash, std::string> seen;
  for (int round = 0; round < 5000; ++round) {
    Request request;
    const std::size_t salt = random.below(salts.size());
    const std::size_t lora = random.below(loras.size());
    request.scope = {salts[salt], loras[lora]};
    request.options.deployment_secret = random.below(2) == 0 ? "" : "x";
    for (Token& token : request.tokens) token = 0;
    request.tokens.resize(std::size_t{2} * kBlock);
    request.tokens[random.below(request.tokens.size())] = static_cast<Token>(random.below(2));
    std::uint64_t position = random.below(4);
    for (std::uint64_t items = random.below(3); items > 0; --items) {
      request.media.push_back({digest_of(random.below(2)), position, 1 + random.below(9)});
      position += request.media.back().length + random.below(2);
    }
    // The second block's name stands for everything that touches the first two blocks, and for
    // nothing else.
    std::string name = std::to_string(salt) + "/" + std::to_string(lora) + "/" +
                       request.options.deployment_secret + "/";
    for (const MediaItem& item : request.media) {
      if (item.start >= request.tokens.size()) continue;
      name += hex_encode(std::span<const std::byte>(item.digest).first(4)) + "@" +
              std::to_string(item.start) + "+" + std::to_string(item.length) + ",";
    }
    for (const Token token : request.tokens) name += static_cast<char>('0' + token);
    const auto [at, inserted] = seen.emplace(blocks_of(request)[1], name);
    EXPECT_EQ(at->second, name);
  }
  EXPECT_GT(seen.size(), 1000u);
}

TEST(CommonPrefix, EndsAtTheFirstTokenThatDiffersWhereverItIs) {
  const std::vector<Token> tokens = tokens_of(5000);
  EXPECT_EQ(common_prefix(tokens, tokens), tokens.size());
  EXPECT_EQ(common_prefix(tokens, {}), 0u);
  for (const std::size_t at : {0u, 1u, 1023u, 1024u, 1025u, 2047u, 2048u, 4095u, 4096u, 4999u}) {
    std::vector<Token> other = tokens;
    ++other[at];
    EXPECT_EQ(common_prefix(tokens, other), at);
    EXPECT_EQ(common_prefix(tokens, std::span(tokens).first(at)), at);
    EXPECT_EQ(common_prefix(std::span(tokens).first(at), tokens), at);
  }
}

}  // namespace
}  // namespace kvc
