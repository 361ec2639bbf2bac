#include "keyspace/chain_cache.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/random.h"
#include "testing/seed.h"

namespace kvc {
namespace {

constexpr std::uint32_t kBlock = 4;
const BlockHashOptions kOptions{kBlock, "secret"};

std::vector<Token> tokens_of(std::size_t count, std::uint64_t seed = 1) {
  Random random(seed);
  std::vector<Token> tokens(count);
  for (Token& token : tokens) token = static_cast<Token>(random.below(150000));
  return tokens;
}

MediaItem item(std::uint64_t start, std::uint64_t length, std::uint64_t seed = 1) {
  MediaItem made{.digest = std::vector<std::byte>(32), .start = start, .length = length};
  Random(seed).fill(made.digest);
  return made;
}

std::vector<BlockHash> names_of(const BlockChain& chain) {
  return {chain.blocks().begin(), chain.blocks().end()};
}

std::vector<BlockHash> anew(const RequestScope& scope, const std::vector<MediaItem>& media,
                            const std::vector<Token>& tokens) {
  Result<BlockChain> chain = BlockChain::create(kOptions, scope, media);
  EXPECT_TRUE(chain.ok() && chain->append(tokens).ok());
  return names_of(*chain);
}

/// Takes a chain out, compares its names with those of a new one, and gives it back.
void expect_right(ChainCache& cache, const RequestScope& scope, const std::vector<MediaItem>& media,
                  const std::vector<Token>& tokens) {
  Result<BlockChain> chain = cache.take(scope, media, tokens);
  ASSERT_TRUE(chain.ok()) << chain.status().to_string();
  EXPECT_EQ(names_of(*chain), anew(scope, media, tokens));
  EXPECT_TRUE(std::ranges::equal(chain->tokens(), tokens));
  cache.keep(std::move(chain).value(), scope, media);
}

TEST(BlockChainAssign, GivesTheNamesOfANewChainWhateverWasKnown) {
  Random random(testlib::test_seed(17));
  for (int round = 0; round < 300; ++round) {
    const std::vector<MediaItem> media = random.below(2) == 0
                                             ? std::vector<MediaItem>{}
                                             : std::vector<MediaItem>{item(2, 3, 1), item(9, 6, 2)};
    Result<BlockChain> chain = BlockChain::create(kOptions, {}, media);
    std::vector<Token> tokens;
    for (int turn = 0; turn < 6; ++turn) {
      tokens.resize(random.below(tokens.size() + 1));
      for (std::size_t more = random.below(20); more > 0; --more) {
        tokens.push_back(static_cast<Token>(random.below(3)));
      }
      ASSERT_TRUE(chain->assign(tokens).ok());
      EXPECT_EQ(names_of(*chain), anew({}, media, tokens));
    }
  }
}

TEST(BlockChainAssign, NegativeTokenLeavesWhatIsBeforeTheChange) {
  Result<BlockChain> chain = BlockChain::create(kOptions, {}, {});
  std::vector<Token> tokens = tokens_of(12);
  ASSERT_TRUE(chain->assign(tokens).ok());
  std::vector<Token> wrong = tokens;
  wrong[6] = -1;
  EXPECT_EQ(chain->assign(wrong).code(), Code::kInvalid);
  EXPECT_EQ(names_of(*chain), anew({}, {}, {tokens.begin(), tokens.begin() + 6}));
  ASSERT_TRUE(chain->assign(tokens).ok());
  EXPECT_EQ(names_of(*chain), anew({}, {}, tokens));
}

TEST(ChainCache, AConversationGoesOnInItsChain) {
  ChainCache cache(kOptions, 1000);
  std::vector<Token> tokens = tokens_of(3);
  for (std::size_t turn = 0; turn < 10; ++turn) {
    expect_right(cache, {}, {}, tokens);
    EXPECT_EQ(cache.chains(), tokens.size() < kBlock ? 0u : 1u);
    for (const Token token : tokens_of(5, turn + 2)) tokens.push_back(token);
  }
}

TEST(ChainCache, OtherScopesAndMediaHaveChainsOfTheirOwn) {
  ChainCache cache(kOptions, 1000);
  const std::vector<Token> tokens = tokens_of(24);
  const std::vector<RequestScope> scopes = {{},
                                            {.cache_salt = "5", .lora = {}},
                                            {.cache_salt = std::int64_t{5}, .lora = {}},
                                            {.cache_salt = "", .lora = {}},
                                            {.cache_salt = {}, .lora = "5"}};
  for (int round = 0; round < 2; ++round) {
    for (const RequestScope& scope : scopes) {
      expect_right(cache, scope, {}, tokens);
      // All three have one first block, which the items do not touch.
      expect_right(cache, scope, {item(8, 4, 1)}, tokens);
      expect_right(cache, scope, {item(8, 4, 2)}, tokens);
      expect_right(cache, scope, {item(9, 4, 1)}, tokens);
    }
  }
  EXPECT_EQ(cache.chains(), 4 * scopes.size());
}

TEST(ChainCache, ChainThatSeemsToGoOnIsComparedInFull) {
  ChainCache cache(kOptions, 1000);
  const std::vector<Token> tokens = tokens_of(24);
  expect_right(cache, {}, {}, tokens);
  std::vector<Token> other = tokens;
  other[13] += 1;  // Not in the first block, not at the end.
  other.push_back(7);
  expect_right(cache, {}, {}, other);
  expect_right(cache, {}, {}, tokens);
}

TEST(ChainCache, ConversationsWithOneBeginningDoNotTakeEachOthersChains) {
  ChainCache cache(kOptions, 10000);
  std::vector<std::vector<Token>> prompts;
  for (std::uint64_t user = 0; user < 4; ++user) {
    prompts.push_back(tokens_of(8));
    for (const Token token : tokens_of(16, user + 10)) prompts.back().push_back(token);
    expect_right(cache, {}, {}, prompts.back());
    EXPECT_EQ(cache.chains(), user + 1);
  }
  for (std::vector<Token>& prompt : prompts) {
    prompt.push_back(1);
    expect_right(cache, {}, {}, prompt);
    EXPECT_EQ(cache.chains(), 4u) << "its own chain went on";
  }
}

TEST(ChainCache, IsBoundedAndForgetsTheOldest) {
  constexpr std::size_t kMax = 100;
  ChainCache cache(kOptions, kMax);
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    expect_right(cache, {}, {}, tokens_of(8 + seed % 20, seed + 1));
    EXPECT_LE(cache.tokens(), kMax);
  }
  expect_right(cache, {}, {}, tokens_of(kMax + 1, 99));
  EXPECT_LE(cache.tokens(), kMax);
  EXPECT_GT(cache.chains(), 2u);
}

TEST(ChainCache, RandomConversations) {
  Random random(testlib::test_seed(17));
  ChainCache cache(kOptions, 200);
  std::vector<std::vector<Token>> talks(6);
  for (int turn = 0; turn < 2000; ++turn) {
    std::vector<Token>& talk = talks[random.below(talks.size())];
    if (random.below(8) == 0) talk.resize(random.below(talk.size() + 1));
    for (std::size_t more = random.below(9); more > 0 && talk.size() < 60; --more) {
      talk.push_back(static_cast<Token>(random.below(2)));
    }
    expect_right(cache, {}, {}, talk);
  }
}

TEST(ChainCache, WhatCannotBeHashedIsRefused) {
  ChainCache cache(kOptions, 100);
  expect_right(cache, {}, {}, tokens_of(12));
  EXPECT_EQ(cache.take({}, {item(0, 0)}, tokens_of(12)).status().code(), Code::kInvalid);
  std::vector<Token> wrong = tokens_of(12);
  wrong.push_back(-4);
  EXPECT_EQ(cache.take({}, {}, wrong).status().code(), Code::kInvalid);
}

}  // namespace
}  // namespace kvc
