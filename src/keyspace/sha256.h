// SHA-256 and HMAC-SHA256 from OpenSSL. A failure inside OpenSSL ends the process: every name of a
// block stands on these, and a wrong name delivers wrong bytes.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>

struct evp_md_ctx_st;

namespace kvc {

using Sha256Digest = std::array<std::byte, 32>;

/// A context that is reused: digesting allocates nothing. Not thread-safe.
class Sha256 {
 public:
  Sha256();

  /// The digest of `message` alone.
  void digest(std::span<const std::byte> message, Sha256Digest* out);

  /// Piecewise, for what is too long to hold: any number of add(), then take(), which also starts
  /// the next message.
  void add(std::span<const std::byte> bytes);
  Sha256Digest take();

 private:
  void finish(Sha256Digest* out);

  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

Sha256Digest hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> message);

}  // namespace kvc
