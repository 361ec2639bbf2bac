// A payload is `repeats` times a row of the rank's heads, `head_bytes` each:
//
//   HND  repeats = layers * 2             head_bytes = tokens * head_dim * element
//   NHD  repeats = layers * 2 * tokens    head_bytes = head_dim * element
//
// so that both orders are the same walk, and every copy is a run of whole heads of one rank.
#include "kvc/head_remap.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>

namespace kvc {
namespace {

Status unsupported(std::string message) { return {Code::kUnsupported, std::move(message)}; }

bool multiply(std::uint64_t a, std::uint64_t b, std::uint64_t* product) {
  return !__builtin_mul_overflow(a, b, product);
}

Status check_fields(const HeadLayout& layout) {
  const struct {
    const char* name;
    std::uint32_t value;
  } sizes[] = {{"layers", layout.layers},
               {"kv_heads", layout.kv_heads},
               {"tokens_per_block", layout.tokens_per_block},
               {"head_dim", layout.head_dim}};
  for (const auto& size : sizes) {
    if (size.value == 0) return invalid(std::string(size.name) + " is 0: must be at least 1");
  }
  if (layout.kv_factor != 2) {
    return invalid("kv_factor is " + std::to_string(layout.kv_factor) +
                   ": must be 2 (keys and values)");
  }
  const std::uint32_t bits = layout.element_bits;
  if (bits != 4 && bits != 8 && bits != 16 && bits != 32) {
    return invalid("element_bits is " + std::to_string(bits) + ": must be 4, 8, 16 or 32");
  }
  return {};
}

/// What has no heads that could be moved, or none that anybody could find.
Status check_nature(const HeadLayout& layout) {
  if (layout.kv_factor == 1) {
    return unsupported(
        "the cache holds one latent per token (MLA), which has no heads and is the same on all "
        "ranks: read any rank's block as it is");
  }
  if (layout.order != InnerOrder::kHeadTokenVector &&
      layout.order != InnerOrder::kTokenHeadVector) {
    return unsupported(
        "the order of heads and tokens inside a block is not declared: state HND or NHD, as the "
        "attention kernel of this cache has it");
  }
  if (layout.packed_scales) {
    return unsupported(
        "scales are packed among the elements of a block, so that a head is not one run of bytes: "
        "only caches without packed scales can be re-sliced");
  }
  return {};
}

Status check_ranks(const HeadLayout& layout, const char* name, std::uint32_t ranks) {
  if (ranks == 0 || ranks > HeadRemap::kMaxRanks) {
    return invalid(std::string(name) + " is " + std::to_string(ranks) + ": must be 1 to " +
                   std::to_string(HeadRemap::kMaxRanks));
  }
  const std::uint32_t heads = layout.kv_heads;
  if (heads % ranks == 0 || ranks % heads == 0) return {};
  return unsupported(std::to_string(heads) + " KV heads cannot be shared out evenly among " +
                     std::to_string(ranks) + " ranks (" + name +
                     "): one number must divide the other");
}

bool overlap(std::span<const std::byte> a, std::span<const std::byte> b) {
  if (a.empty() || b.empty()) return false;
  const std::less<> before;  // A total order, also of unrelated pointers.
  return before(a.data(), b.data() + b.size()) && before(b.data(), a.data() + a.size());
}

}  // namespace

std::string_view to_string(InnerOrder order) {
  switch (order) {
    case InnerOrder::kUnknown:
      return "unknown";
    case InnerOrder::kHeadTokenVector:
      return "HND";
    case InnerOrder::kTokenHeadVector:
      return "NHD";
  }
  return "unknown";
}

InnerOrder inner_order_of(std::string_view name) {
  for (const InnerOrder order : {InnerOrder::kHeadTokenVector, InnerOrder::kTokenHeadVector}) {
    if (name == to_string(order)) return order;
  }
  return InnerOrder::kUnknown;
}

Result<HeadRemap> HeadRemap::create(const HeadLayout& layout, std::uint32_t from_ranks,
                                    std::uint32_t to_ranks) {
  if (Status status = check_nature(layout); !status.ok()) return status;
  if (Status status = check_fields(layout); !status.ok()) return status;
  if (Status status = check_ranks(layout, "from_ranks", from_ranks); !status.ok()) return status;
  if (Status status = check_ranks(layout, "to_ranks", to_ranks); !status.ok()) return status;
  const bool by_head = layout.order == InnerOrder::kHeadTokenVector;
  const std::uint64_t tokens_in_head = by_head ? layout.tokens_per_block : 1;
  std::uint64_t head_bits = layout.head_dim;
  std::uint64_t repeats = std::uint64_t{layout.layers} * layout.kv_factor;
  const std::string too_large = "a block of this layout exceeds the address space";
  if (!multiply(head_bits, tokens_in_head, &head_bits) ||
      !multiply(head_bits, layout.element_bits, &head_bits) ||
      !multiply(repeats, layout.tokens_per_block / tokens_in_head, &repeats)) {
    return invalid(too_large);
  }
  if (head_bits % 8 != 0) {
    return unsupported("a head ends inside a byte (" + std::to_string(layout.head_dim) +
                       " elements of " + std::to_string(layout.element_bits) +
                       " bits): its bytes are shared with the next head");
  }
  HeadRemap remap;
  remap.layout_ = layout;
  remap.from_ranks_ = from_ranks;
  remap.to_ranks_ = to_ranks;
  remap.head_bytes_ = head_bits / 8;
  remap.repeats_ = repeats;
  std::uint64_t all_heads = 0;
  if (!multiply(remap.head_bytes_, repeats, &all_heads) ||
      !multiply(all_heads, layout.kv_heads, &all_heads)) {
    return invalid(too_large);
  }
  const std::size_t one_head = remap.head_bytes_ * remap.repeats_;
  remap.source_bytes_ = one_head * remap.source_heads(0).count;
  remap.target_bytes_ = one_head * remap.target_heads(0).count;
  return remap;
}

HeadSpan HeadRemap::heads_of(std::uint32_t rank, std::uint32_t ranks) const {
  const std::uint32_t heads = layout_.kv_heads;
  if (ranks <= heads) return {rank * (heads / ranks), heads / ranks};
  return {rank / (ranks / heads), 1};
}

std::vector<std::uint32_t> HeadRemap::sources_of(std::uint32_t rank) const {
  const HeadSpan wanted = target_heads(rank);
  std::vector<std::uint32_t> sources;
  std::uint32_t head = wanted.first;
  for (std::uint32_t source = 0; source < from_ranks_; ++source) {
    const HeadSpan held = source_heads(source);
    if (head < held.first || head >= held.first + held.count) continue;
    sources.push_back(source);
    head = held.first + held.count;
    if (head >= wanted.first + wanted.count) break;
  }
  return sources;
}

Status HeadRemap::check(std::span<const std::span<const std::byte>> sources, std::uint32_t rank,
                        std::span<std::byte> target) const {
  if (rank >= to_ranks_) {
    return invalid("rank is " + std::to_string(rank) + ": must be below to_ranks " +
                   std::to_string(to_ranks_));
  }
  if (sources.size() != from_ranks_) {
    return invalid(std::to_string(sources.size()) + " payloads were given: one per rank of " +
                   std::to_string(from_ranks_) + " is needed");
  }
  if (target.size() != target_bytes_) {
    return invalid("the target has " + std::to_string(target.size()) + " bytes, must have " +
                   std::to_string(target_bytes_));
  }
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const std::span<const std::byte> source = sources[i];
    if (!source.empty() && source.size() != source_bytes_) {
      return invalid("the payload of rank " + std::to_string(i) + " has " +
                     std::to_string(source.size()) + " bytes, must have " +
                     std::to_string(source_bytes_));
    }
    if (overlap(source, target)) {
      return invalid("the target overlaps the payload of rank " + std::to_string(i));
    }
  }
  for (const std::uint32_t source : sources_of(rank)) {
    if (sources[source].empty()) {
      return invalid("the payload of rank " + std::to_string(source) + " is missing");
    }
  }
  return {};
}

/// With fewer heads than ranks each payload is one head, whole.
Status HeadRemap::compare_replicas(std::span<const std::span<const std::byte>> sources,
                                   HeadSpan wanted) const {
  if (from_ranks_ <= layout_.kv_heads) return {};
  const std::uint32_t replicas = from_ranks_ / layout_.kv_heads;
  for (std::uint32_t head = wanted.first; head < wanted.first + wanted.count; ++head) {
    const std::uint32_t first = head * replicas;
    for (std::uint32_t other = first + 1; other < first + replicas; ++other) {
      if (sources[other].empty()) continue;
      if (std::memcmp(sources[first].data(), sources[other].data(), source_bytes_) == 0) continue;
      return {Code::kRejected, "ranks " + std::to_string(first) + " and " + std::to_string(other) +
                                   " should hold the same KV head " + std::to_string(head) +
                                   ", but their bytes differ: they are not of one block"};
    }
  }
  return {};
}

Status HeadRemap::remap(std::span<const std::span<const std::byte>> sources, std::uint32_t rank,
                        std::span<std::byte> target) const {
  if (Status status = check(sources, rank, target); !status.ok()) return status;
  const HeadSpan wanted = target_heads(rank);
  if (Status status = compare_replicas(sources, wanted); !status.ok()) return status;
  const std::size_t target_row = wanted.count * head_bytes_;
  std::uint32_t head = wanted.first;
  for (const std::uint32_t source : sources_of(rank)) {
    const HeadSpan held = source_heads(source);
    const std::uint32_t end = std::min(held.first + held.count, wanted.first + wanted.count);
    const std::size_t run = (end - head) * head_bytes_;
    const std::size_t source_row = held.count * head_bytes_;
    const std::byte* from = sources[source].data() + (head - held.first) * head_bytes_;
    std::byte* to = target.data() + (head - wanted.first) * head_bytes_;
    for (std::size_t i = 0; i < repeats_; ++i) {
      std::memcpy(to + i * target_row, from + i * source_row, run);
    }
    head = end;
  }
  return {};
}

}  // namespace kvc
