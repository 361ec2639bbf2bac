// Re-slices the KV of a block from a tensor-parallel group of one size for a group of another size.
//
// Each rank of a group keeps some of the model's KV heads, so that the payloads of all ranks
// together hold every head. A payload is [layers, 2 (keys, values), elements], and how heads and
// tokens are nested in its elements is the attention kernel's business: it has to be declared, and
// is never guessed from bytes or shapes. Bytes move verbatim, whole heads at a time; nothing is
// converted, so that the result is what the other group would have stored. What cannot be moved so
// is refused with the reason. Layouts, rule and example: docs/format/head_remap.md.
//
// This is the codec alone. Keyspaces of different group sizes stay disjoint: no key leads from one
// to the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "kvc/result.h"
#include "kvc/status.h"

namespace kvc {

/// How the elements of one layer's keys (or values) are nested, outermost first.
enum class InnerOrder {
  kUnknown,          ///< Not declared: refused.
  kHeadTokenVector,  ///< HND: [heads, tokens, head_dim]
  kTokenHeadVector,  ///< NHD: [tokens, heads, head_dim]
};

std::string_view to_string(InnerOrder order);
/// "HND" or "NHD"; anything else is kUnknown.
InnerOrder inner_order_of(std::string_view name);

/// The KV of one block as the whole model has it, whatever the size of the group.
struct HeadLayout {
  InnerOrder order = InnerOrder::kUnknown;
  std::uint32_t layers = 0;
  std::uint32_t kv_factor = 2;  ///< 2: keys and values; 1: one latent per token, refused.
  std::uint32_t kv_heads = 0;   ///< Of the model, before they are shared out.
  std::uint32_t tokens_per_block = 0;
  std::uint32_t head_dim = 0;
  std::uint32_t element_bits = 0;  ///< 4, 8, 16 or 32.
  /// Scales of the elements are packed into the same bytes: where, nothing here says.
  bool packed_scales = false;
};

/// Which heads a rank has: all ranks have equally many, in ascending order; with fewer heads than
/// ranks each head is on `ranks / kv_heads` ranks in a row.
struct HeadSpan {
  std::uint32_t first = 0;
  std::uint32_t count = 0;
};

/// Immutable; safe to use from any thread.
class HeadRemap {
 public:
  static constexpr std::uint32_t kMaxRanks = 4096;

  /// kUnsupported for an order that is not declared, one latent per token, packed scales, heads
  /// that end inside a byte, or a number of heads that a group cannot share out evenly. kInvalid,
  /// naming the field, for a size that is 0 or out of range.
  static Result<HeadRemap> create(const HeadLayout& layout, std::uint32_t from_ranks,
                                  std::uint32_t to_ranks);

  std::uint32_t from_ranks() const { return from_ranks_; }
  std::uint32_t to_ranks() const { return to_ranks_; }
  std::size_t source_bytes() const { return source_bytes_; }  ///< Payload of each rank before.
  std::size_t target_bytes() const { return target_bytes_; }  ///< Payload of each rank after.

  HeadSpan source_heads(std::uint32_t rank) const { return heads_of(rank, from_ranks_); }
  HeadSpan target_heads(std::uint32_t rank) const { return heads_of(rank, to_ranks_); }
  /// Ranks whose payload suffices for target rank `rank`, ascending: of a head that several ranks
  /// have, the first one. REQUIRES: rank < to_ranks().
  std::vector<std::uint32_t> sources_of(std::uint32_t rank) const;

  /// Writes the payload of target rank `rank`. `sources` has one payload per source rank; those
  /// that sources_of() does not name may be empty. Replicas of a head that are given are compared.
  /// kInvalid for a wrong number of sources, a wrong size, a missing source, or a target that
  /// overlaps a source; kRejected if replicas differ. `target` is then unchanged.
  Status remap(std::span<const std::span<const std::byte>> sources, std::uint32_t rank,
               std::span<std::byte> target) const;

 private:
  HeadRemap() = default;

  HeadSpan heads_of(std::uint32_t rank, std::uint32_t ranks) const;
  Status check(std::span<const std::span<const std::byte>> sources, std::uint32_t rank,
               std::span<std::byte> target) const;
  Status compare_replicas(std::span<const std::span<const std::byte>> sources,
                          HeadSpan wanted) const;

  HeadLayout layout_;
  std::uint32_t from_ranks_ = 0;
  std::uint32_t to_ranks_ = 0;
  std::size_t head_bytes_ = 0;  // Contiguous bytes of one head: all of its tokens, or one token.
  std::size_t repeats_ = 0;     // How often the heads of a rank follow each other in a payload.
  std::size_t source_bytes_ = 0;
  std::size_t target_bytes_ = 0;
};

}  // namespace kvc
