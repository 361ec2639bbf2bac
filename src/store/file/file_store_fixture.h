// What the tests of the file store share: a folder that goes with the test, and time that stands
// still until it is moved.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kvc/log.h"
#include "os/folder.h"
#include "store/file/file_store.h"
#include "store/file/object_name.h"
#include "testing/conformance_fixture.h"

namespace kvc::testlib {

inline constexpr std::uint64_t kBlock = 4096;

/// A new empty folder, removed with the object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "kvc-store-XXXXXX").string();
    EXPECT_NE(mkdtemp(pattern.data()), nullptr);
    path_ = pattern;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

class FileStoreTest : public testing::Test {
 protected:
  std::string root() const { return (folder_.path() / "store").string(); }

  FileStoreOptions options(std::uint64_t max_bytes = std::uint64_t{64} << 20) {
    FileStoreOptions options;
    options.path = root();
    options.max_bytes = max_bytes;
    options.wall_ns = [this] { return ++wall_ns_; };
    options.use_noted_every = Duration::zero();
    return options;
  }

  Result<std::shared_ptr<FileStore>> try_open(FileStoreOptions options) {
    return open_file_store(std::move(options), make_null_logger(), system_clock());
  }

  std::shared_ptr<FileStore> open(FileStoreOptions options) {
    Result<std::shared_ptr<FileStore>> store = try_open(std::move(options));
    EXPECT_TRUE(store.ok()) << store.status().to_string();
    return store.ok() ? *store : nullptr;
  }
  std::shared_ptr<FileStore> open(std::uint64_t max_bytes = std::uint64_t{64} << 20) {
    return open(options(max_bytes));
  }

  static PutResult put(Store& store, const std::string& key, std::size_t bytes = 1000) {
    const Bytes payload = payload_for(key, bytes);
    return store.put({put_item(key, payload)}, {})[0];
  }
  static Reaction exists(Store& store, const std::string& key) {
    return store.exists({key}, {})[0];
  }
  /// kOk only if the bytes are those of put().
  static Reaction get(Store& store, const std::string& key, std::size_t bytes = 1000) {
    Bytes buffer(bytes);
    const GetResult result = store.get({get_item(key, buffer)}, {})[0];
    if (result.reaction == Reaction::kOk) {
      EXPECT_EQ(result.bytes, bytes) << key;
      EXPECT_TRUE(buffer == payload_for(key, bytes)) << key;
    }
    return result.reaction;
  }
  static Reaction remove(Store& store, const std::string& key) {
    return store.remove({key}, {})[0];
  }
  static std::vector<std::string> present(Store& store, const std::vector<std::string>& keys) {
    std::vector<std::string> found;
    for (const std::string& key : keys) {
      if (get(store, key) == Reaction::kOk) found.push_back(key);
    }
    return found;
  }

  std::filesystem::path file_of(const std::string& key) const {
    const ObjectName name = ObjectName::of(key);
    return std::filesystem::path(root()) / ObjectName::folder_name(name.folder) / name.file;
  }
  /// Space of all objects that lie in the folder.
  std::uint64_t space_taken() const {
    std::uint64_t space = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root())) {
      const std::string name = entry.path().filename().string();
      if (!ObjectName::is_object(name) || !entry.is_regular_file()) continue;
      space += (entry.file_size() + kBlock - 1) / kBlock * kBlock;
    }
    return space;
  }
  std::size_t drafts() const {
    const std::filesystem::path folder = std::filesystem::path(root()) / "drafts";
    if (!std::filesystem::exists(folder)) return 0;
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
  }

  TemporaryFolder folder_;
  std::atomic<std::int64_t> wall_ns_{wall_time_ns()};
};

}  // namespace kvc::testlib
