// The bytes of a stored block: a 128-byte little-endian header, then the payload, contiguous.
//
// A block describes itself, so that a reader can prove that what it got is what it asked for:
// every field is compared with the reader's expectation, and the checksum covers header and
// payload. Field by field: docs/format/block.md. READY markers and manifests are blocks without
// payload.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "kvc/block_hash.h"
#include "kvc/identity.h"

namespace kvc {

inline constexpr std::size_t kBlockHeaderBytes = 128;
inline constexpr std::uint16_t kBlockFormatVersion = 1;

/// On disk; do not change the values.
enum class ObjectKind : std::uint16_t { kShard = 1, kReady = 2, kManifest = 3, kLayer = 4 };

/// What a header says besides magic, version and checksum.
struct BlockDescription {
  ObjectKind kind = ObjectKind::kShard;
  Fingerprint layout{};  ///< Keyspace fingerprint; it covers the layout.
  BlockHash block;
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  std::uint32_t token_count = 0;
  std::uint32_t layer = 0;  ///< Of kLayer: its place in the page, from 0. 0 of all other kinds.
  std::uint64_t payload_bytes = 0;
};

/// Why bytes were not accepted. kNone: accepted.
enum class Rejection {
  kNone,
  kSize,      ///< Shorter or longer than expected, or than the header says.
  kMagic,     ///< Not a block at all.
  kVersion,   ///< A block of a version that this build does not read.
  kLayout,    ///< Another keyspace or layout.
  kIdentity,  ///< Another block, rank, layer, world size, token count or kind.
  kChecksum,  ///< Altered bytes.
};

std::string_view to_string(Rejection rejection);

/// Writes header and checksum into `object`, whose payload must already stand behind the header.
/// REQUIRES: object.size() == kBlockHeaderBytes + description.payload_bytes.
void seal_block(const BlockDescription& description, std::span<std::byte> object);

/// Checks `object` against `expected` in full. Only kNone allows the payload to be used.
Rejection verify_block(const BlockDescription& expected, std::span<const std::byte> object);

/// For tools: what the header claims, unchecked against any expectation and without the checksum.
/// False if `object` is too short or has no magic.
bool read_block_description(std::span<const std::byte> object, BlockDescription* description,
                            std::uint16_t* version);

}  // namespace kvc
