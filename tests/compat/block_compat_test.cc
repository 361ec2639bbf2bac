// Every block file ever committed here is read for ever: accepted as what it is, or refused by
// name. Add files when the format gets a new version; never change or remove one.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "kvc/block_format.h"
#include "os/file.h"

namespace kvc {
namespace {

struct GoldenBlock {
  ObjectKind kind;
  std::uint64_t payload_bytes;
  std::uint16_t version;
  Rejection verdict;
};

const std::map<std::string, GoldenBlock>& golden_blocks() {
  static const std::map<std::string, GoldenBlock> kBlocks = {
      {"v1_shard.block", {ObjectKind::kShard, 1000, 1, Rejection::kNone}},
      {"v1_shard_small.block", {ObjectKind::kShard, 17, 1, Rejection::kNone}},
      {"v1_ready.block", {ObjectKind::kReady, 0, 1, Rejection::kNone}},
      {"v1_manifest.block", {ObjectKind::kManifest, 0, 1, Rejection::kNone}},
      {"v1_layer.block", {ObjectKind::kLayer, 1000, 1, Rejection::kNone}},
      {"v1_shard_altered.block", {ObjectKind::kShard, 1000, 1, Rejection::kChecksum}},
      {"v2_shard.block", {ObjectKind::kShard, 1000, 2, Rejection::kVersion}},
  };
  return kBlocks;
}

std::string folder() { return std::string(KVC_SOURCE_DIR) + "/tests/compat"; }

std::vector<std::byte> read_block(const std::string& name) {
  const Result<std::string> text = read_file(folder() + "/" + name, 1u << 20);
  EXPECT_TRUE(text.ok()) << text.status().to_string();
  if (!text.ok()) return {};
  return {as_bytes(*text).begin(), as_bytes(*text).end()};
}

/// The description that all of these files carry.
BlockDescription description_of(const GoldenBlock& golden) {
  BlockDescription description;
  description.kind = golden.kind;
  for (std::size_t i = 0; i < description.layout.size(); ++i) {
    description.layout[i] = static_cast<std::byte>(0xa0 + i);
  }
  for (std::size_t i = 0; i < description.block.bytes.size(); ++i) {
    description.block.bytes[i] = static_cast<std::byte>(i);
  }
  description.rank = 1;
  description.world_size = 2;
  description.token_count = 32;
  description.layer = golden.kind == ObjectKind::kLayer ? 5 : 0;
  description.payload_bytes = golden.payload_bytes;
  return description;
}

std::byte payload_byte(std::size_t i) { return static_cast<std::byte>((i * i * 31 + i * 7) % 251); }

TEST(BlockCompat, EveryFileOfTheFolderIsListedHere) {
  const auto entries = list_folder(folder(), 1000);
  ASSERT_TRUE(entries.ok()) << entries.status().to_string();
  std::size_t found = 0;
  for (const FolderEntry& entry : *entries) {
    if (!entry.name.ends_with(".block")) continue;
    ++found;
    EXPECT_TRUE(golden_blocks().contains(entry.name)) << entry.name;
  }
  EXPECT_EQ(found, golden_blocks().size());
}

TEST(BlockCompat, EveryFileIsReadOrRefusedByName) {
  for (const auto& [name, golden] : golden_blocks()) {
    const std::vector<std::byte> object = read_block(name);
    EXPECT_EQ(verify_block(description_of(golden), object), golden.verdict) << name;
    BlockDescription found;
    std::uint16_t version = 0;
    ASSERT_TRUE(read_block_description(object, &found, &version)) << name;
    EXPECT_EQ(version, golden.version) << name;
  }
}

TEST(BlockCompat, PayloadsStandBehindTheHeader) {
  for (const auto& [name, golden] : golden_blocks()) {
    if (golden.verdict != Rejection::kNone) continue;
    const std::vector<std::byte> object = read_block(name);
    ASSERT_EQ(object.size(), kBlockHeaderBytes + golden.payload_bytes) << name;
    for (std::size_t i = 0; i < golden.payload_bytes; ++i) {
      ASSERT_EQ(object[kBlockHeaderBytes + i], payload_byte(i)) << name << " byte " << i;
    }
  }
}

// What is written today is what was written then: a change of the format needs a new version.
TEST(BlockCompat, SealingWritesTheSameBytesAsEver) {
  for (const auto& [name, golden] : golden_blocks()) {
    if (golden.verdict != Rejection::kNone) continue;
    ASSERT_EQ(golden.version, kBlockFormatVersion) << name;
    std::vector<std::byte> object(kBlockHeaderBytes + golden.payload_bytes);
    for (std::size_t i = 0; i < golden.payload_bytes; ++i) {
      object[kBlockHeaderBytes + i] = payload_byte(i);
    }
    seal_block(description_of(golden), object);
    EXPECT_EQ(object, read_block(name)) << name;
  }
}

}  // namespace
}  // namespace kvc
