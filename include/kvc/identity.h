// Which KV may be exchanged with which: the keyspace.
//
// Two instances share blocks exactly when every field of their `KeyspaceIdentity` is equal. The
// fingerprint of those fields prefixes every object key, so any single difference gives disjoint
// keys. Values that name the same thing must be spelled the same way by whoever fills the struct.
//
// Bytes of the fingerprint: docs/format/key.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "kvc/result.h"

namespace kvc {

/// 128 bits of SHA-256 over the canonical encoding of a KeyspaceIdentity.
using Fingerprint = std::array<std::byte, 16>;

/// Version of the key format. It is part of the fingerprint, so that a later version can never read
/// a block of this one under its own rules, nor the other way round.
inline constexpr std::uint32_t kKeyFormatVersion = 1;

struct KeyspaceIdentity {
  std::uint64_t key_epoch = 0;    ///< Raised by an operator to make all older keys unreachable.
  std::string model_content;      ///< From identify_model(); never a path or a served name.
  std::string tokenizer;          ///< Digest of the tokenizer's files, empty if there are none.
  std::string engine_layout;      ///< Engine and version range, where it decides the layout.
  std::string kv_dtype;           ///< "bfloat16", "float16", "fp8_e4m3", ...
  std::string kv_quantization;    ///< Quantisation of KV and its scales; empty: none.
  std::string attention_backend;  ///< Decides the inner order of a page.
  std::uint32_t tokens_per_block = 0;  ///< > 0
  std::vector<std::uint32_t>
      layers;                        ///< Global indices of the layers that a page holds, ascending.
  std::uint64_t bytes_per_page = 0;  ///< Of one rank.
  std::uint32_t kv_factor = 0;       ///< 2: keys and values; 1: one latent per token.
  std::uint32_t element_bytes = 0;
  std::uint32_t tensor_parallel_size = 1;
  std::uint32_t pipeline_parallel_size = 1;
  std::uint32_t context_parallel_size = 1;
  std::uint32_t expert_parallel_size = 1;
  std::uint32_t layer_group = 0;
  std::uint64_t window_tokens = 0;  ///< Sliding window of the layer group; 0: full attention.
};

Fingerprint keyspace_fingerprint(const KeyspaceIdentity& identity);

std::string to_hex(const Fingerprint& fingerprint);

/// How the content of a model was established, best first.
enum class ModelEvidence {
  kStatedRevision,  ///< The operator said so.
  kHubSnapshot,     ///< Every weight file is a link to a blob named by its SHA-256.
  kRevisionFolder,  ///< The folder is `snapshots/<40 hex>` of a hub cache.
  kFullDigest,      ///< Every byte of every weight file was read.
  kSampledDigest,   ///< Headers, sizes and fixed places of every tensor were read.
};

std::string_view to_string(ModelEvidence evidence);

struct ModelIdentity {
  std::string content;    ///< Equal iff the model's weights and configuration are taken as equal.
  std::string tokenizer;  ///< Digest over the tokenizer's files; empty if the folder has none.
  ModelEvidence evidence = ModelEvidence::kStatedRevision;
};

struct ModelSource {
  /// The model's folder. May be absent only when `stated_revision` is given.
  std::optional<std::filesystem::path> folder;
  std::optional<std::string> stated_revision;
  /// Weight bytes up to which every byte is read; above it tensors are sampled.
  std::uint64_t full_digest_limit_bytes = 1ull << 30;
};

/// Establishes what a model is from its content, in the order of ModelEvidence. The configuration
/// file's digest is always part of the content where the folder has one, the folder's path never.
/// kInvalid when nothing identifies the model; the message says how to state a revision.
/// Reads files; may take a second per GB that is digested in full.
Result<ModelIdentity> identify_model(const ModelSource& source);

}  // namespace kvc
