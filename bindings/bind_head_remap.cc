#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bindings/bind.h"
#include "bindings/status_error.h"
#include "kvc/head_remap.h"

namespace kvc::bindings {
namespace {

namespace nb = nanobind;
using nb::literals::operator""_a;

using SourceArray = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using TargetArray = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>;

TargetArray remap_one(const HeadRemap& remap, const std::vector<SourceArray>& payloads,
                      std::uint32_t rank) {
  std::vector<std::span<const std::byte>> sources;
  sources.reserve(payloads.size());
  for (const SourceArray& payload : payloads) {
    sources.push_back(std::as_bytes(std::span(payload.data(), payload.size())));
  }
  auto target = std::make_unique<std::uint8_t[]>(remap.target_bytes());
  Status status;
  {
    const nb::gil_scoped_release unlocked;
    status = remap.remap(sources, rank,
                         std::as_writable_bytes(std::span(target.get(), remap.target_bytes())));
  }
  throw_if_failed(status);
  std::uint8_t* data = target.release();
  const nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<std::uint8_t*>(p); });
  return TargetArray(data, {remap.target_bytes()}, owner);
}

}  // namespace

void bind_head_remap(nb::module_& m) {
  nb::class_<HeadRemap>(m, "HeadRemap")
      .def(nb::new_([](const std::string& order, std::uint32_t from_ranks, std::uint32_t to_ranks,
                       std::uint32_t layers, std::uint32_t kv_heads, std::uint32_t tokens_per_block,
                       std::uint32_t head_dim, std::uint32_t element_bits, std::uint32_t kv_factor,
                       bool packed_scales) {
             return value_or_throw(HeadRemap::create({.order = inner_order_of(order),
                                                      .layers = layers,
                                                      .kv_factor = kv_factor,
                                                      .kv_heads = kv_heads,
                                                      .tokens_per_block = tokens_per_block,
                                                      .head_dim = head_dim,
                                                      .element_bits = element_bits,
                                                      .packed_scales = packed_scales},
                                                     from_ranks, to_ranks));
           }),
           nb::kw_only(), "order"_a, "from_ranks"_a, "to_ranks"_a, "layers"_a, "kv_heads"_a,
           "tokens_per_block"_a, "head_dim"_a, "element_bits"_a, "kv_factor"_a = 2,
           "packed_scales"_a = false, "Order is HND or NHD; anything else is not declared.")
      .def_prop_ro("from_ranks", &HeadRemap::from_ranks)
      .def_prop_ro("to_ranks", &HeadRemap::to_ranks)
      .def_prop_ro("source_bytes", &HeadRemap::source_bytes)
      .def_prop_ro("target_bytes", &HeadRemap::target_bytes)
      .def("sources_of", &HeadRemap::sources_of, "rank"_a, "Ranks whose payloads suffice.")
      .def("remap", &remap_one, "payloads"_a, "rank"_a,
           nb::sig("def remap(self, payloads: collections.abc.Sequence[typing.Any], rank: int) -> "
                   "typing.Any"),
           "The payload of one rank of the new group, from those of the old one.");
}

}  // namespace kvc::bindings
