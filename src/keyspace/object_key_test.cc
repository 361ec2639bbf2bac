#include "kvc/object_key.h"

#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "base/bytes.h"

namespace kvc {
namespace {

TEST(ObjectKeys, HaveTheDocumentedForm) {
  Fingerprint keyspace;
  keyspace.fill(std::byte{0xa0});
  BlockHash block;
  block.bytes.fill(std::byte{0x1f});
  const ObjectKeys keys(keyspace);
  std::string prefix = "kvc1/";
  for (int i = 0; i < 16; ++i) prefix += "a0";
  prefix += "/";
  for (int i = 0; i < 32; ++i) prefix += "1f";
  EXPECT_EQ(keys.shard(block, 0), prefix + "/r0");
  EXPECT_EQ(keys.shard(block, 12), prefix + "/r12");
  EXPECT_EQ(keys.ready(block, 12), prefix + "/r12/ready");
  EXPECT_EQ(keys.manifest(block), prefix + "/manifest");
  EXPECT_EQ(keys.shard(block, std::numeric_limits<std::uint32_t>::max()), prefix + "/r4294967295");
  EXPECT_EQ(keys.keyspace(), keyspace);
  const ObjectKeys by_layer(keyspace, Granularity::kLayer);
  EXPECT_EQ(by_layer.layer(block, 12, 7), prefix + "/layers/r12/7");
  EXPECT_EQ(by_layer.ready(block, 12), prefix + "/layers/r12/ready");
  EXPECT_EQ(by_layer.manifest(block), prefix + "/layers/manifest");
}

TEST(ObjectKeys, AllDiffer) {
  std::set<std::string> seen;
  for (int keyspace = 0; keyspace < 3; ++keyspace) {
    Fingerprint fingerprint{};
    fingerprint[15] = static_cast<std::byte>(keyspace);
    const ObjectKeys keys(fingerprint);
    const ObjectKeys by_layer(fingerprint, Granularity::kLayer);
    for (int block = 0; block < 3; ++block) {
      BlockHash hash;
      hash.bytes[31] = static_cast<std::byte>(block);
      for (std::uint32_t rank = 0; rank < 12; ++rank) {
        seen.insert(keys.shard(hash, rank));
        seen.insert(keys.ready(hash, rank));
        seen.insert(by_layer.ready(hash, rank));
        for (std::uint32_t layer = 0; layer < 12; ++layer) {
          seen.insert(by_layer.layer(hash, rank, layer));
        }
      }
      seen.insert(keys.manifest(hash));
      seen.insert(by_layer.manifest(hash));
    }
  }
  EXPECT_EQ(seen.size(), 3u * 3u * (12u * 15u + 2u));
}

}  // namespace
}  // namespace kvc
