// The library against the vectors of tests/golden, which an independent program computed.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "kvc/block_hash.h"
#include "kvc/identity.h"
#include "kvc/object_key.h"
#include "os/file.h"

namespace kvc {
namespace {

using Json = nlohmann::json;

Json golden(const std::string& name) {
  const Result<std::string> text =
      read_file(std::string(KVC_SOURCE_DIR) + "/tests/golden/" + name, 1u << 20);
  EXPECT_TRUE(text.ok()) << text.status().to_string();
  return Json::parse(text.ok() ? *text : "[]");
}

std::vector<std::byte> from_hex(const std::string& text) {
  std::vector<std::byte> bytes(text.size() / 2);
  EXPECT_TRUE(hex_decode(text, bytes)) << text;
  return bytes;
}

KeyspaceIdentity identity_of(const Json& fields) {
  KeyspaceIdentity identity;
  fields.at("key_epoch").get_to(identity.key_epoch);
  fields.at("model_content").get_to(identity.model_content);
  fields.at("tokenizer").get_to(identity.tokenizer);
  fields.at("engine_layout").get_to(identity.engine_layout);
  fields.at("kv_dtype").get_to(identity.kv_dtype);
  fields.at("kv_quantization").get_to(identity.kv_quantization);
  fields.at("attention_backend").get_to(identity.attention_backend);
  fields.at("tokens_per_block").get_to(identity.tokens_per_block);
  fields.at("layers").get_to(identity.layers);
  fields.at("bytes_per_page").get_to(identity.bytes_per_page);
  fields.at("kv_factor").get_to(identity.kv_factor);
  fields.at("element_bytes").get_to(identity.element_bytes);
  fields.at("tensor_parallel_size").get_to(identity.tensor_parallel_size);
  fields.at("pipeline_parallel_size").get_to(identity.pipeline_parallel_size);
  fields.at("context_parallel_size").get_to(identity.context_parallel_size);
  fields.at("expert_parallel_size").get_to(identity.expert_parallel_size);
  fields.at("layer_group").get_to(identity.layer_group);
  fields.at("window_tokens").get_to(identity.window_tokens);
  EXPECT_EQ(fields.size(), 18u) << "a field that this test does not know";
  return identity;
}

CacheSalt salt_of(const Json& salt) {
  if (salt.is_null()) return {};
  if (salt.is_string()) return salt.get<std::string>();
  if (salt.is_number_unsigned()) return salt.get<std::uint64_t>();
  return salt.get<std::int64_t>();
}

TEST(Golden, KeyspaceFingerprints) {
  const Json cases = golden("keyspace.json");
  ASSERT_GE(cases.size(), 20u);
  for (const Json& vector : cases) {
    EXPECT_EQ(to_hex(keyspace_fingerprint(identity_of(vector.at("fields")))),
              vector.at("fingerprint"))
        << vector.at("name");
  }
}

TEST(Golden, BlockHashes) {
  const Json cases = golden("block_hash.json");
  ASSERT_GE(cases.size(), 26u);
  for (const Json& vector : cases) {
    const std::vector<std::byte> secret = from_hex(vector.at("deployment_secret_hex"));
    RequestScope scope;
    scope.cache_salt = salt_of(vector.at("cache_salt"));
    if (!vector.at("lora").is_null()) scope.lora = vector.at("lora").get<std::string>();
    std::vector<MediaItem> media;
    for (const Json& item : vector.at("media")) {
      media.push_back({from_hex(item.at("digest")), item.at("start"), item.at("length")});
    }
    Result<BlockChain> chain = BlockChain::create(
        {vector.at("tokens_per_block"), std::string(as_text(secret))}, scope, std::move(media));
    ASSERT_TRUE(chain.ok()) << vector.at("name") << chain.status().to_string();
    ASSERT_TRUE(chain->append(vector.at("tokens").get<std::vector<Token>>()).ok());
    std::vector<std::string> blocks;
    for (const BlockHash& block : chain->blocks()) blocks.push_back(to_hex(block));
    EXPECT_EQ(Json(blocks), vector.at("blocks")) << vector.at("name");
  }
}

TEST(Golden, ThePageShowsItsExample) {
  const Result<std::string> page =
      read_file(std::string(KVC_SOURCE_DIR) + "/docs/format/key.md", 1u << 20);
  ASSERT_TRUE(page.ok()) << page.status().to_string();
  int found = 0;
  for (const Json& vector : golden("block_hash.json")) {
    if (vector.at("name") != "example of the page") continue;
    ++found;
    EXPECT_NE(page->find("h(0)     " + vector.at("blocks").at(0).get<std::string>()),
              std::string::npos);
  }
  EXPECT_EQ(found, 1);
}

TEST(Golden, ObjectKeys) {
  const Json cases = golden("object_key.json");
  ASSERT_GE(cases.size(), 4u);
  for (const Json& vector : cases) {
    Fingerprint keyspace;
    BlockHash block;
    ASSERT_TRUE(hex_decode(vector.at("keyspace").get<std::string>(), keyspace));
    ASSERT_TRUE(hex_decode(vector.at("block").get<std::string>(), block.bytes));
    const ObjectKeys keys(keyspace);
    const std::uint32_t rank = vector.at("rank");
    EXPECT_EQ(keys.shard(block, rank), vector.at("shard"));
    EXPECT_EQ(keys.ready(block, rank), vector.at("ready"));
    EXPECT_EQ(keys.manifest(block), vector.at("manifest"));
    const ObjectKeys by_layer(keyspace, Granularity::kLayer);
    EXPECT_EQ(by_layer.layer(block, rank, 0), vector.at("layers").at(0));
    EXPECT_EQ(by_layer.layer(block, rank, 1), vector.at("layers").at(1));
    EXPECT_EQ(by_layer.layer(block, rank, 79), vector.at("layers").at(2));
    EXPECT_EQ(by_layer.ready(block, rank), vector.at("layers_ready"));
    EXPECT_EQ(by_layer.manifest(block), vector.at("layers_manifest"));
  }
}

}  // namespace
}  // namespace kvc
