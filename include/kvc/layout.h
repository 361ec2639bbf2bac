// Where the pages of a paged KV cache lie in memory: groups of layers, each a list of regions.
//
// Page `slot` of a group is the concatenation of its regions' bytes
// [base + stride * slot, + bytes). A single contiguous pool [slots, layers, kv, elements] is one
// group with one region whose stride equals its bytes. Page indices are scoped to a group.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kvc/result.h"

namespace kvc {

/// Index of a page in its group. Negative: no page.
using SlotIndex = std::int64_t;

struct PageRegion {
  std::byte* base = nullptr;  ///< Not owned; stays valid while registered.
  std::size_t bytes = 0;      ///< Of one page in this region.
  std::size_t stride = 0;     ///< Between pages; >= bytes.
  std::size_t slots = 0;
};

struct PageGroup {
  std::vector<std::uint32_t> layers;  ///< Global layer indices, ascending.
  std::vector<PageRegion> regions;    ///< In the order in which a page is stored.
  std::uint64_t window_tokens = 0;    ///< 0: full attention.
  /// Bytes of one layer, where a page as it is stored is its layers one after another, all of this
  /// size, in the order of `layers`. 0: not known to be so.
  std::size_t layer_bytes = 0;
};

/// Bytes of one page of `group`: the sum over its regions.
std::size_t page_bytes(const PageGroup& group);

/// The part of `group` that holds its layer number `index`, as a group of that layer alone.
/// REQUIRES: layer_bytes is not 0, index < layers.size(), and check_layout() accepts the group.
PageGroup layer_of(const PageGroup& group, std::size_t index);

/// Pages of `group`: what every region has.
std::size_t page_slots(const PageGroup& group);

struct PagedLayout {
  std::vector<PageGroup> groups;
};

/// kInvalid, naming the field, for: no group, no region, a null base, zero sizes, stride < bytes,
/// regions of one group with different slot counts, layers of another size than the pages have,
/// address overflow, or overlapping regions.
Status check_layout(const PagedLayout& layout);

/// A dense pool as an engine describes it: [slots, layers, kv_factor, elements_per_block].
struct DensePool {
  std::byte* base = nullptr;
  std::vector<std::int64_t> shape;
  std::size_t element_bytes = 0;
  std::uint32_t tokens_per_block = 0;
};

/// Geometry of a dense pool, for the keyspace.
struct PoolGeometry {
  std::uint32_t layers = 0;
  std::uint32_t kv_factor = 0;
  std::uint64_t bytes_per_page = 0;
  std::uint32_t element_bytes = 0;
};

struct DenseLayout {
  PagedLayout layout;
  PoolGeometry geometry;
};

/// One group, one region. kInvalid, naming the value and what would fit, if the shape has not four
/// positive dimensions, kv_factor is neither 1 nor 2, or a block's elements are not a multiple of
/// the tokens per block.
Result<DenseLayout> describe_dense_pool(const DensePool& pool);

}  // namespace kvc
