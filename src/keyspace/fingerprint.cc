#include <algorithm>
#include <string_view>

#include "base/bytes.h"
#include "keyspace/sha256.h"
#include "kvc/identity.h"

namespace kvc {
namespace {

constexpr std::string_view kTag = "kvc1spce";

/// In the encoding; do not change the values.
enum class FieldType : std::uint8_t { kInteger = 1, kText = 2, kIntegerList = 3 };

/// Writes fields as name, type, value. Name and type make values that move from one field to
/// another, or change their type, change the bytes; lengths do so for values cut elsewhere.
class FieldWriter {
 public:
  FieldWriter() : writer_(&bytes_) {
    bytes_.reserve(1024);
    writer_.raw(as_bytes(kTag));
  }
  FieldWriter(const FieldWriter&) = delete;
  FieldWriter& operator=(const FieldWriter&) = delete;

  void integer(std::string_view name, std::uint64_t value) {
    begin(name, FieldType::kInteger);
    writer_.u64(value);
  }

  void text(std::string_view name, std::string_view value) {
    begin(name, FieldType::kText);
    writer_.text(value);
  }

  void integers(std::string_view name, const std::vector<std::uint32_t>& values) {
    begin(name, FieldType::kIntegerList);
    writer_.u64(values.size());
    for (const std::uint32_t value : values) writer_.u64(value);
  }

  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  void begin(std::string_view name, FieldType type) {
    writer_.text(name);
    writer_.u8(static_cast<std::uint8_t>(type));
  }

  std::vector<std::byte> bytes_;
  ByteWriter writer_;
};

}  // namespace

Fingerprint keyspace_fingerprint(const KeyspaceIdentity& identity) {
  // The order is part of the format (docs/format/key.md).
  FieldWriter fields;
  fields.integer("key_format_version", kKeyFormatVersion);
  fields.integer("key_epoch", identity.key_epoch);
  fields.text("model_content", identity.model_content);
  fields.text("tokenizer", identity.tokenizer);
  fields.text("engine_layout", identity.engine_layout);
  fields.text("kv_dtype", identity.kv_dtype);
  fields.text("kv_quantization", identity.kv_quantization);
  fields.text("attention_backend", identity.attention_backend);
  fields.integer("tokens_per_block", identity.tokens_per_block);
  fields.integers("layers", identity.layers);
  fields.integer("bytes_per_page", identity.bytes_per_page);
  fields.integer("kv_factor", identity.kv_factor);
  fields.integer("element_bytes", identity.element_bytes);
  fields.integer("tensor_parallel_size", identity.tensor_parallel_size);
  fields.integer("pipeline_parallel_size", identity.pipeline_parallel_size);
  fields.integer("context_parallel_size", identity.context_parallel_size);
  fields.integer("expert_parallel_size", identity.expert_parallel_size);
  fields.integer("layer_group", identity.layer_group);
  fields.integer("window_tokens", identity.window_tokens);

  Sha256 hash;
  hash.add(fields.bytes());
  const Sha256Digest digest = hash.take();
  Fingerprint fingerprint;
  std::copy_n(digest.begin(), fingerprint.size(), fingerprint.begin());
  return fingerprint;
}

std::string to_hex(const Fingerprint& fingerprint) { return hex_encode(fingerprint); }

}  // namespace kvc
