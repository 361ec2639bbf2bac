#include "kvc/layout.h"

#include <algorithm>
#include <limits>
#include <string>

namespace kvc {
namespace {

constexpr std::uintptr_t kAddressMax = std::numeric_limits<std::uintptr_t>::max();

/// a * b, or false if it does not fit.
bool multiply(std::uint64_t a, std::uint64_t b, std::uint64_t* product) {
  return !__builtin_mul_overflow(a, b, product);
}

std::uintptr_t address_of(const std::byte* base) { return reinterpret_cast<std::uintptr_t>(base); }

/// A region with its name for messages and the addresses that it spans: [first, last].
struct NamedRegion {
  std::string name;
  PageRegion region;
  std::uintptr_t first = 0;
  std::uintptr_t last = 0;
};

Status check_region(NamedRegion* named) {
  const PageRegion& region = named->region;
  const std::string& name = named->name;
  if (region.base == nullptr) return invalid(name + ": base is null");
  if (region.bytes == 0) return invalid(name + ": bytes is 0");
  if (region.slots == 0) return invalid(name + ": slots is 0");
  if (region.stride < region.bytes) {
    return invalid(name + ": stride " + std::to_string(region.stride) + " is less than bytes " +
                   std::to_string(region.bytes) + ", so that pages would overlap");
  }
  std::uint64_t last_page = 0;
  named->first = address_of(region.base);
  if (!multiply(region.stride, region.slots - 1, &last_page) ||
      last_page > kAddressMax - named->first ||
      region.bytes - 1 > kAddressMax - named->first - last_page) {
    return invalid(name + ": " + std::to_string(region.slots) + " slots of stride " +
                   std::to_string(region.stride) + " exceed the address space");
  }
  named->last = named->first + last_page + (region.bytes - 1);
  return {};
}

/// Whether any page of `a` shares a byte with any page of `b`. Regions may lie inside one another
/// (keys and values of a block side by side) as long as their pages do not.
bool pages_overlap(const PageRegion& a, const PageRegion& b) {
  std::uintptr_t at_a = address_of(a.base);
  std::uintptr_t at_b = address_of(b.base);
  // Equal strides, the ordinary case: skip at once to the pages that lie next to each other.
  std::size_t slot_a = 0;
  std::size_t slot_b = 0;
  if (a.stride == b.stride) {
    const std::uintptr_t distance = at_a < at_b ? at_b - at_a : at_a - at_b;
    const std::size_t skipped = distance / a.stride;
    const std::size_t remainder = distance % a.stride;
    const PageRegion& ahead = at_a < at_b ? b : a;
    const PageRegion& behind = at_a < at_b ? a : b;
    return (skipped < behind.slots && remainder < behind.bytes) ||
           (skipped + 1 < behind.slots && a.stride - remainder < ahead.bytes);
  }
  while (slot_a < a.slots && slot_b < b.slots) {
    if (at_a <= at_b) {
      if (at_b - at_a < a.bytes) return true;
      ++slot_a;
      at_a += a.stride;
    } else {
      if (at_a - at_b < b.bytes) return true;
      ++slot_b;
      at_b += b.stride;
    }
  }
  return false;
}

Status check_group(const PageGroup& group, std::size_t index, std::vector<NamedRegion>* regions) {
  const std::string name = "group " + std::to_string(index);
  if (group.regions.empty()) return invalid(name + " has no region");
  for (std::size_t i = 1; i < group.layers.size(); ++i) {
    if (group.layers[i] <= group.layers[i - 1]) {
      return invalid(name + ": layers are not ascending at " + std::to_string(group.layers[i]));
    }
  }
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < group.regions.size(); ++i) {
    NamedRegion named{name + ", region " + std::to_string(i), group.regions[i]};
    Status status = check_region(&named);
    if (!status.ok()) return status;
    if (named.region.slots != group.regions[0].slots) {
      return invalid(named.name + ": " + std::to_string(named.region.slots) +
                     " slots, but region 0 has " + std::to_string(group.regions[0].slots));
    }
    if (__builtin_add_overflow(bytes, named.region.bytes, &bytes)) {
      return invalid(named.name + ": the bytes of a page exceed 64 bits");
    }
    regions->push_back(std::move(named));
  }
  std::uint64_t of_layers = 0;
  if (group.layer_bytes != 0 &&
      (!multiply(group.layer_bytes, group.layers.size(), &of_layers) || of_layers != bytes)) {
    return invalid(name + ": " + std::to_string(group.layers.size()) + " layers of " +
                   std::to_string(group.layer_bytes) + " bytes do not make a page of " +
                   std::to_string(bytes));
  }
  return {};
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (const std::int64_t size : shape) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(size);
  }
  return text + "]";
}

Status check_pool(const DensePool& pool) {
  const std::string name = "pool of shape " + shape_text(pool.shape);
  if (pool.base == nullptr) return invalid(name + ": its address is null");
  if (pool.shape.size() != 4) {
    return invalid(name + " has " + std::to_string(pool.shape.size()) +
                   " dimensions: expected [slots, layers, 1 or 2, elements per block]");
  }
  for (const std::int64_t size : pool.shape) {
    if (size <= 0) return invalid(name + ": every dimension must be positive");
  }
  if (pool.shape[2] != 1 && pool.shape[2] != 2) {
    return invalid(name + ": dimension 2 is " + std::to_string(pool.shape[2]) +
                   ", must be 2 (keys and values) or 1 (one latent per token)");
  }
  if (pool.element_bytes == 0) return invalid(name + ": bytes per element is 0");
  if (pool.tokens_per_block == 0) return invalid(name + ": tokens per block is 0");
  if (pool.shape[3] % pool.tokens_per_block != 0) {
    return invalid(name + ": " + std::to_string(pool.shape[3]) +
                   " elements per block are not a multiple of " +
                   std::to_string(pool.tokens_per_block) +
                   " tokens per block; does the pool belong to this configuration?");
  }
  constexpr std::int64_t kNumberMax = std::numeric_limits<std::uint32_t>::max();
  if (pool.shape[1] > kNumberMax || pool.element_bytes > static_cast<std::size_t>(kNumberMax)) {
    return invalid(name + ": layers or bytes per element out of range");
  }
  return {};
}

}  // namespace

std::size_t page_bytes(const PageGroup& group) {
  std::size_t bytes = 0;
  for (const PageRegion& region : group.regions) bytes += region.bytes;
  return bytes;
}

PageGroup layer_of(const PageGroup& group, std::size_t index) {
  PageGroup one{.layers = {group.layers[index]},
                .regions = {},
                .window_tokens = group.window_tokens,
                .layer_bytes = group.layer_bytes};
  const std::size_t first = group.layer_bytes * index;
  const std::size_t end = first + group.layer_bytes;
  std::size_t at = 0;  // Where the region begins in the page.
  for (const PageRegion& region : group.regions) {
    const std::size_t from = std::max(first, at);
    const std::size_t to = std::min(end, at + region.bytes);
    if (from < to) {
      one.regions.push_back({region.base + (from - at), to - from, region.stride, region.slots});
    }
    at += region.bytes;
  }
  return one;
}

std::size_t page_slots(const PageGroup& group) {
  return group.regions.empty() ? 0 : group.regions[0].slots;
}

Status check_layout(const PagedLayout& layout) {
  if (layout.groups.empty()) return invalid("the layout has no group");
  std::vector<NamedRegion> regions;
  for (std::size_t i = 0; i < layout.groups.size(); ++i) {
    Status status = check_group(layout.groups[i], i, &regions);
    if (!status.ok()) return status;
  }
  std::sort(regions.begin(), regions.end(),
            [](const NamedRegion& a, const NamedRegion& b) { return a.first < b.first; });
  for (std::size_t i = 0; i < regions.size(); ++i) {
    for (std::size_t j = i + 1; j < regions.size() && regions[j].first <= regions[i].last; ++j) {
      if (pages_overlap(regions[i].region, regions[j].region)) {
        return invalid(regions[i].name + " and " + regions[j].name + " overlap");
      }
    }
  }
  return {};
}

Result<DenseLayout> describe_dense_pool(const DensePool& pool) {
  Status status = check_pool(pool);
  if (!status.ok()) return status;
  DenseLayout dense;
  dense.geometry.layers = static_cast<std::uint32_t>(pool.shape[1]);
  dense.geometry.kv_factor = static_cast<std::uint32_t>(pool.shape[2]);
  dense.geometry.element_bytes = static_cast<std::uint32_t>(pool.element_bytes);
  std::uint64_t bytes = pool.element_bytes;
  for (const std::size_t dimension : {1u, 2u, 3u}) {
    if (!multiply(bytes, static_cast<std::uint64_t>(pool.shape[dimension]), &bytes)) {
      return invalid("pool of shape " + shape_text(pool.shape) + " exceeds the address space");
    }
  }
  dense.geometry.bytes_per_page = bytes;

  PageGroup group;
  // A list of the layers of a pool that claims more than any model has would only waste memory.
  constexpr std::uint32_t kLayersMax = 1u << 20;
  if (dense.geometry.layers > kLayersMax) {
    return invalid("pool of shape " + shape_text(pool.shape) + ": more than " +
                   std::to_string(kLayersMax) + " layers");
  }
  for (std::uint32_t layer = 0; layer < dense.geometry.layers; ++layer) {
    group.layers.push_back(layer);
  }
  const auto page = static_cast<std::size_t>(bytes);
  group.regions.push_back({pool.base, page, page, static_cast<std::size_t>(pool.shape[0])});
  group.layer_bytes = page / dense.geometry.layers;
  dense.layout.groups.push_back(std::move(group));
  status = check_layout(dense.layout);
  if (!status.ok()) return status;
  return dense;
}

}  // namespace kvc
