#include "kvc/block_format.h"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <array>
#include <set>
#include <vector>

#include "base/bytes.h"
#include "base/random.h"
#include "format/block_header.h"
#include "testing/seed.h"

namespace kvc {
namespace {

BlockDescription description_of(std::uint64_t payload_bytes, ObjectKind kind = ObjectKind::kShard) {
  BlockDescription description;
  description.kind = kind;
  Random(1).fill(description.layout);
  Random(2).fill(description.block.bytes);
  description.rank = 3;
  description.world_size = 8;
  description.token_count = 32;
  description.payload_bytes = payload_bytes;
  return description;
}

std::vector<std::byte> sealed(const BlockDescription& description, std::uint64_t seed = 7) {
  std::vector<std::byte> object(kBlockHeaderBytes +
                                static_cast<std::size_t>(description.payload_bytes));
  Random(seed).fill(object);  // The header is overwritten, whatever stood there.
  seal_block(description, object);
  return object;
}

void flip(std::vector<std::byte>* object, std::size_t bit) {
  (*object)[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
}

TEST(BlockFormat, ASealedBlockIsAccepted) {
  for (const std::uint64_t payload_bytes : {0u, 1u, 15u, 16u, 17u, 240u, 241u, 4096u, 100001u}) {
    for (const ObjectKind kind : {ObjectKind::kShard, ObjectKind::kReady, ObjectKind::kManifest}) {
      const BlockDescription description = description_of(payload_bytes, kind);
      EXPECT_EQ(verify_block(description, sealed(description)), Rejection::kNone);
    }
  }
}

TEST(BlockFormat, SealingLeavesThePayloadAlone) {
  const BlockDescription description = description_of(1000);
  std::vector<std::byte> before(kBlockHeaderBytes + 1000);
  Random(7).fill(before);
  const std::vector<std::byte> object = sealed(description, 7);
  EXPECT_TRUE(std::equal(object.begin() + kBlockHeaderBytes, object.end(),
                         before.begin() + kBlockHeaderBytes));
}

TEST(BlockFormat, EqualInputGivesEqualBytes) {
  std::vector<std::byte> first(kBlockHeaderBytes, std::byte{0x00});
  std::vector<std::byte> second(kBlockHeaderBytes, std::byte{0xff});
  seal_block(description_of(0), first);
  seal_block(description_of(0), second);
  EXPECT_EQ(first, second);
}

TEST(BlockFormat, EveryBitFlipOfTheHeaderIsRejected) {
  for (const std::uint64_t payload_bytes : {0u, 64u, 5000u}) {
    const BlockDescription description = description_of(payload_bytes);
    std::vector<std::byte> object = sealed(description);
    for (std::size_t bit = 0; bit < 8 * kBlockHeaderBytes; ++bit) {
      flip(&object, bit);
      EXPECT_NE(verify_block(description, object), Rejection::kNone) << "bit " << bit;
      flip(&object, bit);
    }
    EXPECT_EQ(verify_block(description, object), Rejection::kNone);
  }
}

TEST(BlockFormat, EveryBitFlipOfASmallPayloadIsRejectedByTheChecksum) {
  for (const std::uint64_t payload_bytes : {1u, 3u, 8u, 16u, 100u, 200u, 300u}) {
    const BlockDescription description = description_of(payload_bytes);
    std::vector<std::byte> object = sealed(description);
    for (std::size_t bit = 8 * kBlockHeaderBytes; bit < 8 * object.size(); ++bit) {
      flip(&object, bit);
      EXPECT_EQ(verify_block(description, object), Rejection::kChecksum) << "bit " << bit;
      flip(&object, bit);
    }
  }
}

TEST(BlockFormat, RandomDamageOfALargePayloadIsRejectedByTheChecksum) {
  Random random(testlib::test_seed(11));
  const BlockDescription description = description_of(1u << 20);
  std::vector<std::byte> object = sealed(description);
  const std::size_t payload_bits = 8 * (object.size() - kBlockHeaderBytes);
  for (int round = 0; round < 300; ++round) {
    std::set<std::size_t> bits;
    const std::size_t count = 1 + random.below(4);
    while (bits.size() < count) bits.insert(8 * kBlockHeaderBytes + random.below(payload_bits));
    for (const std::size_t bit : bits) flip(&object, bit);
    EXPECT_EQ(verify_block(description, object), Rejection::kChecksum);
    for (const std::size_t bit : bits) flip(&object, bit);
  }
  EXPECT_EQ(verify_block(description, object), Rejection::kNone);
}

TEST(BlockFormat, TwoExchangedPagesAreRejected) {
  const BlockDescription description = description_of(8192);
  std::vector<std::byte> object = sealed(description);
  const auto payload = object.begin() + kBlockHeaderBytes;
  std::swap_ranges(payload, payload + 4096, payload + 4096);
  EXPECT_EQ(verify_block(description, object), Rejection::kChecksum);
}

TEST(BlockFormat, APayloadUnderTheHeaderOfAnotherBlockIsRejected) {
  const BlockDescription description = description_of(512);
  BlockDescription other = description;
  other.block.bytes[5] ^= std::byte{1};
  std::vector<std::byte> object = sealed(description);
  const std::vector<std::byte> foreign = sealed(other, 8);
  std::copy_n(foreign.begin(), kBlockHeaderBytes, object.begin());
  EXPECT_EQ(verify_block(other, object), Rejection::kChecksum);
}

TEST(BlockFormat, EveryFieldOfTheExpectationCounts) {
  const BlockDescription description = description_of(256);
  const std::vector<std::byte> object = sealed(description);
  const auto rejection = [&](auto change) {
    BlockDescription expected = description;
    change(expected);
    return verify_block(expected, object);
  };
  EXPECT_EQ(rejection([](auto& e) { e.layout[15] ^= std::byte{1}; }), Rejection::kLayout);
  EXPECT_EQ(rejection([](auto& e) { e.block.bytes[31] ^= std::byte{1}; }), Rejection::kIdentity);
  EXPECT_EQ(rejection([](auto& e) { e.rank = 2; }), Rejection::kIdentity);
  EXPECT_EQ(rejection([](auto& e) { e.world_size = 4; }), Rejection::kIdentity);
  EXPECT_EQ(rejection([](auto& e) { e.token_count = 31; }), Rejection::kIdentity);
  EXPECT_EQ(rejection([](auto& e) { e.kind = ObjectKind::kLayer; }), Rejection::kIdentity);
  EXPECT_EQ(rejection([](auto& e) { e.kind = ObjectKind::kReady; }), Rejection::kIdentity);
  EXPECT_EQ(rejection([](auto& e) { e.payload_bytes = 255; }), Rejection::kSize);
  EXPECT_EQ(rejection([](auto& e) { e.payload_bytes = 257; }), Rejection::kSize);
}

TEST(BlockFormat, EveryTruncationAndEveryTailIsRejected) {
  const BlockDescription description = description_of(300);
  std::vector<std::byte> object = sealed(description);
  for (std::size_t size = 0; size < object.size(); ++size) {
    EXPECT_EQ(verify_block(description, std::span<const std::byte>(object).first(size)),
              Rejection::kSize);
  }
  object.push_back(std::byte{0});
  EXPECT_EQ(verify_block(description, object), Rejection::kSize);
}

TEST(BlockFormat, ForeignBytesHaveNoMagic) {
  const BlockDescription description = description_of(300);
  std::vector<std::byte> object(kBlockHeaderBytes + 300);
  EXPECT_EQ(verify_block(description, object), Rejection::kMagic);
  Random(3).fill(object);
  EXPECT_EQ(verify_block(description, object), Rejection::kMagic);
}

TEST(BlockFormat, AnotherVersionIsRefusedByName) {
  const BlockDescription description = description_of(300);
  for (const std::uint16_t version : std::to_array<std::uint16_t>({0, 2, 3, 256, 65535})) {
    std::vector<std::byte> object = sealed(description);
    put_le(object.data() + block_header::kVersionAt, version);
    EXPECT_EQ(verify_block(description, object), Rejection::kVersion) << version;
    BlockDescription found;
    std::uint16_t claimed = 0;
    ASSERT_TRUE(read_block_description(object, &found, &claimed));
    EXPECT_EQ(claimed, version);
  }
  std::vector<std::byte> object = sealed(description);
  put_le(object.data() + block_header::kHeaderBytesAt, std::uint16_t{256});
  EXPECT_EQ(verify_block(description, object), Rejection::kVersion);
}

TEST(BlockFormat, ReadsWhatTheHeaderClaims) {
  const BlockDescription description = description_of(77, ObjectKind::kManifest);
  std::vector<std::byte> object = sealed(description);
  object.back() ^= std::byte{1};  // The claim is read without the checksum.
  BlockDescription found;
  std::uint16_t version = 0;
  ASSERT_TRUE(read_block_description(object, &found, &version));
  EXPECT_EQ(version, kBlockFormatVersion);
  EXPECT_EQ(found.kind, description.kind);
  EXPECT_EQ(found.layout, description.layout);
  EXPECT_EQ(found.block, description.block);
  EXPECT_EQ(found.rank, description.rank);
  EXPECT_EQ(found.world_size, description.world_size);
  EXPECT_EQ(found.token_count, description.token_count);
  EXPECT_EQ(found.payload_bytes, description.payload_bytes);
  EXPECT_FALSE(
      read_block_description(std::span<const std::byte>(object).first(127), &found, &version));
  object[0] ^= std::byte{1};
  EXPECT_FALSE(read_block_description(object, &found, &version));
}

// Random bytes, random bytes behind a genuine beginning of any length, and headers that claim sizes
// at the limits: never accepted, never read outside the buffer (the sanitizer builds watch that).
TEST(BlockFormat, RandomBytesAreNeverAccepted) {
  Random random(testlib::test_seed(12));
  const BlockDescription description = description_of(200);
  const std::vector<std::byte> genuine = sealed(description);
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::byte> object(random.below(genuine.size() + 40));
    random.fill(object);
    std::copy_n(genuine.begin(), random.below(std::min(object.size(), genuine.size() - 1) + 1),
                object.begin());
    if (object.size() >= kBlockHeaderBytes && random.below(4) == 0) {
      const std::uint64_t sizes[] = {0, object.size(), ~0ull, ~0ull - 127, 1ull << 63};
      put_le(object.data() + block_header::kPayloadBytesAt, sizes[random.below(5)]);
    }
    if (object == genuine) continue;
    EXPECT_NE(verify_block(description, object), Rejection::kNone);
    BlockDescription found;
    std::uint16_t version = 0;
    static_cast<void>(read_block_description(object, &found, &version));
  }
}

// A writer of a later build that put something into what version 1 leaves empty, checksum and all.
TEST(BlockFormat, UsedReservedBytesAreRefusedEvenWithARightChecksum) {
  const BlockDescription description = description_of(300);
  for (const std::size_t at :
       {block_header::kFlagsAt, block_header::kLayerAt, block_header::kReserved2At + 31}) {
    std::vector<std::byte> object = sealed(description);
    object[at] = std::byte{1};
    // As docs/format/block.md defines the checksum.
    const auto seed = XXH3_64bits(object.data(), block_header::kChecksumAt);
    put_le(object.data() + block_header::kChecksumAt,
           XXH3_64bits_withSeed(object.data() + kBlockHeaderBytes, 300, seed));
    EXPECT_EQ(verify_block(description, object), Rejection::kVersion) << at;
  }
}

TEST(BlockFormatDeathTest, SealingABufferOfAnotherSizeEndsTheProcess) {
  std::vector<std::byte> object(kBlockHeaderBytes + 10);
  EXPECT_DEATH(seal_block(description_of(11), object), "size of header and payload");
  EXPECT_DEATH(seal_block(description_of(0), std::span<std::byte>(object).first(100)),
               "size of header and payload");
}

TEST(Rejection, EveryReasonHasANameOfItsOwn) {
  std::set<std::string_view> names;
  for (const Rejection reason :
       {Rejection::kNone, Rejection::kSize, Rejection::kMagic, Rejection::kVersion,
        Rejection::kLayout, Rejection::kIdentity, Rejection::kChecksum}) {
    names.insert(to_string(reason));
  }
  EXPECT_EQ(names.size(), 7u);
  EXPECT_FALSE(names.contains("unknown"));
}

TEST(BlockFormat, LayerOfAnotherPlaceIsRejected) {
  BlockDescription layer;
  layer.kind = ObjectKind::kLayer;
  layer.layer = 3;
  layer.payload_bytes = 8;
  std::vector<std::byte> object(kBlockHeaderBytes + 8);
  seal_block(layer, object);
  EXPECT_EQ(verify_block(layer, object), Rejection::kNone);
  BlockDescription other = layer;
  other.layer = 4;
  EXPECT_EQ(verify_block(other, object), Rejection::kIdentity);
  BlockDescription found;
  std::uint16_t version = 0;
  ASSERT_TRUE(read_block_description(object, &found, &version));
  EXPECT_EQ(found.layer, 3u);
}

}  // namespace
}  // namespace kvc
