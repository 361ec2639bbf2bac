// What must not happen whatever lies in the folder, or at its path.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "store/file/file_store_fixture.h"
#include "store/file/store_root.h"

namespace kvc {
namespace {

using std::filesystem::path;
using testlib::Bytes;
using testlib::FileStoreTest;
using testlib::kBlock;
using testlib::payload_for;

class FileStoreGuard : public FileStoreTest {
 protected:
  void expect_refused(const std::string& at, const std::string& part) {
    FileStoreOptions bad = options();
    bad.path = at;
    const auto store = try_open(bad);
    ASSERT_FALSE(store.ok()) << at;
    EXPECT_EQ(store.status().code(), Code::kInvalid);
    for (const std::string& expected : {at, part, std::string("MC_FILE_PATH")}) {
      EXPECT_NE(store.status().message().find(expected), std::string::npos)
          << store.status().message();
    }
  }

  /// Makes room for `key` in its folder.
  path place_of(const std::string& key) {
    std::filesystem::create_directory(file_of(key).parent_path());
    return file_of(key);
  }
};

// ---- the folder ----------------------------------------------------------------------------

TEST_F(FileStoreGuard, PathsThatCannotBeAStoreAreRefused) {
  expect_refused("relative", "must be absolute");
  expect_refused("/", "and not /");
  expect_refused(root() + "/deep/er", "No such file or directory");
  std::ofstream(root()) << "a file";
  expect_refused(root(), "must be a folder itself");
}

TEST_F(FileStoreGuard, LinkIsRefusedAlsoWithASlashBehindIt) {
  const path elsewhere = folder_.path() / "elsewhere";
  std::filesystem::create_directory(elsewhere);
  std::filesystem::create_directory_symlink(elsewhere, root());
  expect_refused(root(), "it is a link");
  FileStoreOptions slashed = options();
  slashed.path = root() + "//";
  EXPECT_FALSE(try_open(slashed).ok());
  EXPECT_TRUE(std::filesystem::is_empty(elsewhere));
}

TEST_F(FileStoreGuard, FolderThatOthersMayWriteInIsRefused) {
  using std::filesystem::perms;
  open();
  for (const perms others : {perms::group_write, perms::others_write}) {
    std::filesystem::permissions(root(), perms::owner_all | others);
    expect_refused(root(), "others may write in it");
  }
  std::filesystem::permissions(root(), perms::owner_all | perms::group_read);
  EXPECT_TRUE(try_open(options()).ok());
}

TEST_F(FileStoreGuard, FolderOfAnotherUserIsRefused) {
  open();
  StoreRoot::Options other;
  other.path = root();
  other.user = effective_user() + 1;
  const auto opened = StoreRoot::open(other);
  ASSERT_FALSE(opened.ok());
  EXPECT_NE(opened.status().message().find("it belongs to user"), std::string::npos);
}

TEST_F(FileStoreGuard, FolderThatIsUsedForSomethingElseIsRefused) {
  std::filesystem::create_directory(root());
  std::ofstream(path(root()) / "thesis.tex") << "years of work";
  expect_refused(root(), "the folder holds 'thesis.tex' and no store");
  EXPECT_TRUE(std::filesystem::exists(path(root()) / "thesis.tex"));
}

TEST_F(FileStoreGuard, StoreOfAnotherVersionIsRefused) {
  open();
  std::ofstream(path(root()) / "usage", std::ios::in | std::ios::binary) << "kvcfiles\x02";
  expect_refused(root(), "another version");
}

// ---- in the folder -------------------------------------------------------------------------

TEST_F(FileStoreGuard, WhatIsNoFileIsAMissAndMakesRoomForAnObject) {
  const auto store = open();
  const path outside = folder_.path() / "outside";
  std::ofstream(outside) << std::string(1000, 'x');

  std::filesystem::create_symlink(outside, place_of("link"));
  std::filesystem::create_symlink("nowhere", place_of("dangling"));
  std::filesystem::create_directory(place_of("folder"));
  ASSERT_EQ(std::system(("mkfifo '" + place_of("pipe").string() + "'").c_str()), 0);
  std::ofstream(place_of("empty")).flush();

  for (const char* key : {"link", "dangling", "folder", "pipe", "empty"}) {
    EXPECT_EQ(exists(*store, key), Reaction::kMiss) << key;
    EXPECT_EQ(get(*store, key), Reaction::kMiss) << key;
    EXPECT_EQ(remove(*store, key), Reaction::kMiss) << key;
    EXPECT_EQ(put(*store, key).effect, PutEffect::kStored) << key;
    EXPECT_EQ(get(*store, key), Reaction::kOk) << key;
  }
  EXPECT_EQ(std::filesystem::file_size(outside), 1000u) << "never written through the link";
  EXPECT_TRUE(store->take_stock());
  EXPECT_EQ(store->stats().bytes_used, space_taken());
}

TEST_F(FileStoreGuard, FullFolderInTheWayOfAnObjectCostsThatObjectAlone) {
  const auto store = open();
  std::filesystem::create_directories(place_of("key") / "inside");
  const PutResult result = put(*store, "key");
  EXPECT_EQ(result.reaction, Reaction::kStale) << "no reason to leave other blocks out";
  EXPECT_EQ(result.effect, PutEffect::kNone);
  EXPECT_EQ(get(*store, "key"), Reaction::kMiss);
  EXPECT_TRUE(std::filesystem::exists(file_of("key") / "inside"));
}

TEST_F(FileStoreGuard, FanOutFolderThatIsALinkIsNotFollowed) {
  const auto store = open();
  const path elsewhere = folder_.path() / "elsewhere";
  std::filesystem::create_directory(elsewhere);
  const path place = file_of("key").parent_path();
  std::filesystem::create_directory_symlink(elsewhere, place);
  std::ofstream(elsewhere / file_of("key").filename()) << std::string(1000, 'x');
  EXPECT_EQ(get(*store, "key"), Reaction::kMiss);
  EXPECT_EQ(exists(*store, "key"), Reaction::kMiss);
  EXPECT_EQ(put(*store, "key").reaction, Reaction::kStale);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(elsewhere), {}), 1);
  EXPECT_TRUE(store->take_stock());
  EXPECT_EQ(store->stats().bytes_used, 0u);
}

TEST_F(FileStoreGuard, ForeignFilesAreNeitherCountedNorEvicted) {
  const auto store = open(2 * kBlock);
  const path notes = file_of("a").parent_path() / "notes";
  std::filesystem::create_directory(notes.parent_path());
  std::ofstream(notes) << std::string(100'000, 'x');
  for (int i = 0; i < 50; ++i) EXPECT_EQ(put(*store, std::to_string(i)).reaction, Reaction::kOk);
  EXPECT_TRUE(store->take_stock());
  EXPECT_EQ(store->stats().bytes_used, 2 * kBlock);
  EXPECT_TRUE(std::filesystem::exists(notes));
}

TEST_F(FileStoreGuard, CutOrGrownFilesHaveTheSizeThatTheyHave) {
  const auto store = open();
  put(*store, "key", 5000);
  std::filesystem::resize_file(file_of("key"), 4000);
  Bytes buffer(5000);
  GetResult result = store->get({testlib::get_item("key", buffer)}, {})[0];
  EXPECT_EQ(result.reaction, Reaction::kOk);
  EXPECT_EQ(result.bytes, 4000u) << "whoever verifies it sees that it is short";
  std::filesystem::resize_file(file_of("key"), 5001);
  result = store->get({testlib::get_item("key", buffer)}, {})[0];
  EXPECT_EQ(result.reaction, Reaction::kCallerBug);
  EXPECT_EQ(remove(*store, "key"), Reaction::kOk);
  EXPECT_EQ(put(*store, "key", 5000).effect, PutEffect::kStored);
  EXPECT_EQ(get(*store, "key", 5000), Reaction::kOk);
}

// ---- keys ----------------------------------------------------------------------------------

TEST_F(FileStoreGuard, NoKeyReachesAFileOutside) {
  const auto store = open();
  const path secret = folder_.path() / "secret";
  std::ofstream(secret) << "secret";
  const std::string up = "../../secret";
  for (const std::string& key :
       {up, std::string("../../../../../../../..") + secret.string(), secret.string(),
        std::string(".."), std::string("."), "../" + root() + "/usage", std::string("usage")}) {
    EXPECT_EQ(exists(*store, key), Reaction::kMiss) << key;
    EXPECT_EQ(get(*store, key), Reaction::kMiss) << key;
    EXPECT_EQ(put(*store, key).effect, PutEffect::kStored) << key;
    EXPECT_EQ(get(*store, key), Reaction::kOk) << key;
    EXPECT_EQ(remove(*store, key), Reaction::kOk) << key;
  }
  EXPECT_EQ(std::filesystem::file_size(secret), 6u);
}

// The name of a long key is a digest, so the file says itself whose it is.
TEST_F(FileStoreGuard, FileOfAnotherLongKeyUnderTheSameNameIsAMiss) {
  const auto store = open();
  const std::string mine(300, 'm');
  const std::string other(300, 'o');
  put(*store, mine);
  std::filesystem::create_directory(file_of(other).parent_path());
  std::filesystem::rename(file_of(mine), file_of(other));
  EXPECT_EQ(exists(*store, other), Reaction::kMiss);
  EXPECT_EQ(get(*store, other), Reaction::kMiss);
  EXPECT_EQ(remove(*store, other), Reaction::kMiss);
  EXPECT_EQ(put(*store, other).effect, PutEffect::kStored) << "what is there is no use to anybody";
  EXPECT_EQ(get(*store, other), Reaction::kOk);
  for (const std::size_t bytes : {0u, 100u, 299u, 300u}) {
    std::filesystem::resize_file(file_of(other), bytes);
    EXPECT_EQ(get(*store, other), Reaction::kMiss) << bytes;
    EXPECT_EQ(exists(*store, other), Reaction::kMiss) << bytes;
  }
}

}  // namespace
}  // namespace kvc
