// What a model is, from its content. The steps, each tried only if the one before does not apply:
//
// 1. the operator states a revision;
// 2. every weight file is a link to a blob whose name is its SHA-256 (the cache of a model hub);
// 3. the folder is snapshots/<commit> of such a cache;
// 4. the weights are small enough to be read: their SHA-256. Steps 2 and 4 give equal identities
// for
//    equal files;
// 5. samples of every tensor.
//
// Configuration files are read in full and are part of every answer; the tokenizer's are digested
// apart. Only names, sizes and contents go in, never a path.
#include <algorithm>
#include <array>
#include <utility>

#include "base/bytes.h"
#include "keyspace/sha256.h"
#include "keyspace/weight_sample.h"
#include "kvc/identity.h"
#include "os/file.h"

namespace kvc {
namespace {

constexpr std::string_view kTag = "kvc1modl";
constexpr std::size_t kFolderEntriesMax = 100'000;
/// Of one configuration or tokenizer file.
constexpr std::uint64_t kSmallFileBytesMax = 256u << 20;
constexpr std::size_t kCommitHexLength = 40;
constexpr std::size_t kBlobHexLength = 64;

constexpr std::array<std::string_view, 7> kWeightEndings = {
    ".safetensors", ".bin", ".pt", ".pth", ".gguf", ".ckpt", ".engine"};

/// Files that decide what the weights compute: architecture, quantisation, preprocessing of media.
constexpr std::array<std::string_view, 8> kConfigurationNames = {
    "config.json",           "hf_quant_config.json",
    "quantize_config.json",  "quant_config.json",
    "params.json",           "preprocessor_config.json",
    "processor_config.json", "video_preprocessor_config.json"};

constexpr std::array<std::string_view, 14> kTokenizerNames = {
    "tokenizer.json",     "tokenizer.model",    "tokenizer_config.json",
    "tokenizer.model.v3", "added_tokens.json",  "special_tokens_map.json",
    "vocab.json",         "vocab.txt",          "merges.txt",
    "spiece.model",       "tekken.json",        "sentencepiece.bpe.model",
    "chat_template.json", "chat_template.jinja"};

template <std::size_t N>
bool contains(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool is_hex(std::string_view text, std::size_t length) {
  return text.size() == length &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

bool is_tokenizer_file(std::string_view name) {
  return contains(kTokenizerNames, name) || name.ends_with(".tiktoken");
}

bool is_configuration_file(std::string_view name) {
  return contains(kConfigurationNames, name) || name.ends_with(".py");
}

bool is_weight_file(const FolderEntry& entry) {
  return std::any_of(kWeightEndings.begin(), kWeightEndings.end(),
                     [&](std::string_view ending) { return entry.name.ends_with(ending); });
}

/// A list of files as bytes: name, size and digest of each, in the order of names.
class FileList {
 public:
  explicit FileList(std::string_view kind) : writer_(&bytes_) {
    writer_.raw(as_bytes(kTag));
    writer_.text(kind);
  }
  FileList(const FileList&) = delete;
  FileList& operator=(const FileList&) = delete;

  void text(std::string_view value) { writer_.text(value); }

  void file(const FolderEntry& entry, std::span<const std::byte> digest) {
    writer_.text(entry.name);
    writer_.u64(entry.bytes);
    writer_.blob(digest);
  }

  std::string digest() const {
    Sha256 hash;
    hash.add(bytes_);
    return hex_encode(hash.take());
  }

 private:
  std::vector<std::byte> bytes_;
  ByteWriter writer_;
};

Status needs_revision(const std::string& why) {
  return invalid(why +
                 ": nothing identifies the model's weights; state what it is with "
                 "MC_MODEL_REVISION, and change that whenever the weights change");
}

class ModelFolder {
 public:
  static Result<ModelFolder> open(const std::filesystem::path& folder) {
    auto entries = list_folder(folder, kFolderEntriesMax);
    if (!entries.ok()) return entries.status();
    ModelFolder model;
    model.folder_ = folder;
    for (FolderEntry& entry : *entries) {
      if (is_tokenizer_file(entry.name)) {
        model.tokenizer_.push_back(std::move(entry));
      } else if (is_configuration_file(entry.name)) {
        model.configuration_.push_back(std::move(entry));
      } else if (is_weight_file(entry)) {
        model.weights_.push_back(std::move(entry));
      }
    }
    return model;
  }

  const std::vector<FolderEntry>& weights() const { return weights_; }

  /// Empty if there are no such files.
  Result<std::string> tokenizer() const {
    if (tokenizer_.empty()) return std::string();
    FileList list("tokenizer");
    Status status = add_small_files(tokenizer_, &list);
    if (!status.ok()) return status;
    return "sha256:" + list.digest();
  }

  Status add_configuration(FileList* list) const {
    list->text("configuration");
    return add_small_files(configuration_, list);
  }

  Status check_weights() const {
    if (weights_.empty()) {
      return needs_revision("model folder '" + folder_.string() +
                            "' holds no weight files (*.safetensors, *.bin, *.gguf, ...)");
    }
    for (const FolderEntry& entry : weights_) {
      if (entry.is_file) continue;
      return invalid("weight file '" + (folder_ / entry.name).string() + "' is no readable file" +
                     (entry.link_target.has_value() ? ": its link leads nowhere" : "") +
                     "; complete the folder, or state what the model is with MC_MODEL_REVISION");
    }
    return {};
  }

  bool all_links_to_blobs() const {
    return std::all_of(weights_.begin(), weights_.end(),
                       [](const FolderEntry& entry) { return blob_name(entry).has_value(); });
  }

  void add_blob_names(FileList* list) const {
    list->text("weights");
    for (const FolderEntry& entry : weights_) {
      Sha256Digest digest;
      hex_decode(*blob_name(entry), digest);
      list->file(entry, digest);
    }
  }

  /// The commit if the folder is snapshots/<commit>, links resolved.
  std::optional<std::string> commit() const {
    const auto resolved = canonical_path(folder_);
    if (!resolved.ok()) return std::nullopt;
    std::string name = resolved->filename().string();
    if (resolved->parent_path().filename() != "snapshots" || !is_hex(name, kCommitHexLength)) {
      return std::nullopt;
    }
    return name;
  }

  std::uint64_t weight_bytes() const {
    std::uint64_t bytes = 0;
    for (const FolderEntry& entry : weights_) bytes += entry.bytes;
    return bytes;
  }

  template <typename Digest>
  Status add_weights(Digest digest_of, FileList* list) const {
    list->text("weights");
    for (const FolderEntry& entry : weights_) {
      const Result<Sha256Digest> digest = digest_of(folder_ / entry.name);
      if (!digest.ok()) return digest.status();
      list->file(entry, *digest);
    }
    return {};
  }

  void add_weight_sizes(FileList* list) const {
    list->text("weights");
    for (const FolderEntry& entry : weights_) list->file(entry, {});
  }

 private:
  static std::optional<std::string> blob_name(const FolderEntry& entry) {
    if (!entry.link_target.has_value()) return std::nullopt;
    std::string name = entry.link_target->filename().string();
    if (entry.link_target->parent_path().filename() != "blobs" || !is_hex(name, kBlobHexLength)) {
      return std::nullopt;
    }
    return name;
  }

  Status add_small_files(const std::vector<FolderEntry>& entries, FileList* list) const {
    for (const FolderEntry& entry : entries) {
      const std::string path = (folder_ / entry.name).string();
      if (entry.bytes > kSmallFileBytesMax) {
        return invalid("'" + path + "' has " + std::to_string(entry.bytes) +
                       " bytes: too large for what its name says");
      }
      const Result<Sha256Digest> digest = digest_file(path);
      if (!digest.ok()) return digest.status();
      list->file(entry, *digest);
    }
    return {};
  }

  std::filesystem::path folder_;
  std::vector<FolderEntry> weights_;
  std::vector<FolderEntry> configuration_;
  std::vector<FolderEntry> tokenizer_;
};

/// The list's kind is the beginning of the content, so that identities of different kinds never
/// meet.
struct Content {
  ModelEvidence evidence;
  std::string_view kind;
};

Result<ModelIdentity> finish(const Content& content, const ModelFolder& model, FileList* list) {
  Status status = model.add_configuration(list);
  if (!status.ok()) return status;
  Result<std::string> tokenizer = model.tokenizer();
  if (!tokenizer.ok()) return tokenizer.status();
  return ModelIdentity{std::string(content.kind) + ":" + list->digest(),
                       std::move(tokenizer).value(), content.evidence};
}

Result<ModelIdentity> identify_stated(const ModelSource& source) {
  constexpr Content kContent = {ModelEvidence::kStatedRevision, "revision"};
  FileList list(kContent.kind);
  list.text(*source.stated_revision);
  if (!source.folder.has_value() || !is_folder(*source.folder)) {
    return ModelIdentity{std::string(kContent.kind) + ":" + list.digest(), "", kContent.evidence};
  }
  const Result<ModelFolder> model = ModelFolder::open(*source.folder);
  if (!model.ok()) return model.status();
  return finish(kContent, *model, &list);
}

Result<ModelIdentity> identify_folder(const ModelSource& source) {
  if (!is_folder(*source.folder)) {
    return needs_revision("model '" + source.folder->string() +
                          "' is not a folder on this machine");
  }
  const Result<ModelFolder> model = ModelFolder::open(*source.folder);
  if (!model.ok()) return model.status();
  Status status = model->check_weights();
  if (!status.ok()) return status;

  const bool read_all = model->weight_bytes() <= source.full_digest_limit_bytes;
  Content content = {ModelEvidence::kHubSnapshot, "files"};
  const std::optional<std::string> commit = model->commit();
  if (!model->all_links_to_blobs()) {
    if (commit.has_value()) {
      content = {ModelEvidence::kRevisionFolder, "commit"};
    } else if (read_all) {
      content.evidence = ModelEvidence::kFullDigest;
    } else {
      content = {ModelEvidence::kSampledDigest, "sampled"};
    }
  }
  FileList list(content.kind);
  switch (content.evidence) {
    case ModelEvidence::kHubSnapshot:
      model->add_blob_names(&list);
      break;
    case ModelEvidence::kRevisionFolder:
      list.text(*commit);
      model->add_weight_sizes(&list);
      break;
    case ModelEvidence::kFullDigest:
      status = model->add_weights(digest_file, &list);
      break;
    default:
      status = model->add_weights(digest_samples, &list);
      break;
  }
  if (!status.ok()) return status;
  return finish(content, *model, &list);
}

}  // namespace

std::string_view to_string(ModelEvidence evidence) {
  switch (evidence) {
    case ModelEvidence::kStatedRevision:
      return "stated revision";
    case ModelEvidence::kHubSnapshot:
      return "hub snapshot";
    case ModelEvidence::kRevisionFolder:
      return "revision folder";
    case ModelEvidence::kFullDigest:
      return "full digest";
    case ModelEvidence::kSampledDigest:
      return "sampled digest";
  }
  return "unknown";
}

Result<ModelIdentity> identify_model(const ModelSource& source) {
  if (source.stated_revision.has_value() && !source.stated_revision->empty()) {
    return identify_stated(source);
  }
  if (!source.folder.has_value()) return needs_revision("no folder of the model is known");
  return identify_folder(source);
}

}  // namespace kvc
