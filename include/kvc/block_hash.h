// The name of a block: a chained, scoped hash of everything that decided its KV.
//
//   root = H(scope: salt, LoRA, deployment secret)
//   h_i  = H(h_{i-1}, tokens of block i, media items that touch block i)
//
// SHA-256 throughout, canonical and length-prefixed, nothing truncated and nothing local to a
// process, so equal requests have equal names in every process, language and machine. A block's
// name therefore stands for its whole prefix. Bytes and golden vectors: docs/format/key.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "kvc/result.h"

namespace kvc {

/// A token id as the engine has it; negative ids are refused.
using Token = std::int32_t;

struct BlockHash {
  std::array<std::byte, 32> bytes{};

  friend bool operator==(const BlockHash&, const BlockHash&) = default;
  friend bool operator<(const BlockHash& a, const BlockHash& b) { return a.bytes < b.bytes; }
};

std::string to_hex(const BlockHash& hash);

/// For hash maps inside a process only: the first 8 bytes, already uniformly distributed.
struct BlockHashHasher {
  std::size_t operator()(const BlockHash& hash) const noexcept;
};

/// Absent, a string or an integer: all three differ, and the integer 5 differs from "5". The two
/// integer types only widen the range: equal numbers are equal salts.
using CacheSalt = std::variant<std::monostate, std::string, std::int64_t, std::uint64_t>;

/// What isolates requests with equal tokens from one another.
struct RequestScope {
  CacheSalt cache_salt;
  /// Content identity of the LoRA adapter (not an operator's number); absent: the base model.
  std::optional<std::string> lora;
};

/// A media item (image, audio, ...) whose placeholders stand at [start, start + length).
struct MediaItem {
  std::vector<std::byte> digest;  ///< 16 to 1024 bytes identifying the content.
  std::uint64_t start = 0;        ///< Position of the first placeholder in the prompt.
  std::uint64_t length = 0;       ///< Placeholders, > 0.
};

struct BlockHashOptions {
  std::uint32_t tokens_per_block = 0;  ///< > 0
  /// With a secret nobody can compute keys from a prompt alone. Empty: none.
  std::string deployment_secret;
};

/// Leading tokens that are equal.
std::size_t common_prefix(std::span<const Token> a, std::span<const Token> b);

/// The growing chain of one request. Not thread-safe; cheap to move.
class BlockChain {
 public:
  /// kInvalid for a zero block size, an empty or short media digest, a media item of length 0, or
  /// items that overlap or are out of order: such a request must bypass the cache.
  static Result<BlockChain> create(const BlockHashOptions& options, const RequestScope& scope,
                                   std::vector<MediaItem> media);

  BlockChain(BlockChain&&) noexcept;
  BlockChain& operator=(BlockChain&&) noexcept;
  ~BlockChain();

  /// Appends tokens that follow those appended before; each block that they complete gets its name.
  /// kInvalid at a negative token: then nothing was appended.
  Status append(std::span<const Token> tokens);

  /// Makes `tokens` all that is known, as a new chain would; the blocks before the first token that
  /// differs, compared one by one, keep their names and are not hashed again. kInvalid at a
  /// negative token: the chain then has the tokens up to there.
  Status assign(std::span<const Token> tokens);
  /// As assign(), and takes over the names that `other` has for the blocks in common. REQUIRES:
  /// both have the same options, scope and media.
  Status assign(std::span<const Token> tokens, const BlockChain& other);

  /// Names of the complete blocks, in order. Invalidated by append() and assign().
  std::span<const BlockHash> blocks() const;
  /// All tokens known so far. Invalidated by append() and assign().
  std::span<const Token> tokens() const;

 private:
  struct State;
  explicit BlockChain(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace kvc
