#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "bindings/bind.h"
#include "bindings/convert.h"
#include "kvc/block_format.h"

namespace kvc::bindings {
namespace {

namespace nb = nanobind;
using nb::literals::operator""_a;

nb::bytes seal(BlockDescription description, const nb::bytes& payload) {
  description.payload_bytes = payload.size();
  std::vector<std::byte> object(kBlockHeaderBytes + payload.size());
  if (payload.size() > 0) {
    std::memcpy(object.data() + kBlockHeaderBytes, payload.data(), payload.size());
  }
  seal_block(description, object);
  return to_bytes(object);
}

}  // namespace

void bind_block_format(nb::module_& m) {
  m.attr("BLOCK_HEADER_BYTES") = kBlockHeaderBytes;
  nb::enum_<ObjectKind>(m, "ObjectKind")
      .value("SHARD", ObjectKind::kShard)
      .value("READY", ObjectKind::kReady)
      .value("MANIFEST", ObjectKind::kManifest);
  nb::class_<BlockDescription>(m, "BlockDescription")
      .def(nb::new_([](const nb::bytes& layout, const nb::bytes& block, std::uint32_t rank,
                       std::uint32_t world_size, std::uint32_t token_count,
                       std::uint64_t payload_bytes, ObjectKind kind) {
             return BlockDescription{.kind = kind,
                                     .layout = to_fingerprint(layout),
                                     .block = to_block_hash(block),
                                     .rank = rank,
                                     .world_size = world_size,
                                     .token_count = token_count,
                                     .payload_bytes = payload_bytes};
           }),
           "layout"_a, "block"_a, nb::kw_only(), "rank"_a, "world_size"_a, "token_count"_a,
           "payload_bytes"_a, "kind"_a = ObjectKind::kShard);
  m.def("seal_block", &seal, "description"_a, "payload"_a,
        "The object that a store holds: header, then payload.");
  m.def(
      "verify_block",
      [](const BlockDescription& expected, const nb::bytes& object) {
        return to_str(to_string(verify_block(expected, view(object))));
      },
      "expected"_a, "stored"_a, "Why the bytes are not that block, or none.");
}

}  // namespace kvc::bindings
