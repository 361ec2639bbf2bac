// The hash of a block, in its only implementation. A message is put together in one buffer whose
// head (tag, previous hash, tokens, item count) has the same size for every block of a chain, so
// that a block costs one pass over contiguous bytes and no allocation. With 32 tokens and no media
// it has 176 bytes: as many SHA-256 rounds as the tokens alone would take.
#include "kvc/block_hash.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/planted.h"
#include "keyspace/sha256.h"

namespace kvc {
namespace {

constexpr std::string_view kRootTag = "kvc1root";
constexpr std::string_view kSecretRootTag = "kvc1hmac";
constexpr std::string_view kBlockTag = "kvc1blck";

constexpr std::size_t kTagBytes = 8;
constexpr std::size_t kPreviousAt = kTagBytes;
constexpr std::size_t kTokenCountAt = kPreviousAt + sizeof(BlockHash);
constexpr std::size_t kTokensAt = kTokenCountAt + sizeof(std::uint32_t);

static_assert(kRootTag.size() == kTagBytes && kSecretRootTag.size() == kTagBytes &&
              kBlockTag.size() == kTagBytes);
static_assert(sizeof(BlockHash) == sizeof(Sha256Digest));
static_assert(sizeof(Token) == sizeof(std::uint32_t));

constexpr std::size_t kDigestBytesMin = 16;
constexpr std::size_t kDigestBytesMax = 1024;
/// 2^20 tokens of 4 bytes: far above any engine's block, far below any overflow.
constexpr std::uint32_t kTokensPerBlockMax = 1u << 20;
/// Keeps the distance of an item from any block within 64 signed bits.
constexpr std::uint64_t kPositionMax = std::uint64_t{1} << 62;

/// In the encoding; do not change the values.
enum class SaltType : std::uint8_t { kAbsent = 0, kText = 1, kInteger = 2, kNegativeInteger = 3 };

void write_salt(const CacheSalt& salt, ByteWriter* writer) {
  const auto type = [writer](SaltType value) { writer->u8(static_cast<std::uint8_t>(value)); };
  if (const auto* text = std::get_if<std::string>(&salt)) {
    type(SaltType::kText);
    writer->text(*text);
  } else if (const auto* integer = std::get_if<std::int64_t>(&salt)) {
    type(*integer < 0 ? SaltType::kNegativeInteger : SaltType::kInteger);
    writer->i64(*integer);
  } else if (const auto* natural = std::get_if<std::uint64_t>(&salt)) {
    type(SaltType::kInteger);
    writer->u64(*natural);
  } else {
    type(SaltType::kAbsent);
  }
}

BlockHash root_of(const RequestScope& scope, const std::string& secret) {
  std::vector<std::byte> message;
  ByteWriter writer(&message);
  writer.raw(as_bytes(secret.empty() ? kRootTag : kSecretRootTag));
  write_salt(KVC_PLANTED("hash_without_salt") ? CacheSalt() : scope.cache_salt, &writer);
  writer.u8(scope.lora.has_value() ? 1 : 0);
  if (scope.lora.has_value()) writer.text(*scope.lora);

  BlockHash root;
  if (secret.empty()) {
    Sha256 hash;
    hash.digest(message, &root.bytes);
  } else {
    root.bytes = hmac_sha256(as_bytes(secret), message);
  }
  return root;
}

Status check_item(const MediaItem& item, std::uint64_t previous_end, std::size_t index) {
  const std::string name = "media item " + std::to_string(index);
  if (item.digest.size() < kDigestBytesMin || item.digest.size() > kDigestBytesMax) {
    return invalid(name + " has a digest of " + std::to_string(item.digest.size()) +
                   " bytes: " + std::to_string(kDigestBytesMin) + " to " +
                   std::to_string(kDigestBytesMax) + " identify a content");
  }
  if (item.length == 0) return invalid(name + " has length 0");
  if (item.start > kPositionMax || item.length > kPositionMax) {
    return invalid(name + " at " + std::to_string(item.start) + " with length " +
                   std::to_string(item.length) + " is out of range");
  }
  if (item.start < previous_end) {
    return invalid(name + " starts at " + std::to_string(item.start) +
                   ", before the end of the one before it at " + std::to_string(previous_end));
  }
  return {};
}

Status check_scope(const BlockHashOptions& options, const RequestScope& scope) {
  if (options.tokens_per_block == 0 || options.tokens_per_block > kTokensPerBlockMax) {
    return invalid("tokens_per_block is " + std::to_string(options.tokens_per_block) +
                   ": must be 1 to " + std::to_string(kTokensPerBlockMax));
  }
  constexpr std::size_t kTextMax = 1u << 20;
  const auto* salt = std::get_if<std::string>(&scope.cache_salt);
  if (salt != nullptr && salt->size() > kTextMax) return invalid("cache salt above 1 MiB");
  if (scope.lora.has_value() && scope.lora->size() > kTextMax) {
    return invalid("LoRA identity above 1 MiB");
  }
  if (options.deployment_secret.size() > kTextMax) return invalid("deployment secret above 1 MiB");
  return {};
}

}  // namespace

std::string to_hex(const BlockHash& hash) { return hex_encode(hash.bytes); }

std::size_t BlockHashHasher::operator()(const BlockHash& hash) const noexcept {
  return static_cast<std::size_t>(get_le<std::uint64_t>(hash.bytes.data()));
}

struct BlockChain::State {
  std::size_t tokens_per_block = 0;
  std::vector<MediaItem> media;
  std::vector<Token> tokens;
  std::vector<BlockHash> blocks;
  BlockHash root;
  BlockHash previous;
  /// The message of the next block; its head, up to the count of media items, keeps its size.
  std::vector<std::byte> message;
  /// First item that does not end before the next block.
  std::size_t media_at = 0;
  Sha256 hash;

  std::size_t item_count_at() const { return kTokensAt + tokens_per_block * sizeof(Token); }
  std::size_t head_bytes() const { return item_count_at() + sizeof(std::uint32_t); }

  void start_message() {
    message.resize(head_bytes());
    std::memcpy(message.data(), kBlockTag.data(), kTagBytes);
    put_le(message.data() + kTokenCountAt, static_cast<std::uint32_t>(tokens_per_block));
  }

  void write_tokens(std::size_t first) {
    std::byte* out = message.data() + kTokensAt;
    if constexpr (std::endian::native == std::endian::little) {
      std::memcpy(out, tokens.data() + first, tokens_per_block * sizeof(Token));
    } else {
      for (std::size_t i = 0; i < tokens_per_block; ++i) {
        put_le(out + i * sizeof(Token), static_cast<std::uint32_t>(tokens[first + i]));
      }
    }
  }

  /// Each item that touches [first, first + tokens_per_block), with its distance from the block's
  /// first token. Distance and length fix which part of the item lies in the block.
  void write_media(std::uint64_t first) {
    const std::uint64_t end = first + tokens_per_block;
    while (media_at < media.size() && media[media_at].start + media[media_at].length <= first) {
      ++media_at;
    }
    std::size_t item_end = media_at;
    while (item_end < media.size() && media[item_end].start < end) ++item_end;

    put_le(message.data() + item_count_at(), static_cast<std::uint32_t>(item_end - media_at));
    ByteWriter writer(&message);
    for (std::size_t i = media_at; i < item_end; ++i) {
      writer.blob(media[i].digest);
      writer.i64(static_cast<std::int64_t>(media[i].start) - static_cast<std::int64_t>(first));
      writer.u64(media[i].length);
    }
  }

  void go_back_to(std::size_t count) {
    tokens.resize(count);
    blocks.resize(count / tokens_per_block);
    previous = blocks.empty() ? root : blocks.back();
    media_at = 0;
  }

  void add_block() {
    const std::size_t first = blocks.size() * tokens_per_block;
    if (!KVC_PLANTED("hash_without_parent")) {
      std::memcpy(message.data() + kPreviousAt, previous.bytes.data(), sizeof(BlockHash));
    }
    write_tokens(first);
    message.resize(head_bytes());  // Without what a block before that came to nothing has left.
    write_media(first);
    BlockHash& name = blocks.emplace_back();
    hash.digest(message, &name.bytes);
    previous = name;
  }
};

std::size_t common_prefix(std::span<const Token> a, std::span<const Token> b) {
  // memcmp() compares several tokens at once; the piece that differs is looked through one by one.
  constexpr std::size_t kPiece = 1024;
  const std::size_t count = std::min(a.size(), b.size());
  std::size_t same = 0;
  while (count - same >= kPiece &&
         std::memcmp(a.data() + same, b.data() + same, kPiece * sizeof(Token)) == 0) {
    same += kPiece;
  }
  while (same < count && a[same] == b[same]) ++same;
  return same;
}

BlockChain::BlockChain(std::unique_ptr<State> state) : state_(std::move(state)) {}
BlockChain::BlockChain(BlockChain&&) noexcept = default;
BlockChain& BlockChain::operator=(BlockChain&&) noexcept = default;
BlockChain::~BlockChain() = default;

Result<BlockChain> BlockChain::create(const BlockHashOptions& options, const RequestScope& scope,
                                      std::vector<MediaItem> media) {
  Status status = check_scope(options, scope);
  if (!status.ok()) return status;
  std::uint64_t previous_end = 0;
  for (std::size_t i = 0; i < media.size(); ++i) {
    status = check_item(media[i], previous_end, i);
    if (!status.ok()) return status;
    previous_end = media[i].start + media[i].length;
  }
  auto state = std::make_unique<State>();
  state->tokens_per_block = options.tokens_per_block;
  state->media = std::move(media);
  state->root = state->previous = root_of(scope, options.deployment_secret);
  state->start_message();
  return BlockChain(std::move(state));
}

Status BlockChain::append(std::span<const Token> tokens) {
  State& state = *state_;
  Token signs = 0;
  for (const Token token : tokens) signs |= token;
  if (signs < 0) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i] < 0) {
        return invalid("token " + std::to_string(state.tokens.size() + i) + " is " +
                       std::to_string(tokens[i]) + ": token ids are not negative");
      }
    }
  }
  state.tokens.insert(state.tokens.end(), tokens.begin(), tokens.end());
  const std::size_t complete = state.tokens.size() / state.tokens_per_block;
  while (state.blocks.size() < complete) state.add_block();
  return {};
}

Status BlockChain::assign(std::span<const Token> tokens) {
  State& state = *state_;
  const std::size_t same = common_prefix(state.tokens, tokens);
  if (same < state.tokens.size()) state.go_back_to(same);
  return append(tokens.subspan(same));
}

Status BlockChain::assign(std::span<const Token> tokens, const BlockChain& other) {
  State& state = *state_;
  const std::size_t block_tokens = state.tokens_per_block;
  // Of a chain that ran out of memory, the last tokens are in no block.
  const std::size_t blocks = std::min(common_prefix(other.state_->tokens, tokens) / block_tokens,
                                      other.state_->blocks.size());
  const auto end = static_cast<std::ptrdiff_t>(blocks);
  state.tokens.assign(tokens.begin(),
                      tokens.begin() + end * static_cast<std::ptrdiff_t>(block_tokens));
  state.blocks.assign(other.state_->blocks.begin(), other.state_->blocks.begin() + end);
  state.go_back_to(state.tokens.size());
  return append(tokens.subspan(state.tokens.size()));
}

std::span<const BlockHash> BlockChain::blocks() const { return state_->blocks; }

std::span<const Token> BlockChain::tokens() const { return state_->tokens; }

}  // namespace kvc
