#include "store/file/object_name.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace kvc {
namespace {

TEST(ObjectName, KeysOfBlocksAreReadableNames) {
  const ObjectName name = ObjectName::of("kvc1/00ff/ab12/r0");
  EXPECT_EQ(name.file, "=kvc1,00ff,ab12,r0");
  EXPECT_EQ(name.trailer_bytes, 0u);
  EXPECT_EQ(ObjectName::folder_name(0), "00");
  EXPECT_EQ(ObjectName::folder_name(0xa5), "a5");
}

// What an older version wrote must be found again.
TEST(ObjectName, PlacesAreFixed) {
  EXPECT_EQ(ObjectName::of("kvc1/00ff/ab12/r0").folder, 0x20u);
  EXPECT_EQ(ObjectName::of("a").folder, 0xbbu);
  EXPECT_EQ(ObjectName::of(std::string(300, 'x')).file,
            "#0d4e2ca9e9cbced7a7a5380eb29e1a3783b9b6d0db72de36a1051038e1c1fbc7");
}

TEST(ObjectName, NothingOfAKeyLeadsOutOfItsFolder) {
  for (const char* key : {"..", ".", "../..", "/etc/passwd", "a/../../b", "./a", "a\nb", "~"}) {
    const ObjectName name = ObjectName::of(key);
    EXPECT_EQ(name.file.find('/'), std::string::npos) << key;
    EXPECT_EQ(name.file.front(), '=') << key;
    EXPECT_EQ(name.file.find_first_not_of("=,%._-abcdefghijklmnopqrstuvwxyz0123456789"),
              std::string::npos)
        << name.file;
  }
  const std::string with_zero("a\0b", 3);
  EXPECT_EQ(ObjectName::of(with_zero).file, "=a%00b");
}

TEST(ObjectName, DifferentKeysHaveDifferentNames) {
  // Keys that simpler escapes confuse, on file systems without case too.
  const std::set<std::string> keys = {"a/b", "a,b", "a%2cb", "a%2Cb", "A/b", "a%2fb", "a//b",
                                      "a b", "a+b", "%",     "%25",   "=a",  "a=",    "\xc3\xa9"};
  std::set<std::string> names;
  for (const std::string& key : keys) {
    names.insert(ObjectName::of(key).file);
  }
  EXPECT_EQ(names.size(), keys.size());
}

TEST(ObjectName, NamesAreBoundedAndLongOnesAreWholeDigests) {
  for (const std::size_t length : {1u, 111u, 199u, 200u, 1000u, 100'000u}) {
    for (const char letter : {'x', '\xff'}) {
      const ObjectName name = ObjectName::of(std::string(length, letter));
      EXPECT_LE(name.file.size(), 200u);
      if (name.file.front() == '=') {
        EXPECT_EQ(name.trailer_bytes, 0u);
        continue;
      }
      EXPECT_EQ(name.file.size(), 65u) << "256 bits, none left out";
      EXPECT_EQ(name.trailer_bytes, length);
    }
  }
}

TEST(ObjectName, FoldersAreFilledEvenly) {
  std::map<std::size_t, int> counts;
  for (int i = 0; i < 256 * 100; ++i) {
    ++counts[ObjectName::of("kvc1/0123456789abcdef/" + std::to_string(i) + "/r0").folder];
  }
  ASSERT_EQ(counts.size(), kFileFolders);
  for (const auto& [folder, count] : counts) {
    EXPECT_GT(count, 50) << folder;
    EXPECT_LT(count, 160) << folder;
  }
}

TEST(ObjectName, OtherFilesAreNoObjects) {
  EXPECT_TRUE(ObjectName::is_object("=a"));
  EXPECT_TRUE(ObjectName::is_object("#a"));
  for (const char* name : {"usage", "a", ".hidden", ""}) EXPECT_FALSE(ObjectName::is_object(name));
}

}  // namespace
}  // namespace kvc
