// Chains of requests that are over, for the next request with the same beginning: the next turn of
// a conversation hashes what is new, and compares the rest.
#pragma once

#include <cstddef>
#include <list>
#include <span>
#include <unordered_map>
#include <vector>

#include "kvc/block_hash.h"
#include "kvc/result.h"

namespace kvc {

bool same_scope(const RequestScope& a, const RequestScope& b);
bool same_media(const std::vector<MediaItem>& a, const std::vector<MediaItem>& b);

/// Not thread-safe. What it returns is what BlockChain::create() and append() would: names come
/// from chains whose scope, media and tokens were compared in full.
class ChainCache {
 public:
  /// At most `max_tokens` are kept, and few chains with the same first block: those used last.
  /// `options` must outlive the cache.
  ChainCache(const BlockHashOptions& options, std::size_t max_tokens)
      : options_(options), max_tokens_(max_tokens) {}

  /// A chain of `tokens`, with the names of a kept one that has a beginning in common with them.
  /// One that ends where they go on is taken out for it. Errors: as of BlockChain.
  Result<BlockChain> take(const RequestScope& scope, const std::vector<MediaItem>& media,
                          std::span<const Token> tokens);

  /// Keeps a chain that nobody needs any more, of a request with this scope and these media.
  void keep(BlockChain chain, RequestScope scope, std::vector<MediaItem> media);

  std::size_t tokens() const { return tokens_; }
  std::size_t chains() const { return entries_.size(); }

 private:
  struct Entry {
    BlockChain chain;
    RequestScope scope;
    std::vector<MediaItem> media;
  };
  using Entries = std::list<Entry>;  // Used last first.

  struct Match {
    Entries::iterator entry;  // entries_.end(): none.
    bool goes_on = false;     // All of it is, by its looks, the beginning of the prompt.
  };

  Match longest_match(const BlockChain& first_block, const RequestScope& scope,
                      const std::vector<MediaItem>& media, std::span<const Token> tokens);
  BlockChain take_out(Entries::iterator entry);

  const BlockHashOptions& options_;
  const std::size_t max_tokens_;
  Entries entries_;
  std::size_t tokens_ = 0;
  // By the name of their first block, oldest first.
  std::unordered_map<BlockHash, std::vector<Entries::iterator>, BlockHashHasher> by_first_block_;
};

}  // namespace kvc
