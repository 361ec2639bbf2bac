// The line of text by which ranks find their leader:
//
//   kvc-stage/1 world=4 instance=<16 hex> nonce=<64 hex> unix=/tmp/kvc-stage-<16 hex>/leader
//   kvc-stage/1 world=4 instance=<16 hex> nonce=<64 hex> tcp=10.0.0.1:41233
//
// It is a secret: whoever reports that it is malformed does not repeat it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "channel/frame.h"
#include "kvc/result.h"

namespace kvc {

struct Rendezvous {
  std::uint32_t world_size = 0;
  std::uint64_t instance = 0;  ///< Differs between any two leaders. No secret.
  Nonce nonce{};
  std::string unix_path;  ///< Absolute; empty: TCP.
  std::string address;    ///< Numeric; an IPv6 address without brackets.
  std::uint16_t port = 0;

  friend bool operator==(const Rendezvous&, const Rendezvous&) = default;
};

inline constexpr std::size_t kRendezvousBytesMax = 511;
/// What the system takes as the path of a Unix socket.
inline constexpr std::size_t kUnixPathBytesMax = 107;

/// REQUIRES: a path of printable characters, at most kUnixPathBytesMax.
std::string format_rendezvous(const Rendezvous& rendezvous);

/// kInvalid for anything that format_rendezvous() of this version did not write.
Result<Rendezvous> parse_rendezvous(std::string_view text);

/// Without its secret, for messages: "leader 0123456789abcdef at tcp 10.0.0.1:4000".
std::string describe(const Rendezvous& rendezvous);

/// Whether every character is printable ASCII.
bool is_printable(std::string_view text);

}  // namespace kvc
