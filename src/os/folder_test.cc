#include "os/folder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <vector>

#include "base/bytes.h"

namespace kvc {
namespace {

class FolderTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "kvc-folder-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    path_ = pattern;
    ASSERT_TRUE(ok(Folder::open_path(path_.string(), &folder_)));
  }
  void TearDown() override { std::filesystem::remove_all(path_); }

  OpenFile shared_file() {
    OpenFile file;
    FileInfo info;
    if (!std::filesystem::exists(path_ / "shared")) std::ofstream(path_ / "shared").flush();
    EXPECT_TRUE(ok(folder_.open_file("shared", Folder::Access::kReadWrite, &file, &info)));
    return file;
  }

  std::filesystem::path path_;
  Folder folder_;
};

TEST_F(FolderTest, UnnamedFileIsPublishedOnceWithItsBytesAndTime) {
  OpenFile file;
  ASSERT_TRUE(ok(folder_.create_unnamed(&file)));
  ASSERT_TRUE(ok(file.write_at(0, as_bytes("content"))));
  ASSERT_TRUE(ok(file.set_modified(1'234'567'890'123'456'789)));
  EXPECT_TRUE(std::filesystem::is_empty(path_));
  ASSERT_TRUE(ok(folder_.publish(file, "name")));
  EXPECT_EQ(folder_.publish(file, "name"), std::errc::file_exists);
  FileInfo info;
  ASSERT_TRUE(ok(folder_.info("name", &info)));
  EXPECT_EQ(info.kind, FileInfo::Kind::kFile);
  EXPECT_EQ(info.bytes, 7u);
  EXPECT_EQ(info.modified_ns, 1'234'567'890'123'456'789);
  EXPECT_EQ(info.permissions, 0600u);
}

TEST_F(FolderTest, OnlyRegularFilesAreOpenedAndNothingIsWaitedFor) {
  std::ofstream(path_ / "file") << "x";
  ASSERT_EQ(mkfifo((path_ / "pipe").c_str(), 0600), 0);
  std::filesystem::create_directory(path_ / "folder");
  std::filesystem::create_symlink("file", path_ / "link");
  for (const Folder::Access access : {Folder::Access::kRead, Folder::Access::kReadWrite}) {
    OpenFile file;
    FileInfo info;
    EXPECT_TRUE(ok(folder_.open_file("file", access, &file, &info)));
    for (const char* name : {"pipe", "folder", "link", "absent"}) {
      OpenFile none;
      EXPECT_EQ(folder_.open_file(name, access, &none, &info), std::errc::no_such_file_or_directory)
          << name;
      EXPECT_FALSE(none.is_open());
    }
  }
}

TEST_F(FolderTest, FoldersBehindLinksAreNotOpened) {
  std::filesystem::create_directory(path_ / "folder");
  std::filesystem::create_directory_symlink("folder", path_ / "link");
  Folder out;
  EXPECT_TRUE(ok(folder_.open_folder("folder", &out)));
  EXPECT_FALSE(ok(folder_.open_folder("link", &out)));
  EXPECT_FALSE(ok(Folder::open_path((path_ / "link").string(), &out)));
}

TEST_F(FolderTest, ListsEveryNameAgainAndAgain) {
  std::vector<std::string> expected;
  for (int i = 0; i < 300; ++i) {
    expected.push_back(std::to_string(i));
    std::ofstream(path_ / expected.back()).flush();
  }
  std::sort(expected.begin(), expected.end());
  for (int round = 0; round < 2; ++round) {
    std::vector<std::string> names;
    ASSERT_TRUE(ok(folder_.list([&](const char* name) {
      names.emplace_back(name);
      return true;
    })));
    std::sort(names.begin(), names.end());
    EXPECT_EQ(names, expected);
  }
  int seen = 0;
  ASSERT_TRUE(ok(folder_.list([&](const char* /*name*/) { return ++seen < 3; })));
  EXPECT_EQ(seen, 3);
}

TEST_F(FolderTest, LocksExcludeOtherOpenFilesOnly) {
  const OpenFile a = shared_file();
  const OpenFile b = shared_file();
  ASSERT_TRUE(ok(a.lock(5, Duration::zero())));
  EXPECT_TRUE(ok(a.lock(5, Duration::zero()))) << "its own";
  EXPECT_EQ(b.lock(5, std::chrono::milliseconds(2)), std::errc::timed_out);
  EXPECT_TRUE(ok(b.lock(6, Duration::zero())));
  EXPECT_EQ(b.try_lock_shared(5), std::errc::resource_unavailable_try_again);
  bool locked = false;
  ASSERT_TRUE(ok(b.locked_elsewhere(5, &locked)));
  EXPECT_TRUE(locked);
  ASSERT_TRUE(ok(a.unlock(5)));
  ASSERT_TRUE(ok(b.locked_elsewhere(5, &locked)));
  EXPECT_FALSE(locked);
  EXPECT_TRUE(ok(a.try_lock_shared(5)));
  EXPECT_TRUE(ok(b.try_lock_shared(5)));
}

TEST_F(FolderTest, KilledProcessHoldsNoLock) {
  const OpenFile file = shared_file();
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const OpenFile own = shared_file();
    const bool held = ok(own.lock(1, Duration::zero())) && ok(own.try_lock_file());
    (void)!write(ready[1], held ? "y" : "n", 1);
    for (;;) pause();
  }
  char answer = 'n';
  ASSERT_EQ(read(ready[0], &answer, 1), 1);
  EXPECT_EQ(answer, 'y');
  EXPECT_EQ(file.lock(1, Duration::zero()), std::errc::timed_out);
  EXPECT_FALSE(ok(file.try_lock_file()));
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(ok(file.lock(1, Duration::zero())));
  EXPECT_TRUE(ok(file.try_lock_file()));
  close(ready[0]);
  close(ready[1]);
}

TEST_F(FolderTest, TellsBootsUsersAndSpace) {
  EXPECT_EQ(boot_id().size(), 36u);
  EXPECT_EQ(boot_id(), boot_id());
  EXPECT_EQ(effective_user(), geteuid());
  FreeSpace space;
  ASSERT_TRUE(ok(folder_.free_space(&space)));
  EXPECT_GT(space.total_bytes, 0u);
  EXPECT_LE(space.available_bytes, space.total_bytes);
  EXPECT_GT(file_size_limit(), 1u << 30);
}

}  // namespace
}  // namespace kvc
