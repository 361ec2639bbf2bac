#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bind.h"
#include "bindings/convert.h"
#include "bindings/gil.h"
#include "bindings/status_error.h"
#include "kvc/identity.h"

namespace kvc::bindings {
namespace {

namespace nb = nanobind;
using nb::literals::operator""_a;

void bind_keyspace_identity(nb::module_& m) {
  nb::class_<KeyspaceIdentity>(m, "KeyspaceIdentity")
      .def(nb::init<>())
      .def_rw("key_epoch", &KeyspaceIdentity::key_epoch)
      .def_rw("model_content", &KeyspaceIdentity::model_content)
      .def_rw("tokenizer", &KeyspaceIdentity::tokenizer)
      .def_rw("engine_layout", &KeyspaceIdentity::engine_layout)
      .def_rw("kv_dtype", &KeyspaceIdentity::kv_dtype)
      .def_rw("kv_quantization", &KeyspaceIdentity::kv_quantization)
      .def_rw("attention_backend", &KeyspaceIdentity::attention_backend)
      .def_rw("tokens_per_block", &KeyspaceIdentity::tokens_per_block)
      .def_rw("layers", &KeyspaceIdentity::layers)
      .def_rw("bytes_per_page", &KeyspaceIdentity::bytes_per_page)
      .def_rw("kv_factor", &KeyspaceIdentity::kv_factor)
      .def_rw("element_bytes", &KeyspaceIdentity::element_bytes)
      .def_rw("tensor_parallel_size", &KeyspaceIdentity::tensor_parallel_size)
      .def_rw("pipeline_parallel_size", &KeyspaceIdentity::pipeline_parallel_size)
      .def_rw("context_parallel_size", &KeyspaceIdentity::context_parallel_size)
      .def_rw("expert_parallel_size", &KeyspaceIdentity::expert_parallel_size)
      .def_rw("layer_group", &KeyspaceIdentity::layer_group)
      .def_rw("window_tokens", &KeyspaceIdentity::window_tokens)
      .def(
          "fingerprint",
          [](const KeyspaceIdentity& identity) { return to_bytes(keyspace_fingerprint(identity)); },
          "128 bits that prefix every key.");
}

void bind_model_identity(nb::module_& m) {
  nb::class_<ModelIdentity>(m, "ModelIdentity")
      .def_ro("content", &ModelIdentity::content)
      .def_ro("tokenizer", &ModelIdentity::tokenizer)
      .def_prop_ro("evidence",
                   [](const ModelIdentity& model) { return to_str(to_string(model.evidence)); });
  m.def(
      "identify_model",
      [](std::optional<std::string> folder, std::optional<std::string> stated_revision,
         std::optional<std::uint64_t> full_digest_limit) {
        ModelSource source;
        if (full_digest_limit) source.full_digest_limit_bytes = *full_digest_limit;
        if (folder) source.folder = std::filesystem::path(*folder);
        source.stated_revision = std::move(stated_revision);
        return value_or_throw([&] {
          const GilRelease release;
          return identify_model(source);
        }());
      },
      "folder"_a.none(), "stated_revision"_a.none() = nb::none(),
      "full_digest_limit_bytes"_a.none() = nb::none(),
      "What a model is, from its content. Reads files.");
}

}  // namespace

void bind_identity(nb::module_& m) {
  m.attr("KEY_FORMAT_VERSION") = kKeyFormatVersion;
  bind_keyspace_identity(m);
  bind_model_identity(m);
}

}  // namespace kvc::bindings
