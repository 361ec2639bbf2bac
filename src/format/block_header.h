// The 128 bytes in front of every stored object, field by field. Little-endian; written to disks
// and remote memory: do not move a field, do not change a value. docs/format/block.md
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kvc/block_format.h"

namespace kvc::block_header {

/// A byte that is not ASCII, a name, and line ends that text conversions would alter.
inline constexpr std::array<std::uint8_t, 8> kMagic = {0x8b, 'k', 'v', 'c', 0x0d, 0x0a, 0x1a, 0x0a};

inline constexpr std::size_t kMagicAt = 0;          // 8 bytes
inline constexpr std::size_t kVersionAt = 8;        // u16
inline constexpr std::size_t kHeaderBytesAt = 10;   // u16
inline constexpr std::size_t kKindAt = 12;          // u16
inline constexpr std::size_t kFlagsAt = 14;         // u16, zero
inline constexpr std::size_t kLayoutAt = 16;        // 16 bytes
inline constexpr std::size_t kBlockAt = 32;         // 32 bytes
inline constexpr std::size_t kRankAt = 64;          // u32
inline constexpr std::size_t kWorldSizeAt = 68;     // u32
inline constexpr std::size_t kTokenCountAt = 72;    // u32
inline constexpr std::size_t kLayerAt = 76;         // u32, zero but of kLayer
inline constexpr std::size_t kPayloadBytesAt = 80;  // u64
inline constexpr std::size_t kReserved2At = 88;     // 32 bytes, zero
inline constexpr std::size_t kChecksumAt = 120;     // u64

static_assert(kVersionAt == kMagicAt + kMagic.size());
static_assert(kLayoutAt == kFlagsAt + sizeof(std::uint16_t));
static_assert(kBlockAt == kLayoutAt + sizeof(Fingerprint));
static_assert(kRankAt == kBlockAt + sizeof(BlockHash));
static_assert(kPayloadBytesAt == kLayerAt + sizeof(std::uint32_t));
static_assert(kPayloadBytesAt % alignof(std::uint64_t) == 0);
static_assert(kReserved2At == kPayloadBytesAt + sizeof(std::uint64_t));
static_assert(kBlockHeaderBytes == kChecksumAt + sizeof(std::uint64_t));
static_assert(kBlockHeaderBytes == 128 && kBlockHeaderBytes % 64 == 0,
              "the payload starts on a cache line of an aligned buffer");

}  // namespace kvc::block_header
