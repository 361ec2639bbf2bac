#include "kvc/block_format.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "base/check.h"
#include "base/planted.h"
#include "format/block_header.h"

namespace kvc {
namespace {

using namespace block_header;  // NOLINT(google-build-using-namespace): constants of this file only.

/// One pass over the payload: the hash of the header before the checksum is the seed of the
/// payload's, so that a change in either changes the result.
std::uint64_t checksum_of(std::span<const std::byte> object) {
  const XXH64_hash_t seed = XXH3_64bits(object.data(), kChecksumAt);
  const std::span<const std::byte> payload = object.subspan(kBlockHeaderBytes);
  return XXH3_64bits_withSeed(payload.data(), payload.size(), seed);
}

void write_header(const BlockDescription& description, std::byte* out) {
  std::memset(out, 0, kBlockHeaderBytes);
  std::memcpy(out + kMagicAt, kMagic.data(), kMagic.size());
  put_le(out + kVersionAt, kBlockFormatVersion);
  put_le(out + kHeaderBytesAt, static_cast<std::uint16_t>(kBlockHeaderBytes));
  put_le(out + kKindAt, static_cast<std::uint16_t>(description.kind));
  std::memcpy(out + kLayoutAt, description.layout.data(), description.layout.size());
  std::memcpy(out + kBlockAt, description.block.bytes.data(), description.block.bytes.size());
  put_le(out + kRankAt, description.rank);
  put_le(out + kWorldSizeAt, description.world_size);
  put_le(out + kTokenCountAt, description.token_count);
  put_le(out + kLayerAt, description.layer);
  put_le(out + kPayloadBytesAt, description.payload_bytes);
}

BlockDescription read_header(const std::byte* in) {
  BlockDescription description;
  description.kind = static_cast<ObjectKind>(get_le<std::uint16_t>(in + kKindAt));
  std::memcpy(description.layout.data(), in + kLayoutAt, description.layout.size());
  std::memcpy(description.block.bytes.data(), in + kBlockAt, description.block.bytes.size());
  description.rank = get_le<std::uint32_t>(in + kRankAt);
  description.world_size = get_le<std::uint32_t>(in + kWorldSizeAt);
  description.token_count = get_le<std::uint32_t>(in + kTokenCountAt);
  description.layer = get_le<std::uint32_t>(in + kLayerAt);
  description.payload_bytes = get_le<std::uint64_t>(in + kPayloadBytesAt);
  return description;
}

bool has_magic(std::span<const std::byte> object) {
  return std::memcmp(object.data() + kMagicAt, kMagic.data(), kMagic.size()) == 0;
}

bool same_identity(const BlockDescription& a, const BlockDescription& b) {
  // The layer of any kind but kLayer is one of the reserved fields.
  return a.kind == b.kind && a.block == b.block && a.rank == b.rank &&
         a.world_size == b.world_size && a.token_count == b.token_count &&
         (a.kind != ObjectKind::kLayer || a.layer == b.layer);
}

/// What version 1 leaves empty. A later writer that uses it without a new version is refused.
bool reserved_is_zero(const std::byte* in) {
  const auto zero = [](std::byte value) { return value == std::byte{0}; };
  const bool has_layer =
      get_le<std::uint16_t>(in + kKindAt) == static_cast<std::uint16_t>(ObjectKind::kLayer);
  return std::all_of(in + kFlagsAt, in + kLayoutAt, zero) &&
         (has_layer || std::all_of(in + kLayerAt, in + kPayloadBytesAt, zero)) &&
         std::all_of(in + kReserved2At, in + kChecksumAt, zero);
}

}  // namespace

std::string_view to_string(Rejection rejection) {
  switch (rejection) {
    case Rejection::kNone:
      return "none";
    case Rejection::kSize:
      return "size";
    case Rejection::kMagic:
      return "magic";
    case Rejection::kVersion:
      return "version";
    case Rejection::kLayout:
      return "layout";
    case Rejection::kIdentity:
      return "identity";
    case Rejection::kChecksum:
      return "checksum";
  }
  return "unknown";
}

void seal_block(const BlockDescription& description, std::span<std::byte> object) {
  KVC_CHECK(object.size() >= kBlockHeaderBytes &&
                object.size() - kBlockHeaderBytes == description.payload_bytes,
            "a block's buffer has not the size of header and payload");
  write_header(description, object.data());
  put_le(object.data() + kChecksumAt, checksum_of(object));
}

Rejection verify_block(const BlockDescription& expected, std::span<const std::byte> object) {
  // What costs nothing comes first; each answer is as specific as it can be without the checksum.
  if (object.size() < kBlockHeaderBytes) return Rejection::kSize;
  if (!has_magic(object)) return Rejection::kMagic;
  const std::byte* header = object.data();
  if (get_le<std::uint16_t>(header + kVersionAt) != kBlockFormatVersion ||
      get_le<std::uint16_t>(header + kHeaderBytesAt) != kBlockHeaderBytes) {
    return Rejection::kVersion;
  }
  const BlockDescription found = read_header(header);
  if (found.payload_bytes != expected.payload_bytes ||
      found.payload_bytes != object.size() - kBlockHeaderBytes) {
    return Rejection::kSize;
  }
  if (!KVC_PLANTED("ignore_layout") && found.layout != expected.layout) return Rejection::kLayout;
  if (!KVC_PLANTED("ignore_identity") && !same_identity(found, expected)) {
    return Rejection::kIdentity;
  }
  if (!KVC_PLANTED("ignore_checksum") &&
      get_le<std::uint64_t>(header + kChecksumAt) != checksum_of(object)) {
    return Rejection::kChecksum;
  }
  return reserved_is_zero(header) ? Rejection::kNone : Rejection::kVersion;
}

bool read_block_description(std::span<const std::byte> object, BlockDescription* description,
                            std::uint16_t* version) {
  if (object.size() < kBlockHeaderBytes || !has_magic(object)) return false;
  *description = read_header(object.data());
  *version = get_le<std::uint16_t>(object.data() + kVersionAt);
  return true;
}

}  // namespace kvc
