// Processes that die at any step of a put, a removal or an eviction. Each death is one of a child
// process, which ends within the step without another line of its code.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "store/file/file_store_fixture.h"

namespace kvc {
namespace {

using testlib::Bytes;
using testlib::FileStoreTest;
using testlib::kBlock;
using testlib::payload_for;

constexpr int kDied = 77;

struct Death {
  FileStep step = FileStep::kReserved;
  bool unnamed_files = true;
};

class FileStoreCrash : public FileStoreTest, public testing::WithParamInterface<Death> {
 protected:
  FileStoreOptions mortal(std::uint64_t max_bytes) {
    FileStoreOptions mortal = options(max_bytes);
    mortal.unnamed_files = GetParam().unnamed_files;
    mortal.at_step = [](FileStep step) {
      if (step == GetParam().step) std::_Exit(kDied);
      return std::errc{};
    };
    return mortal;
  }
  FileStoreOptions immortal(std::uint64_t max_bytes) {
    FileStoreOptions immortal = options(max_bytes);
    immortal.unnamed_files = GetParam().unnamed_files;
    return immortal;
  }
};

TEST_P(FileStoreCrash, LeavesAWholeObjectOrNoneAndNoLockAndNoSpaceForGood) {
  constexpr std::uint64_t kLimit = 8 * kBlock;
  const auto survivor = open(immortal(kLimit));
  for (const char* key : {"a", "b", "c"}) put(*survivor, key);
  EXPECT_EXIT(
      {
        const auto store = open(mortal(kLimit));
        put(*store, "new", 3 * kBlock);
        remove(*store, "a");
        std::_Exit(1);  // not reached
      },
      testing::ExitedWithCode(kDied), "");

  const bool published = GetParam().step >= FileStep::kPublished;
  EXPECT_EQ(get(*survivor, "new", 3 * kBlock), published ? Reaction::kOk : Reaction::kMiss);
  for (const char* key : {"b", "c"}) EXPECT_EQ(get(*survivor, key), Reaction::kOk);
  EXPECT_GE(survivor->stats().bytes_used, space_taken()) << "never below what is there";

  const auto fresh = open(immortal(kLimit));
  EXPECT_EQ(drafts(), 0u);
  EXPECT_TRUE(fresh->take_stock()) << "the dead hold no lock";
  EXPECT_EQ(fresh->stats().bytes_used, space_taken());

  EXPECT_EQ(put(*survivor, "new", 3 * kBlock).reaction, Reaction::kOk);
  EXPECT_EQ(get(*survivor, "new", 3 * kBlock), Reaction::kOk);
}

TEST_P(FileStoreCrash, LostSpaceIsFoundWithoutBeingAskedFor) {
  constexpr std::uint64_t kLimit = 16 * kBlock;
  const auto survivor = open(immortal(kLimit));
  for (int death = 0; death < 12; ++death) {
    EXPECT_EXIT(
        {
          const auto store = open(mortal(kLimit));
          put(*store, "d" + std::to_string(death), kBlock);
          remove(*store, "d" + std::to_string(death));
          std::_Exit(1);
        },
        testing::ExitedWithCode(kDied), "");
  }
  // All of the limit can still be used: looking for victims finds what is not there.
  std::vector<std::string> keys;
  for (int i = 0; i < 64; ++i) {
    keys.push_back(std::to_string(i));
    EXPECT_EQ(put(*survivor, keys.back()).reaction, Reaction::kOk);
  }
  EXPECT_GE(present(*survivor, keys).size(), 15u);
  EXPECT_LE(space_taken(), kLimit);
}

std::string name_of(const testing::TestParamInfo<Death>& info) {
  static constexpr const char* kNames[] = {"Reserved", "Created",   "HalfWritten",
                                           "Written",  "Published", "Removed"};
  return std::string(kNames[static_cast<std::size_t>(info.param.step)]) +
         (info.param.unnamed_files ? "" : "Named");
}

INSTANTIATE_TEST_SUITE_P(
    AtEachStep, FileStoreCrash,
    testing::Values(Death{FileStep::kReserved, true}, Death{FileStep::kCreated, true},
                    Death{FileStep::kHalfWritten, true}, Death{FileStep::kWritten, true},
                    Death{FileStep::kPublished, true}, Death{FileStep::kRemoved, true},
                    Death{FileStep::kReserved, false}, Death{FileStep::kCreated, false},
                    Death{FileStep::kHalfWritten, false}, Death{FileStep::kWritten, false},
                    Death{FileStep::kPublished, false}, Death{FileStep::kRemoved, false}),
    name_of);

class FileStoreDrafts : public FileStoreTest {};

TEST_F(FileStoreDrafts, OfALivingWriterAreLeftAlone) {
  FileStoreOptions named = options();
  named.unnamed_files = false;
  named.at_step = [this](FileStep step) {
    if (step != FileStep::kWritten) return std::errc{};
    EXPECT_EQ(drafts(), 1u);
    open();  // cleans up
    EXPECT_EQ(drafts(), 1u) << "its writer lives";
    return std::errc{};
  };
  const auto store = open(named);
  EXPECT_EQ(put(*store, "key").effect, PutEffect::kStored);
  EXPECT_EQ(drafts(), 0u);
}

TEST_F(FileStoreDrafts, ThatSomebodyTookAwayCostOneMoreTry) {
  FileStoreOptions named = options();
  named.unnamed_files = false;
  int written = 0;
  int to_take = 1;
  named.at_step = [&](FileStep step) {
    if (step != FileStep::kWritten) return std::errc{};
    ++written;
    if (to_take-- <= 0) return std::errc{};
    const std::filesystem::path drafts = std::filesystem::path(root()) / "drafts";
    for (const auto& draft : std::filesystem::directory_iterator(drafts)) {
      std::filesystem::remove(draft);
    }
    return std::errc{};
  };
  const auto store = open(named);
  EXPECT_EQ(put(*store, "key").effect, PutEffect::kStored);
  EXPECT_EQ(written, 2);
  to_take = 100;
  EXPECT_EQ(put(*store, "other").reaction, Reaction::kDown);
  EXPECT_EQ(written, 5) << "bounded";
  EXPECT_EQ(store->stats().bytes_used, space_taken());
}

TEST_F(FileStoreDrafts, LostFolderForThemIsMadeAnew) {
  FileStoreOptions named = options();
  named.unnamed_files = false;
  const auto store = open(named);
  std::filesystem::remove(std::filesystem::path(root()) / "drafts");
  EXPECT_EQ(put(*store, "key").effect, PutEffect::kStored);
  EXPECT_EQ(get(*store, "key"), Reaction::kOk);
}

TEST_F(FileStoreDrafts, FilesWithoutANameAreNeverSeen) {
  FileStoreOptions watched = options();
  int looks = 0;
  watched.at_step = [&](FileStep step) {
    if (step > FileStep::kWritten) return std::errc{};
    ++looks;
    EXPECT_EQ(space_taken(), 0u);
    EXPECT_EQ(exists(*open(), "key"), Reaction::kMiss);
    return std::errc{};
  };
  EXPECT_EQ(put(*open(watched), "key").effect, PutEffect::kStored);
  EXPECT_EQ(looks, 4);
}

}  // namespace
}  // namespace kvc
