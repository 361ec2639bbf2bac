#include "os/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <array>
#include <fstream>

#include "base/bytes.h"

namespace kvc {
namespace {

class FileTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "kvc-file-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return folder_ / name;
  }

  std::filesystem::path folder_;
};

TEST_F(FileTest, ReadsAWholeFileUpToTheLimit) {
  const auto path = write("text", std::string("a\0b\n", 4));
  const Result<std::string> text = read_file(path, 4);
  ASSERT_TRUE(text.ok()) << text.status().to_string();
  EXPECT_EQ(*text, std::string("a\0b\n", 4));
  const Result<std::string> refused = read_file(path, 3);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::kInvalid);
  EXPECT_NE(refused.status().message().find(path.string()), std::string::npos);
  EXPECT_NE(refused.status().message().find("4 bytes"), std::string::npos);
}

TEST_F(FileTest, ReadsAnEmptyFile) {
  const Result<std::string> text = read_file(write("empty", ""), 0);
  ASSERT_TRUE(text.ok());
  EXPECT_EQ(*text, "");
}

TEST_F(FileTest, NamesWhatCannotBeRead) {
  EXPECT_NE(read_file(folder_ / "absent", 10).status().message().find("absent': No such file"),
            std::string::npos);
  EXPECT_NE(read_file(folder_, 10).status().message().find("not a regular file"),
            std::string::npos);
  ASSERT_EQ(mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  EXPECT_NE(read_file(folder_ / "pipe", 10).status().message().find("not a regular file"),
            std::string::npos);
}

TEST_F(FileTest, ReadsAtOffsetsAndRefusesBeyondTheEnd) {
  Result<RandomAccessFile> file = RandomAccessFile::open(write("digits", "0123456789"));
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->bytes(), 10u);
  std::array<std::byte, 3> out{};
  ASSERT_TRUE(file->read_at(7, out).ok());
  EXPECT_EQ(as_text(out), "789");
  EXPECT_EQ(file->read_at(8, out).code(), Code::kInvalid);
  EXPECT_EQ(file->read_at(10, out).code(), Code::kInvalid);
  EXPECT_EQ(file->read_at(~0ull, out).code(), Code::kInvalid);
  EXPECT_TRUE(file->read_at(10, std::span<std::byte>()).ok());
  RandomAccessFile moved = std::move(file).value();
  ASSERT_TRUE(moved.read_at(0, out).ok());
  EXPECT_EQ(as_text(out), "012");
}

TEST_F(FileTest, ListsAFolderByNameWithSizesAndLinks) {
  write("b", "12345");
  std::filesystem::create_directory(folder_ / "a");
  std::filesystem::create_symlink("b", folder_ / "c");
  std::filesystem::create_symlink("nowhere", folder_ / "d");
  const auto entries = list_folder(folder_, 4);
  ASSERT_TRUE(entries.ok()) << entries.status().to_string();
  ASSERT_EQ(entries->size(), 4u);
  EXPECT_EQ((*entries)[0].name, "a");
  EXPECT_FALSE((*entries)[0].is_file);
  EXPECT_EQ((*entries)[1].name, "b");
  EXPECT_TRUE((*entries)[1].is_file);
  EXPECT_EQ((*entries)[1].bytes, 5u);
  EXPECT_FALSE((*entries)[1].link_target.has_value());
  EXPECT_TRUE((*entries)[2].is_file);
  EXPECT_EQ((*entries)[2].bytes, 5u);
  EXPECT_EQ((*entries)[2].link_target, "b");
  EXPECT_FALSE((*entries)[3].is_file);
  EXPECT_EQ((*entries)[3].link_target, "nowhere");
  EXPECT_EQ(list_folder(folder_, 3).status().code(), Code::kInvalid);
  EXPECT_EQ(list_folder(folder_ / "absent", 3).status().code(), Code::kInvalid);
}

TEST_F(FileTest, ResolvesLinksOfAPath) {
  const auto path = write("file", "");
  std::filesystem::create_directory_symlink(".", folder_ / "here");
  const auto resolved = canonical_path(folder_ / "here" / "here" / "file");
  ASSERT_TRUE(resolved.ok());
  EXPECT_EQ(*resolved, *canonical_path(path));
  EXPECT_EQ(canonical_path(folder_ / "absent").status().code(), Code::kInvalid);
}

TEST_F(FileTest, TellsFilesFromFoldersFromNothing) {
  const auto path = write("file", "");
  EXPECT_TRUE(path_exists(path));
  EXPECT_FALSE(is_folder(path));
  EXPECT_TRUE(path_exists(folder_));
  EXPECT_TRUE(is_folder(folder_));
  EXPECT_FALSE(path_exists(folder_ / "absent"));
  EXPECT_FALSE(is_folder(folder_ / "absent"));
}

}  // namespace
}  // namespace kvc
