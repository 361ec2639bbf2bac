#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "bindings/bind.h"
#include "bindings/status_error.h"
#include "kvc/layout.h"

namespace kvc::bindings {

namespace nb = nanobind;
using nb::literals::operator""_a;

void bind_layout(nb::module_& m) {
  nb::class_<PoolGeometry>(m, "PoolGeometry")
      .def_ro("layers", &PoolGeometry::layers)
      .def_ro("kv_factor", &PoolGeometry::kv_factor)
      .def_ro("bytes_per_page", &PoolGeometry::bytes_per_page)
      .def_ro("element_bytes", &PoolGeometry::element_bytes);
  nb::class_<DenseLayout>(m, "DenseLayout").def_ro("geometry", &DenseLayout::geometry);
  m.def(
      "describe_dense_pool",
      [](std::uintptr_t address, std::vector<std::int64_t> shape, std::size_t element_bytes,
         std::uint32_t tokens_per_block) {
        return value_or_throw(describe_dense_pool({.base = reinterpret_cast<std::byte*>(address),
                                                   .shape = std::move(shape),
                                                   .element_bytes = element_bytes,
                                                   .tokens_per_block = tokens_per_block}));
      },
      "address"_a, "shape"_a, "element_bytes"_a, "tokens_per_block"_a,
      "Where the pages of a pool [blocks, layers, kv_factor, elements] lie.");
}

}  // namespace kvc::bindings
