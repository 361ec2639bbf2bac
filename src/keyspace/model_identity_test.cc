#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "base/random.h"
#include "keyspace/safetensors.h"
#include "keyspace/sha256.h"
#include "kvc/identity.h"
#include "os/file.h"
#include "testing/seed.h"

namespace kvc {
namespace {

using Files = std::map<std::string, std::string>;

constexpr std::uint64_t kSampleEverything = 0;

std::string random_text(std::size_t bytes, std::uint64_t seed) {
  std::string text(bytes, '\0');
  Random(seed).fill(std::as_writable_bytes(std::span<char>(text.data(), text.size())));
  return text;
}

std::string with_length(const std::string& header, const std::string& body) {
  std::vector<std::byte> bytes;
  ByteWriter(&bytes).u64(header.size());
  return std::string(as_text(bytes)) + header + body;
}

/// Tensors of the given sizes, filled by `seed`.
std::string safetensors(const std::vector<std::size_t>& sizes, std::uint64_t seed) {
  std::string header = R"({"__metadata__":{"format":"pt"})";
  std::size_t at = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    header += ",\"t" + std::to_string(i) + R"(":{"dtype":"U8","shape":[)" +
              std::to_string(sizes[i]) + R"(],"data_offsets":[)" + std::to_string(at) + "," +
              std::to_string(at + sizes[i]) + "]}";
    at += sizes[i];
  }
  return with_length(header + "}", random_text(at, seed));
}

Files base_model() {
  return {{"config.json", R"({"hidden_size": 8})"},
          {"model-1.safetensors", safetensors({100, 4096, 5000, 40000}, 1)},
          {"model-2.safetensors", safetensors({3000, 9000}, 2)},
          {"tokenizer.json", "{}"},
          {"README.md", "text"}};
}

class ModelIdentityTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "kvc-model-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  std::filesystem::path write(const std::string& name, const Files& files) {
    std::filesystem::path folder = root_ / name;
    std::filesystem::remove_all(folder);
    std::filesystem::create_directories(folder);
    for (const auto& [file, text] : files) {
      std::ofstream(folder / file, std::ios::binary) << text;
    }
    return folder;
  }

  /// The layout of a hub's cache: weights in blobs/ under the name of their SHA-256, all else under
  /// shorter names, and links to them in snapshots/<commit>/. Without links the files themselves.
  std::filesystem::path write_hub(const std::string& name, const Files& files, bool links) {
    std::filesystem::path snapshot = root_ / name / "snapshots" / std::string(40, 'c');
    const std::filesystem::path blobs = root_ / name / "blobs";
    std::filesystem::create_directories(snapshot);
    std::filesystem::create_directories(blobs);
    for (const auto& [file, text] : files) {
      Sha256 hash;
      hash.add(as_bytes(text));
      std::string blob = hex_encode(hash.take());
      if (!file.ends_with(".safetensors")) blob.resize(40);
      std::ofstream(links ? blobs / blob : snapshot / file, std::ios::binary) << text;
      if (links) std::filesystem::create_symlink("../../blobs/" + blob, snapshot / file);
    }
    return snapshot;
  }

  Result<ModelIdentity> identify(const std::filesystem::path& folder,
                                 std::uint64_t limit = 1u << 30,
                                 std::optional<std::string> revision = std::nullopt) {
    return identify_model({folder, std::move(revision), limit});
  }

  ModelIdentity identity_of(const Files& files, std::uint64_t limit = 1u << 30) {
    const Result<ModelIdentity> identity = identify(write("model", files), limit);
    EXPECT_TRUE(identity.ok()) << identity.status().to_string();
    return identity.ok() ? *identity : ModelIdentity();
  }

  std::filesystem::path root_;
};

TEST_F(ModelIdentityTest, EqualFoldersAreEqualWhateverTheirPath) {
  for (const std::uint64_t limit : {kSampleEverything, std::uint64_t{1} << 30}) {
    const auto first = identify(write("first", base_model()), limit);
    const auto second = identify(write("deep/second", base_model()) / "", limit);
    ASSERT_TRUE(first.ok() && second.ok());
    EXPECT_EQ(first->content, second->content);
    EXPECT_EQ(first->tokenizer, second->tokenizer);
    EXPECT_EQ(first->content.find(root_.filename().string()), std::string::npos);
  }
}

TEST_F(ModelIdentityTest, TheEvidenceSaysHowMuchWasRead) {
  EXPECT_EQ(identity_of(base_model()).evidence, ModelEvidence::kFullDigest);
  EXPECT_EQ(identity_of(base_model(), kSampleEverything).evidence, ModelEvidence::kSampledDigest);
  EXPECT_NE(identity_of(base_model()).content, identity_of(base_model(), 0).content);
  const auto total = static_cast<std::uint64_t>(base_model()["model-1.safetensors"].size() +
                                                base_model()["model-2.safetensors"].size());
  EXPECT_EQ(identity_of(base_model(), total).evidence, ModelEvidence::kFullDigest);
  EXPECT_EQ(identity_of(base_model(), total - 1).evidence, ModelEvidence::kSampledDigest);
}

TEST_F(ModelIdentityTest, EveryPartOfTheContentCounts) {
  for (const std::uint64_t limit : {kSampleEverything, std::uint64_t{1} << 30}) {
    std::set<std::string> contents = {identity_of(base_model(), limit).content};
    const auto changed = [&](auto change) {
      Files files = base_model();
      change(files);
      contents.insert(identity_of(files, limit).content);
    };
    changed([](Files& f) { f["config.json"] += " "; });
    changed([](Files& f) { f.erase("config.json"); });
    changed([](Files& f) { f["hf_quant_config.json"] = "{}"; });
    changed([](Files& f) { f["modeling_x.py"] = "pass"; });
    changed([](Files& f) { f["preprocessor_config.json"] = "{}"; });
    changed([](Files& f) { f["model-1.safetensors"] = safetensors({100, 4096, 5000, 40000}, 9); });
    changed([](Files& f) { f["model-2.safetensors"] = safetensors({3000, 9001}, 2); });
    changed([](Files& f) { f.erase("model-2.safetensors"); });
    changed([](Files& f) { f["model-3.safetensors"] = safetensors({1}, 3); });
    changed([](Files& f) { std::swap(f["model-1.safetensors"], f["model-2.safetensors"]); });
    changed([](Files& f) { f["extra.gguf"] = "x"; });
    EXPECT_EQ(contents.size(), 12u) << limit;
  }
}

TEST_F(ModelIdentityTest, WhatIsNoPartOfTheModelDoesNotCount) {
  Files files = base_model();
  files["README.md"] = "other text";
  files["generation_config.json"] = "{}";
  EXPECT_EQ(identity_of(files).content, identity_of(base_model()).content);
}

TEST_F(ModelIdentityTest, TheTokenizerIsDigestedApart) {
  const ModelIdentity base = identity_of(base_model());
  EXPECT_TRUE(base.tokenizer.starts_with("sha256:"));
  Files files = base_model();
  files["tokenizer.json"] = "{ }";
  EXPECT_EQ(identity_of(files).content, base.content);
  EXPECT_NE(identity_of(files).tokenizer, base.tokenizer);
  files["tokenizer.json"] = "{}";
  files["x.tiktoken"] = "";
  EXPECT_NE(identity_of(files).tokenizer, base.tokenizer);
  files = base_model();
  files["tokenizer.model"] = files["tokenizer.json"];
  files.erase("tokenizer.json");
  EXPECT_NE(identity_of(files).tokenizer, base.tokenizer);
  files.erase("tokenizer.model");
  EXPECT_EQ(identity_of(files).tokenizer, "");
}

// Two fine-tunes have equal headers and sizes; only the weights differ, in every tensor.
TEST_F(ModelIdentityTest, SamplesSeeEveryTensorOfASafetensorsFile) {
  const std::vector<std::size_t> sizes = {1, 100, 4095, 4096, 4097, 5000, 40000, 1, 70000};
  const std::string file = safetensors(sizes, 1);
  std::size_t at = file.size();
  for (const std::size_t size : sizes) at -= size;
  std::set<std::string> contents = {identity_of({{"m.safetensors", file}}, 0).content};
  std::size_t changes = 0;
  const auto flip = [&](std::size_t place) {
    std::string changed = file;
    changed[place] = static_cast<char>(changed[place] ^ 1);
    contents.insert(identity_of({{"m.safetensors", changed}}, 0).content);
    ++changes;
  };
  for (const std::size_t size : sizes) {
    std::set<std::size_t> places = {at, at + size - 1};
    if (size <= 4096) places.insert(at + size / 2);
    for (const std::size_t place : places) flip(place);
    at += size;
  }
  EXPECT_EQ(contents.size(), changes + 1);
  EXPECT_GE(changes, 2 * sizes.size());
}

TEST_F(ModelIdentityTest, SamplesOfOtherFormatsHaveAFixedStride) {
  const std::string file = random_text((9u << 20) + 17, 4);
  std::set<std::string> contents = {identity_of({{"m.gguf", file}}, 0).content};
  const std::set<std::size_t> places = {
      0,        (1u << 20) - 1,           4u << 20,       (4u << 20) + 4095,
      8u << 20, file.size() - (1u << 20), file.size() - 1};
  for (const std::size_t place : places) {
    std::string changed = file;
    changed[place] = static_cast<char>(changed[place] ^ 1);
    contents.insert(identity_of({{"m.gguf", changed}}, 0).content);
  }
  contents.insert(identity_of({{"m.gguf", file + "x"}}, 0).content);
  EXPECT_EQ(contents.size(), places.size() + 2);
}

TEST_F(ModelIdentityTest, EveryByteCountsInAFullDigest) {
  const std::string file = safetensors({20000}, 1);
  std::string changed = file;
  changed[file.size() - 7001] = static_cast<char>(changed[file.size() - 7001] ^ 1);
  EXPECT_NE(identity_of({{"m.safetensors", file}}).content,
            identity_of({{"m.safetensors", changed}}).content);
}

TEST_F(ModelIdentityTest, AStatedRevisionReplacesTheWeightsAndNotTheConfiguration) {
  const auto stated = [&](const Files& files, const std::string& revision) {
    const auto identity = identify(write("model", files), 1u << 30, revision);
    EXPECT_TRUE(identity.ok()) << identity.status().to_string();
    EXPECT_EQ(identity->evidence, ModelEvidence::kStatedRevision);
    return *identity;
  };
  Files other_weights = base_model();
  other_weights["model-1.safetensors"] = "anything";
  Files other_configuration = base_model();
  other_configuration["config.json"] = "{}";
  const ModelIdentity base = stated(base_model(), "r1");
  EXPECT_EQ(stated(other_weights, "r1").content, base.content);
  EXPECT_NE(stated(other_configuration, "r1").content, base.content);
  EXPECT_NE(stated(base_model(), "r2").content, base.content);
  EXPECT_EQ(base.tokenizer, identity_of(base_model()).tokenizer);
}

TEST_F(ModelIdentityTest, AStatedRevisionNeedsNoFolder) {
  const auto first = identify_model({std::nullopt, "r1"});
  const auto second = identify_model({"organisation/model", "r1"});
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->content, second->content);
  EXPECT_EQ(first->tokenizer, "");
}

TEST_F(ModelIdentityTest, WithoutWeightsAndRevisionTheRemedyIsNamed) {
  const auto refusal = [](const Result<ModelIdentity>& identity) {
    EXPECT_FALSE(identity.ok());
    EXPECT_EQ(identity.status().code(), Code::kInvalid);
    EXPECT_NE(identity.status().message().find("MC_MODEL_REVISION"), std::string::npos);
    return identity.status().message();
  };
  EXPECT_NE(
      refusal(identify(write("empty", {{"config.json", "{}"}}))).find("holds no weight files"),
      std::string::npos);
  EXPECT_NE(refusal(identify(root_ / "absent")).find("absent' is not a folder"), std::string::npos);
  EXPECT_NE(refusal(identify_model({})).find("no folder"), std::string::npos);
  EXPECT_NE(refusal(identify_model({std::nullopt, ""})).find("no folder"), std::string::npos);
}

TEST_F(ModelIdentityTest, AHubSnapshotIsTheSameModelAsACopyOfItsFiles) {
  const auto snapshot = identify(write_hub("hub", base_model(), true), 0);
  ASSERT_TRUE(snapshot.ok()) << snapshot.status().to_string();
  EXPECT_EQ(snapshot->evidence, ModelEvidence::kHubSnapshot);
  EXPECT_EQ(snapshot->content, identity_of(base_model()).content);
  EXPECT_EQ(snapshot->tokenizer, identity_of(base_model()).tokenizer);
}

TEST_F(ModelIdentityTest, TheBlobsOfAHubSnapshotAreNotRead) {
  const auto folder = write_hub("hub", base_model(), true);
  const std::string content = identify(folder)->content;
  const auto blob = std::filesystem::canonical(folder / "model-1.safetensors");
  const auto bytes = std::filesystem::file_size(blob);
  std::ofstream(blob, std::ios::binary) << std::string(bytes, 'x');
  EXPECT_EQ(identify(folder)->content, content);
  std::filesystem::resize_file(blob, bytes - 1);
  EXPECT_NE(identify(folder)->content, content) << "the size is compared all the same";
}

TEST_F(ModelIdentityTest, OneWeightFileThatIsNoLinkToABlobEndsTheTrustInNames) {
  Files files = base_model();
  const auto folder = write_hub("hub", files, true);
  std::filesystem::remove(folder / "model-2.safetensors");
  std::ofstream(folder / "model-2.safetensors", std::ios::binary) << files["model-2.safetensors"];
  EXPECT_EQ(identify(folder)->evidence, ModelEvidence::kRevisionFolder);

  const auto plain = write("plain", base_model());
  std::filesystem::rename(plain / "model-1.safetensors", root_ / std::string(64, 'a'));
  std::filesystem::create_symlink("../" + std::string(64, 'a'), plain / "model-1.safetensors");
  EXPECT_EQ(identify(plain)->evidence, ModelEvidence::kFullDigest) << "not a folder of blobs";
}

TEST_F(ModelIdentityTest, ARevisionFolderIsNamedByItsCommit) {
  const auto folder = write_hub("hub", base_model(), false);
  const auto identity = identify(folder);
  ASSERT_TRUE(identity.ok()) << identity.status().to_string();
  EXPECT_EQ(identity->evidence, ModelEvidence::kRevisionFolder);

  const auto elsewhere = write_hub("other/hub", base_model(), false);
  EXPECT_EQ(identify(elsewhere)->content, identity->content);
  std::filesystem::create_directory_symlink(folder, root_ / "link");
  EXPECT_EQ(identify(root_ / "link")->content, identity->content);

  const auto newer = folder.parent_path() / std::string(40, 'd');
  std::filesystem::rename(folder, newer);
  EXPECT_NE(identify(newer)->content, identity->content);
  std::filesystem::rename(newer, folder.parent_path() / "main");
  EXPECT_EQ(identify(folder.parent_path() / "main")->evidence, ModelEvidence::kFullDigest);
}

TEST_F(ModelIdentityTest, ALinkThatLeadsNowhereIsAnError) {
  const auto folder = write("model", base_model());
  std::filesystem::create_symlink("../../blobs/" + std::string(64, 'a'),
                                  folder / "model-3.safetensors");
  const auto identity = identify(folder);
  ASSERT_FALSE(identity.ok());
  EXPECT_NE(identity.status().message().find("its link leads nowhere"), std::string::npos);
}

TEST_F(ModelIdentityTest, MalformedHeadersAreRefusedWithFileAndRemedyWhenSampled) {
  const std::string tensor = R"("t":{"dtype":"U8","shape":[4],"data_offsets":)";
  const std::map<std::string, std::string> cases = {
      {"too short", std::string("abc")},
      {"claims 18446744073709551615 bytes", std::string(8, '\xff') + "{}"},
      {"claims 100000001 bytes", std::string("\x01\xe1\xf5\x05\0\0\0\0", 8) + "{}"},
      {"claims 3 bytes of 2", std::string("\x03\0\0\0\0\0\0\0", 8) + "{}"},
      {"malformed header", with_length("{", "")},
      {"parse error", with_length("", "")},
      {"not a JSON object", with_length("[]", "")},
      {"'t': it is not an object", with_length(R"({"t":[1]})", "")},
      {"'t': it is not an object", with_length(R"({"t":1})", "")},
      {"'u': it is not an object", with_length(R"({"u":"x"})", "")},
      {"missing or not a pair", with_length(R"({"t":{"dtype":"U8"}})", "abcd")},
      {"data_offsets is not a pair", with_length("{" + tensor + "[0,1,2]}}", "abcd")},
      {"missing or not a pair", with_length("{" + tensor + "[0]}}", "abcd")},
      {"data_offsets is not a pair", with_length("{" + tensor + "[[0],4]}}", "abcd")},
      {"data_offsets is not a pair", with_length("{" + tensor + "{}}}", "abcd")},
      {"not a pair of numbers", with_length("{" + tensor + "[-1,4]}}", "abcd")},
      {"not a pair of numbers", with_length("{" + tensor + "[0,4.5]}}", "abcd")},
      {"not a pair of numbers", with_length("{" + tensor + "\"x\"}}", "abcd")},
      {"[0, 5) does not lie within the 4 bytes", with_length("{" + tensor + "[0,5]}}", "abcd")},
      {"[3, 2) does not lie", with_length("{" + tensor + "[3,2]}}", "abcd")}};
  for (const auto& [part, file] : cases) {
    const auto identity = identify(write("model", {{"bad.safetensors", file}}), 0);
    ASSERT_FALSE(identity.ok()) << part;
    EXPECT_EQ(identity.status().code(), Code::kInvalid);
    for (const std::string& expected :
         {part, std::string("bad.safetensors"), std::string("MC_MODEL_REVISION")}) {
      EXPECT_NE(identity.status().message().find(expected), std::string::npos)
          << identity.status().message();
    }
    // Read in full it needs no header.
    EXPECT_TRUE(identify(write("model", {{"bad.safetensors", file}})).ok());
  }
}

TEST(SafetensorsHeader, GivesTheRangesInTheOrderOfPlaces) {
  const auto ranges = parse_safetensors_header(
      R"({"b":{"shape":[2],"data_offsets":[4,8],"dtype":"F16"},)"
      R"("__metadata__":{"data_offsets":"x","list":[1,[2],{"a":3}]},)"
      R"("a":{"dtype":"F32","data_offsets":[0,4],"shape":[[1],{"data_offsets":[9,9]}]},)"
      R"("empty":{"data_offsets":[8,8]}})",
      8);
  ASSERT_TRUE(ranges.ok()) << ranges.status().to_string();
  ASSERT_EQ(ranges->size(), 3u);
  EXPECT_EQ((*ranges)[0].first, 0u);
  EXPECT_EQ((*ranges)[0].end, 4u);
  EXPECT_EQ((*ranges)[1].first, 4u);
  EXPECT_EQ((*ranges)[2].first, 8u);
  EXPECT_EQ((*ranges)[2].end, 8u);
}

TEST(SafetensorsHeader, DamagedTextNeverGivesRangesOutsideTheData) {
  Random random(testlib::test_seed(31));
  const std::string genuine = safetensors({100, 4096, 5000}, 1).substr(8, 220);
  const std::string header = genuine.substr(0, genuine.rfind("}}") + 2);
  int accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string damaged = header;
    for (std::uint64_t edits = 1 + random.below(3); edits > 0; --edits) {
      const std::size_t place = random.below(damaged.size());
      constexpr std::string_view kLetters = "{}[]\",:0123456789-.ex \\";
      damaged[place] = kLetters[random.below(kLetters.size())];
    }
    const auto ranges = parse_safetensors_header(damaged, 9196);
    if (!ranges.ok()) continue;
    ++accepted;
    for (const ByteRange& range : *ranges) {
      EXPECT_LE(range.first, range.end);
      EXPECT_LE(range.end, 9196u);
    }
  }
  EXPECT_GT(accepted, 100);
}

TEST_F(ModelIdentityTest, AgreesWithTheGoldenVectors) {
  const Result<std::string> text =
      read_file(std::string(KVC_SOURCE_DIR) + "/tests/golden/model.json", 1u << 20);
  ASSERT_TRUE(text.ok()) << text.status().to_string();
  int compared = 0;
  for (const auto& model : nlohmann::json::parse(*text)) {
    Files files;
    for (const auto& [name, hex] : model.at("files").items()) {
      std::vector<std::byte> bytes(hex.get<std::string>().size() / 2);
      ASSERT_TRUE(hex_decode(hex.get<std::string>(), bytes));
      files[name] = as_text(bytes);
    }
    const auto folder = write("golden", files);
    for (const auto& vector : model.at("identities")) {
      const auto identity = identify(folder, vector.at("kind") == "sampled" ? 0 : 1u << 30,
                                     vector.at("stated_revision").get<std::string>());
      ASSERT_TRUE(identity.ok()) << identity.status().to_string();
      EXPECT_EQ(identity->content, vector.at("content")) << model.at("name");
      EXPECT_EQ(identity->tokenizer, vector.at("tokenizer")) << model.at("name");
      ++compared;
    }
  }
  EXPECT_GE(compared, 9);
}

TEST(ModelEvidence, EveryKindHasANameOfItsOwn) {
  std::set<std::string_view> names;
  for (const ModelEvidence evidence :
       {ModelEvidence::kStatedRevision, ModelEvidence::kHubSnapshot, ModelEvidence::kRevisionFolder,
        ModelEvidence::kFullDigest, ModelEvidence::kSampledDigest}) {
    names.insert(to_string(evidence));
  }
  EXPECT_EQ(names.size(), 5u);
  EXPECT_FALSE(names.contains("unknown"));
}

}  // namespace
}  // namespace kvc
