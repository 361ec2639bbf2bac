#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <utility>

#include "base/bytes.h"
#include "base/random.h"
#include "kvc/identity.h"
#include "testing/seed.h"

namespace kvc {
namespace {

KeyspaceIdentity base_identity() {
  KeyspaceIdentity identity;
  identity.model_content = "sha256:11";
  identity.tokenizer = "sha256:22";
  identity.engine_layout = "paged-1";
  identity.kv_dtype = "bfloat16";
  identity.attention_backend = "flash";
  identity.tokens_per_block = 32;
  identity.layers = {0, 1, 2};
  identity.bytes_per_page = 4096;
  identity.kv_factor = 2;
  identity.element_bytes = 2;
  return identity;
}

using Change = std::function<void(KeyspaceIdentity&)>;

/// Each alters one field alone.
std::map<std::string, Change> single_changes() {
  return {
      {"key_epoch", [](auto& i) { i.key_epoch = 1; }},
      {"model_content", [](auto& i) { i.model_content = "sha256:12"; }},
      {"model_content empty", [](auto& i) { i.model_content.clear(); }},
      {"tokenizer", [](auto& i) { i.tokenizer = "sha256:23"; }},
      {"engine_layout", [](auto& i) { i.engine_layout = "paged-2"; }},
      {"kv_dtype", [](auto& i) { i.kv_dtype = "float16"; }},
      {"kv_quantization", [](auto& i) { i.kv_quantization = "scales"; }},
      {"attention_backend", [](auto& i) { i.attention_backend = "other"; }},
      {"tokens_per_block", [](auto& i) { i.tokens_per_block = 64; }},
      {"layers more", [](auto& i) { i.layers.push_back(3); }},
      {"layers fewer", [](auto& i) { i.layers.pop_back(); }},
      {"layers others",
       [](auto& i) {
         i.layers = {3, 4, 5};
       }},
      {"layers none", [](auto& i) { i.layers.clear(); }},
      {"bytes_per_page", [](auto& i) { i.bytes_per_page = 8192; }},
      {"kv_factor", [](auto& i) { i.kv_factor = 1; }},
      {"element_bytes", [](auto& i) { i.element_bytes = 1; }},
      {"tensor_parallel_size", [](auto& i) { i.tensor_parallel_size = 2; }},
      {"pipeline_parallel_size", [](auto& i) { i.pipeline_parallel_size = 2; }},
      {"context_parallel_size", [](auto& i) { i.context_parallel_size = 2; }},
      {"expert_parallel_size", [](auto& i) { i.expert_parallel_size = 2; }},
      {"layer_group", [](auto& i) { i.layer_group = 1; }},
      {"window_tokens", [](auto& i) { i.window_tokens = 4096; }},
  };
}

TEST(KeyspaceFingerprint, EqualIdentitiesAreEqual) {
  EXPECT_EQ(keyspace_fingerprint(base_identity()), keyspace_fingerprint(base_identity()));
  EXPECT_EQ(to_hex(keyspace_fingerprint(base_identity())).size(), 32u);
}

TEST(KeyspaceFingerprint, EveryFieldAloneAndEveryPairOfChangesDiffer) {
  std::map<Fingerprint, std::string> seen;
  const auto see = [&seen](const KeyspaceIdentity& identity, const std::string& name) {
    const auto [at, inserted] = seen.emplace(keyspace_fingerprint(identity), name);
    EXPECT_TRUE(inserted) << name << " equals " << at->second;
  };
  see(base_identity(), "base");
  const auto changes = single_changes();
  for (auto first = changes.begin(); first != changes.end(); ++first) {
    KeyspaceIdentity one = base_identity();
    first->second(one);
    see(one, first->first);
    for (auto second = std::next(first); second != changes.end(); ++second) {
      // Two changes of one field are one change.
      if (first->first.substr(0, 5) == second->first.substr(0, 5)) continue;
      KeyspaceIdentity both = one;
      second->second(both);
      see(both, first->first + " and " + second->first);
    }
  }
  EXPECT_GT(seen.size(), 200u);
}

TEST(KeyspaceFingerprint, AValueThatMovesToAnotherFieldDiffers) {
  using Text = std::string KeyspaceIdentity::*;
  std::map<Fingerprint, int> seen;
  for (const Text field :
       {&KeyspaceIdentity::model_content, &KeyspaceIdentity::tokenizer,
        &KeyspaceIdentity::engine_layout, &KeyspaceIdentity::kv_dtype,
        &KeyspaceIdentity::kv_quantization, &KeyspaceIdentity::attention_backend}) {
    KeyspaceIdentity identity;
    identity.*field = "value";
    ++seen[keyspace_fingerprint(identity)];
  }
  using Number = std::uint32_t KeyspaceIdentity::*;
  for (const Number field :
       {&KeyspaceIdentity::tokens_per_block, &KeyspaceIdentity::kv_factor,
        &KeyspaceIdentity::element_bytes, &KeyspaceIdentity::tensor_parallel_size,
        &KeyspaceIdentity::pipeline_parallel_size, &KeyspaceIdentity::context_parallel_size,
        &KeyspaceIdentity::expert_parallel_size, &KeyspaceIdentity::layer_group}) {
    KeyspaceIdentity identity;
    identity.*field = 7;
    ++seen[keyspace_fingerprint(identity)];
  }
  EXPECT_EQ(seen.size(), 14u);
}

TEST(KeyspaceFingerprint, TextCutElsewhereDiffers) {
  KeyspaceIdentity first;
  first.model_content = "ab";
  first.tokenizer = "c";
  KeyspaceIdentity second;
  second.model_content = "a";
  second.tokenizer = "bc";
  KeyspaceIdentity third;
  third.model_content = "abc";
  EXPECT_NE(keyspace_fingerprint(first), keyspace_fingerprint(second));
  EXPECT_NE(keyspace_fingerprint(first), keyspace_fingerprint(third));
  EXPECT_NE(keyspace_fingerprint(second), keyspace_fingerprint(third));
}

TEST(KeyspaceFingerprint, TextThatLooksLikeAnEncodedFieldDiffers) {
  // The bytes that follow model_content in the encoding, put inside it.
  std::string forged = "a";
  std::vector<std::byte> bytes;
  ByteWriter writer(&bytes);
  writer.text("tokenizer");
  writer.u8(2);
  writer.text("b");
  forged += as_text(bytes);
  KeyspaceIdentity attack;
  attack.model_content = forged;
  KeyspaceIdentity plain;
  plain.model_content = "a";
  plain.tokenizer = "b";
  EXPECT_NE(keyspace_fingerprint(attack), keyspace_fingerprint(plain));
}

TEST(KeyspaceFingerprint, RandomTuplesAreEqualExactlyWhenTheirFieldsAre) {
  Random random(testlib::test_seed(1));
  const auto pick = [&random](auto... values) {
    const std::vector<std::string> all{values...};
    return all[random.below(all.size())];
  };
  std::map<Fingerprint, std::string> seen;
  for (int round = 0; round < 4000; ++round) {
    KeyspaceIdentity identity;
    identity.model_content = pick("", "a", "ab", "abc");
    identity.tokenizer = pick("", "a", "b", "bc", "c");
    identity.kv_dtype = pick("", "a", "ab");
    identity.key_epoch = random.below(3);
    identity.layer_group = static_cast<std::uint32_t>(random.below(3));
    identity.layers.resize(random.below(3), static_cast<std::uint32_t>(random.below(2)));
    std::string text = identity.model_content + "|" + identity.tokenizer + "|" + identity.kv_dtype +
                       "|" + std::to_string(identity.key_epoch) + "|" +
                       std::to_string(identity.layer_group) + "|";
    for (const std::uint32_t layer : identity.layers) text += std::to_string(layer) + ",";
    const auto [at, inserted] = seen.emplace(keyspace_fingerprint(identity), text);
    EXPECT_EQ(at->second, text);
  }
  EXPECT_GT(seen.size(), 500u);
}

}  // namespace
}  // namespace kvc
