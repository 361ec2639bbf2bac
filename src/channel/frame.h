// What goes over a channel: frames of a length, a version, a type and a body, all little-endian.
//
//   length of what follows (4) | version (1) | type (1) | body
//
// Bytes are not trusted: a frame is refused as soon as its length or version shows that it can be
// none, and memory is taken for bytes that have come, never for bytes that are announced.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "kvc/channel.h"
#include "kvc/identity.h"
#include "kvc/stage.h"
#include "kvc/status.h"

namespace kvc {

inline constexpr std::uint8_t kChannelVersion = 1;

/// 256 bits of the system's randomness.
using Nonce = std::array<std::byte, 32>;

/// A rank introduces itself. First on every connection.
struct Hello {
  Nonce nonce{};
  std::uint64_t instance = 0;  ///< The leader that it means.
  /// The same whenever this client connects: a connection of its own it may replace.
  std::uint64_t client = 0;
  std::uint32_t world_size = 0;
  std::uint32_t rank = 0;
  Fingerprint keyspace{};

  friend bool operator==(const Hello&, const Hello&) = default;
};

/// The leader's answer: the rank is in, and this is what it is to keep.
struct Welcome {
  LiveHolds holds;
};

/// The leader's other answer, after which it hangs up.
enum class Refusal : std::uint8_t {
  kNonce,
  kRank,
  kKeyspace,
  kDuplicate,
};

struct Ping {};
struct Pong {};
/// The sender ends in good order: it is not to be looked for.
struct Bye {};

using Message =
    std::variant<Hello, Welcome, Refusal, StageOrder, HoldRelease, StageProgress, Ping, Pong, Bye>;

/// Of version, type and body. The leader's frames may carry an order for a prompt of millions of
/// tokens; a rank's are small.
inline constexpr std::size_t kFrameBytesOfLeader = (std::size_t{4} << 20) + 64;
inline constexpr std::size_t kFrameBytesOfRank = 128;
static_assert(kMaxOrderBlocks * sizeof(BlockHash) <= kFrameBytesOfLeader / 2);

/// A whole frame; empty if it would be longer than kFrameBytesOfLeader.
std::vector<std::byte> encode_frame(const Message& message);

/// Cuts a stream of bytes into messages, however the bytes come. Not thread-safe.
class FrameReader {
 public:
  /// `max_bytes`: of one frame without its length.
  explicit FrameReader(std::size_t max_bytes) : max_bytes_(max_bytes) {}

  /// Takes the next bytes of the stream.
  void feed(std::span<const std::byte> bytes);

  /// The next message; nothing if it is not complete. kInvalid if the stream is none of this
  /// version, and then for good.
  Status next(std::optional<Message>* out);

 private:
  Status broken(std::string message);

  const std::size_t max_bytes_;
  std::vector<std::byte> bytes_;
  std::size_t begin_ = 0;  ///< Of what is not read yet.
  Status broken_;
};

}  // namespace kvc
