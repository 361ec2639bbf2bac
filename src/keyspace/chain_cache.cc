#include "keyspace/chain_cache.h"

#include <algorithm>
#include <utility>

namespace kvc {
namespace {

/// Of chains with one first block, such as that of a system prompt, those that are kept.
constexpr std::size_t kCandidates = 8;

/// Cheap, and wrong only if tokens differ before those at the end: assign() compares all.
bool seems_to_go_on(std::span<const Token> prompt, std::span<const Token> kept,
                    std::size_t block_tokens) {
  if (kept.size() > prompt.size()) return false;
  const std::size_t tail = std::min(kept.size(), block_tokens);
  return std::ranges::equal(kept.last(tail), prompt.subspan(kept.size() - tail, tail));
}

}  // namespace

bool same_media(const std::vector<MediaItem>& a, const std::vector<MediaItem>& b) {
  return std::ranges::equal(a, b, [](const MediaItem& x, const MediaItem& y) {
    return x.start == y.start && x.length == y.length && x.digest == y.digest;
  });
}

bool same_scope(const RequestScope& a, const RequestScope& b) {
  return a.cache_salt == b.cache_salt && a.lora == b.lora;
}

Result<BlockChain> ChainCache::take(const RequestScope& scope, const std::vector<MediaItem>& media,
                                    std::span<const Token> tokens) {
  Result<BlockChain> chain = BlockChain::create(options_, scope, media);
  if (!chain.ok()) return chain;
  const std::size_t first_tokens = std::min<std::size_t>(options_.tokens_per_block, tokens.size());
  if (Status status = chain->append(tokens.first(first_tokens)); !status.ok()) return status;
  const Match match = longest_match(*chain, scope, media, tokens);
  Status status;
  if (match.goes_on) {
    chain = take_out(match.entry);
    status = chain->assign(tokens);
  } else if (match.entry != entries_.end()) {
    status = chain->assign(tokens, match.entry->chain);
  } else {
    status = chain->assign(tokens);
  }
  if (!status.ok()) return status;
  return chain;
}

ChainCache::Match ChainCache::longest_match(const BlockChain& first_block,
                                            const RequestScope& scope,
                                            const std::vector<MediaItem>& media,
                                            std::span<const Token> tokens) {
  Match best{.entry = entries_.end(), .goes_on = false};
  if (first_block.blocks().empty()) return best;
  const auto found = by_first_block_.find(first_block.blocks().front());
  if (found == by_first_block_.end()) return best;
  const std::vector<Entries::iterator>& chains = found->second;
  std::size_t longest = 0;
  for (auto at = chains.rbegin(); at != chains.rend(); ++at) {
    const Entries::iterator entry = *at;
    if (!same_scope(entry->scope, scope) || !same_media(entry->media, media)) continue;
    const std::span<const Token> kept = entry->chain.tokens();
    if (seems_to_go_on(tokens, kept, options_.tokens_per_block)) {
      return {.entry = entry, .goes_on = true};
    }
    const std::size_t common = common_prefix(kept, tokens);
    if (common > longest) {
      longest = common;
      best.entry = entry;
    }
  }
  return best;
}

void ChainCache::keep(BlockChain chain, RequestScope scope, std::vector<MediaItem> media) {
  const std::size_t count = chain.tokens().size();
  if (chain.blocks().empty() || count > max_tokens_) return;
  const BlockHash first = chain.blocks().front();
  // Room first: an entry without its place in the index could not be taken out again.
  std::vector<Entries::iterator>& alike = by_first_block_[first];
  if (alike.size() == kCandidates) (void)take_out(alike.front());  // Nobody would look at it.
  alike.reserve(kCandidates);
  entries_.push_front({std::move(chain), std::move(scope), std::move(media)});
  alike.push_back(entries_.begin());
  tokens_ += count;
  while (tokens_ > max_tokens_) (void)take_out(std::prev(entries_.end()));
}

BlockChain ChainCache::take_out(Entries::iterator entry) {
  BlockChain chain = std::move(entry->chain);
  tokens_ -= chain.tokens().size();
  const auto found = by_first_block_.find(chain.blocks().front());
  std::erase(found->second, entry);
  if (found->second.empty()) by_first_block_.erase(found);
  entries_.erase(entry);
  return chain;
}

}  // namespace kvc
