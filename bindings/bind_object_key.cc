#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstdint>

#include "bindings/bind.h"
#include "bindings/convert.h"
#include "kvc/object_key.h"

namespace kvc::bindings {

namespace nb = nanobind;
using nb::literals::operator""_a;

void bind_object_key(nb::module_& m) {
  nb::class_<ObjectKeys>(m, "ObjectKeys")
      .def(nb::new_([](const nb::bytes& keyspace, bool by_layer) {
             return ObjectKeys(to_fingerprint(keyspace),
                               by_layer ? Granularity::kLayer : Granularity::kBlock);
           }),
           "keyspace"_a, nb::kw_only(), "by_layer"_a = false)
      .def(
          "layer",
          [](const ObjectKeys& keys, const nb::bytes& block, std::uint32_t rank,
             std::uint32_t layer) { return keys.layer(to_block_hash(block), rank, layer); },
          "block"_a, "rank"_a, "layer"_a)
      .def(
          "shard",
          [](const ObjectKeys& keys, const nb::bytes& block, std::uint32_t rank) {
            return keys.shard(to_block_hash(block), rank);
          },
          "block"_a, "rank"_a)
      .def(
          "ready",
          [](const ObjectKeys& keys, const nb::bytes& block, std::uint32_t rank) {
            return keys.ready(to_block_hash(block), rank);
          },
          "block"_a, "rank"_a)
      .def(
          "manifest",
          [](const ObjectKeys& keys, const nb::bytes& block) {
            return keys.manifest(to_block_hash(block));
          },
          "block"_a);
}

}  // namespace kvc::bindings
