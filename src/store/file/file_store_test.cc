#include "store/file/file_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <set>
#include <utility>

#include "os/thread.h"
#include "store/file/file_store_fixture.h"
#include "testing/collecting_logger.h"
#include "testing/sim_clock.h"

namespace kvc {
namespace {

using testlib::Bytes;
using testlib::FileStoreTest;
using testlib::kBlock;
using testlib::payload_for;
using testlib::TemporaryFolder;

// ---- the suite of all stores ---------------------------------------------------------------

constexpr std::size_t kCapacity = std::size_t{64} << 20;

/// The folder goes when the store is gone.
class InItsFolder {
 public:
  static std::shared_ptr<Store> open(bool unnamed_files) {
    auto folder = std::make_shared<TemporaryFolder>();
    FileStoreOptions options;
    options.path = (folder->path() / "store").string();
    options.max_bytes = kCapacity;
    options.unnamed_files = unnamed_files;
    auto store = open_file_store(std::move(options), make_null_logger(), system_clock());
    if (!store.ok()) {
      ADD_FAILURE() << store.status().to_string();
      return nullptr;
    }
    const std::shared_ptr<FileStore> opened = *store;
    return {opened.get(), [opened, folder](Store* /*store*/) {}};
  }
};

testlib::StoreConformance conformance(std::string name, bool unnamed_files) {
  testlib::StoreConformance parameters;
  parameters.name = std::move(name);
  parameters.open = [unnamed_files] { return InItsFolder::open(unnamed_files); };
  parameters.expected.atomic_publish = true;
  parameters.expected.put_tells_existing = true;
  parameters.expected.max_object_bytes = kCapacity;
  parameters.expected.shared_between_processes = true;
  parameters.looks_at_deadlines = true;
  parameters.capacity_bytes = kCapacity;
  return parameters;
}

const bool kIsRegistered = register_store_conformance(conformance("File", true));
const bool kNamedIsRegistered = register_store_conformance(conformance("FileNamedDrafts", false));

// ---- shared --------------------------------------------------------------------------------

TEST_F(FileStoreTest, OneStoreReadsWhatAnotherWroteAndAfterAllAreClosed) {
  const auto a = open();
  const auto b = open();
  EXPECT_EQ(put(*a, "key").effect, PutEffect::kStored);
  EXPECT_EQ(get(*b, "key"), Reaction::kOk);
  EXPECT_EQ(put(*b, "key").effect, PutEffect::kExisted);
  EXPECT_EQ(remove(*b, "key"), Reaction::kOk);
  EXPECT_EQ(exists(*a, "key"), Reaction::kMiss);
  put(*b, "kept");
  a->close(Deadline::never());
  b->close(Deadline::never());
  EXPECT_EQ(get(*open(), "kept"), Reaction::kOk);
}

TEST_F(FileStoreTest, AnObjectIsItsBytesInOneFileOfThisUserAlone) {
  const auto store = open();
  put(*store, "kvc1/ab/cd/r0", 5000);
  const std::filesystem::path file = file_of("kvc1/ab/cd/r0");
  EXPECT_EQ(std::filesystem::file_size(file), 5000u);
  using std::filesystem::perms;
  EXPECT_EQ(std::filesystem::status(file).permissions(), perms::owner_read | perms::owner_write);
  EXPECT_EQ(std::filesystem::status(root()).permissions(), perms::owner_all);
}

// ---- least recently used -------------------------------------------------------------------

TEST_F(FileStoreTest, EvictsTheLeastRecentlyUsedAcrossStores) {
  const auto a = open(3 * kBlock);
  const auto b = open(3 * kBlock);
  for (const char* key : {"1", "2", "3"}) put(*a, key);
  EXPECT_EQ(exists(*b, "1"), Reaction::kOk);  // a use: 2 is the oldest now
  EXPECT_EQ(put(*b, "4").effect, PutEffect::kStored);
  EXPECT_EQ(present(*a, {"1", "2", "3", "4"}), (std::vector<std::string>{"1", "3", "4"}));
  EXPECT_EQ(get(*b, "1"), Reaction::kOk);  // 3 is the oldest now
  EXPECT_EQ(put(*a, "5").effect, PutEffect::kStored);
  EXPECT_EQ(put(*b, "5").effect, PutEffect::kExisted);  // a use too
  EXPECT_EQ(present(*b, {"1", "3", "4", "5"}), (std::vector<std::string>{"1", "4", "5"}));
  EXPECT_EQ(a->stats().evicted + b->stats().evicted, 2u);
}

TEST_F(FileStoreTest, SampleOfALargerStoreKeepsWhatIsInUse) {
  constexpr int kObjects = 300;
  const auto writer = open(kObjects * kBlock);
  const auto reader = open(kObjects * kBlock);
  std::set<int> hot;
  for (int i = 0; i < kObjects; ++i) {
    put(*writer, std::to_string(i));
    if (i % 10 == 0) hot.insert(i);
  }
  for (int i = kObjects; i < 4 * kObjects; ++i) {
    if (i % 100 == 0) {
      for (const int key : hot) EXPECT_EQ(exists(*reader, std::to_string(key)), Reaction::kOk);
    }
    put(*writer, std::to_string(i));
  }
  for (const int key : hot) EXPECT_EQ(get(*reader, std::to_string(key)), Reaction::kOk);
  EXPECT_LE(space_taken(), kObjects * kBlock);
}

TEST_F(FileStoreTest, UsesAreNotedAtMostSoOften) {
  FileStoreOptions often = options();
  often.use_noted_every = std::chrono::seconds(5);
  const auto store = open(often);
  put(*store, "key");
  const auto written = std::filesystem::last_write_time(file_of("key"));
  wall_ns_ += 4'000'000'000;
  exists(*store, "key");
  get(*store, "key");
  EXPECT_EQ(std::filesystem::last_write_time(file_of("key")), written);
  wall_ns_ += 1'000'000'000;
  exists(*store, "key");
  EXPECT_GT(std::filesystem::last_write_time(file_of("key")), written);
}

TEST_F(FileStoreTest, ObjectsFromTheFutureDoNotStayForEver) {
  const auto store = open(3 * kBlock);
  const std::int64_t now = wall_ns_;
  wall_ns_ = now + std::int64_t{3600} * 1'000'000'000;
  put(*store, "ahead");
  wall_ns_ = now;
  put(*store, "1");
  put(*store, "2");
  put(*store, "3");
  EXPECT_EQ(present(*store, {"ahead", "1", "2", "3"}), (std::vector<std::string>{"1", "2", "3"}));
}

TEST_F(FileStoreTest, AnObjectThatIsEvictedWhileItIsReadStaysWhole) {
  const auto store = open(4 * kBlock);
  const Bytes payload = payload_for("read", 4 * kBlock);
  put(*store, "read", 4 * kBlock);
  std::ifstream open_file(file_of("read"), std::ios::binary);
  Bytes first(100);
  open_file.read(reinterpret_cast<char*>(first.data()), 100);
  put(*store, "other", 4 * kBlock);
  EXPECT_EQ(exists(*store, "read"), Reaction::kMiss);
  Bytes rest(payload.size() - 100);
  open_file.read(reinterpret_cast<char*>(rest.data()), static_cast<std::streamsize>(rest.size()));
  EXPECT_TRUE(open_file.good());
  EXPECT_TRUE(std::equal(rest.begin(), rest.end(), payload.begin() + 100));
}

// ---- bounded -------------------------------------------------------------------------------

TEST_F(FileStoreTest, FilesCountByTheBlock) {
  const auto store = open(4 * kBlock);
  EXPECT_EQ(store->stats().bytes_used, 0u);
  put(*store, "1", 1);
  EXPECT_EQ(store->stats().bytes_used, kBlock);
  put(*store, "2", kBlock + 1);
  EXPECT_EQ(store->stats().bytes_used, 3 * kBlock);
  put(*store, "3", kBlock);
  EXPECT_EQ(store->stats().bytes_used, 4 * kBlock);
  EXPECT_EQ(store->stats().evicted, 0u);
  remove(*store, "2");
  EXPECT_EQ(store->stats().bytes_used, 2 * kBlock);
}

TEST_F(FileStoreTest, ObjectOfTheWholeLimitFitsAndNoLargerOne) {
  const auto store = open(4 * kBlock);
  put(*store, "small");
  EXPECT_EQ(put(*store, "whole", 4 * kBlock).effect, PutEffect::kStored);
  EXPECT_EQ(exists(*store, "small"), Reaction::kMiss);
  EXPECT_EQ(put(*store, "larger", 4 * kBlock + 1).reaction, Reaction::kCallerBug);
  EXPECT_EQ(get(*store, "whole", 4 * kBlock), Reaction::kOk);
}

TEST_F(FileStoreTest, WritersAtOnceStayWithinTheLimit) {
  constexpr std::uint64_t kLimit = 256 * kBlock;
  constexpr int kWriters = 4;
  std::atomic<int> running{kWriters};
  const auto logger = std::make_shared<testlib::CollectingLogger>();
  std::atomic<std::uint64_t> most{0};
  std::vector<Thread> threads;
  for (int who = 0; who < kWriters; ++who) {
    Result<Thread> thread = Thread::start("writer", [&, who] {
      const auto opened = open_file_store(options(kLimit), logger, system_clock());
      ASSERT_TRUE(opened.ok());
      FileStore& store = **opened;
      for (int i = 0; i < 250; ++i) {
        const std::string key = std::to_string(who) + "/" + std::to_string(i);
        EXPECT_EQ(put(store, key, 1000 + 197 * static_cast<std::size_t>(i)).reaction, Reaction::kOk)
            << key << testing::PrintToString(logger->lines(LogLevel::kWarning));
      }
      running.fetch_sub(1);
    });
    ASSERT_TRUE(thread.ok());
    threads.push_back(std::move(*thread));
  }
  const auto watcher = open(kLimit);
  while (running.load() > 0) {
    most = std::max(most.load(), watcher->stats().bytes_used);
    // Reserved space counts before room was made for it, so each writer may be one object ahead.
    EXPECT_LE(watcher->stats().bytes_used, kLimit + kWriters * 13 * kBlock);
  }
  for (Thread& thread : threads) thread.join();
  EXPECT_LE(space_taken(), kLimit);
  EXPECT_GE(space_taken(), kLimit * 9 / 10);
  EXPECT_EQ(watcher->stats().bytes_used, space_taken());
  EXPECT_EQ(drafts(), 0u);
}

TEST_F(FileStoreTest, WhatOthersTookAwayIsFoundAgain) {
  const auto store = open();
  for (int i = 0; i < 20; ++i) put(*store, std::to_string(i));
  for (int i = 0; i < 10; ++i) std::filesystem::remove(file_of(std::to_string(i)));
  EXPECT_EQ(store->stats().bytes_used, 20 * kBlock);
  EXPECT_TRUE(store->take_stock());
  EXPECT_EQ(store->stats().bytes_used, 10 * kBlock);
}

TEST_F(FileStoreTest, RecordIsMadeFromTheObjectsWhereItIsLostOrDamaged) {
  for (int i = 0; i < 20; ++i) put(*open(), std::to_string(i));
  const std::filesystem::path record = std::filesystem::path(root()) / "usage";
  std::filesystem::remove(record);
  EXPECT_EQ(open()->stats().bytes_used, 20 * kBlock);
  std::filesystem::resize_file(record, 100);
  EXPECT_EQ(open()->stats().bytes_used, 20 * kBlock);
  std::ofstream(record, std::ios::binary) << std::string(4160, '\xff');
  EXPECT_EQ(open()->stats().bytes_used, 20 * kBlock);
}

TEST_F(FileStoreTest, RecordOfAnEarlierBootIsNotTrusted) {
  for (int i = 0; i < 20; ++i) put(*open(), std::to_string(i));
  // What a power loss may leave: a record from before the objects.
  std::string text(40, '\0');
  std::fstream record(std::filesystem::path(root()) / "usage",
                      std::ios::in | std::ios::out | std::ios::binary);
  record.seekp(16);
  record.write("another boot", 12);
  record.seekp(64);
  for (int i = 0; i < 256; ++i) record.write(std::string(16, '\0').data(), 16);
  record.close();
  EXPECT_EQ(open()->stats().bytes_used, 20 * kBlock);
}

// ---- deadlines -----------------------------------------------------------------------------

TEST_F(FileStoreTest, DeadlineEndsABatchBetweenItsItems) {
  const auto clock = std::make_shared<testlib::SimClock>();
  FileStoreOptions slow = options();
  slow.at_step = [clock](FileStep step) {
    if (step == FileStep::kPublished) clock->advance(std::chrono::milliseconds(100));
    return std::errc{};
  };
  auto store = open_file_store(slow, make_null_logger(), clock);
  ASSERT_TRUE(store.ok());
  const Bytes payload = payload_for("object", 100);
  std::vector<PutItem> items;
  for (int i = 0; i < 5; ++i) items.push_back(testlib::put_item(std::to_string(i), payload));
  const CallContext context{Deadline::after(*clock, std::chrono::milliseconds(150)), nullptr};
  const std::vector<PutResult> results = (*store)->put(std::move(items), context);
  ASSERT_EQ(results.size(), 5u);
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(results[i].reaction, i < 2 ? Reaction::kOk : Reaction::kDown) << i;
    EXPECT_EQ(exists(**store, std::to_string(i)), i < 2 ? Reaction::kOk : Reaction::kMiss) << i;
  }
}

// ---- full, unwritable, gone ----------------------------------------------------------------

class FailingAt : public FileStoreTest, public testing::WithParamInterface<FileStep> {};

TEST_P(FailingAt, FullDiskBacksOffGivesTheSpaceBackAndGoesOn) {
  const auto logger = std::make_shared<testlib::CollectingLogger>();
  std::errc error = std::errc::no_space_on_device;
  FileStoreOptions failing = options();
  failing.at_step = [&](FileStep step) { return step == GetParam() ? error : std::errc{}; };
  auto store = open_file_store(failing, logger, system_clock());
  ASSERT_TRUE(store.ok());
  put(*open(), "before");
  for (const std::errc one : {std::errc::no_space_on_device, std::errc::file_too_large,
                              std::errc::read_only_file_system}) {
    error = one;
    const PutResult result = put(**store, "key");
    EXPECT_EQ(result.reaction, Reaction::kBackOff);
    EXPECT_EQ(result.effect, PutEffect::kNone);
    EXPECT_EQ(exists(**store, "key"), Reaction::kMiss);
  }
  EXPECT_EQ((*store)->stats().puts_backed_off, 3u);
  EXPECT_EQ((*store)->stats().bytes_used, space_taken());
  EXPECT_EQ(logger->count("cannot store a block: No space left on device"), 1u) << "said once";
  error = {};
  EXPECT_EQ(put(**store, "key").effect, PutEffect::kStored);
  EXPECT_EQ(get(**store, "key"), Reaction::kOk);
}

INSTANTIATE_TEST_SUITE_P(EachStep, FailingAt,
                         testing::Values(FileStep::kReserved, FileStep::kCreated,
                                         FileStep::kHalfWritten, FileStep::kWritten));

TEST_F(FileStoreTest, DiskThatOthersFilledIsMadeUseOfByEvicting) {
  int failures = 1;
  FileStoreOptions failing = options();
  failing.at_step = [&](FileStep step) {
    const bool fails = step == FileStep::kWritten && failures > 0 && failures-- > 0;
    return fails ? std::errc::no_space_on_device : std::errc{};
  };
  put(*open(), "old");
  put(*open(), "young");
  const auto store = open(failing);
  EXPECT_EQ(put(*store, "new").effect, PutEffect::kStored);
  EXPECT_EQ(present(*store, {"old", "young", "new"}), (std::vector<std::string>{"young", "new"}));
  EXPECT_EQ(store->stats().bytes_used, space_taken());
}

TEST_F(FileStoreTest, RemovedFolderIsAMissAndIsMadeAnew) {
  const auto a = open();
  const auto b = open();
  put(*a, "key");
  std::filesystem::remove_all(root());
  EXPECT_EQ(get(*a, "key"), Reaction::kMiss);
  EXPECT_EQ(exists(*b, "key"), Reaction::kMiss);
  EXPECT_EQ(put(*a, "key").effect, PutEffect::kStored);
  EXPECT_EQ(get(*a, "key"), Reaction::kOk);
  EXPECT_EQ(put(*b, "key").effect, PutEffect::kExisted) << "both use the new one";
  EXPECT_EQ(a->stats().bytes_used, kBlock);
  EXPECT_EQ(a->stats().reopened, 1u);
}

TEST_F(FileStoreTest, ReaderFindsAFolderThatAnotherReplaced) {
  FileStoreOptions eager = options();
  eager.look_around_every = Duration::zero();
  const auto reader = open(eager);
  std::filesystem::rename(root(), root() + "-aside");
  put(*open(), "key");
  EXPECT_EQ(get(*reader, "key"), Reaction::kOk);
  std::filesystem::remove(std::filesystem::path(root()) / "usage");
  exists(*reader, "key");
  EXPECT_EQ(reader->stats().bytes_used, kBlock) << "a lost record is made anew while it runs";
}

TEST_F(FileStoreTest, FolderThatCannotBeMadeAnewIsDownUntilItCan) {
  FileStoreOptions eager = options();
  eager.look_around_every = Duration::zero();
  const auto store = open(eager);
  put(*store, "key");
  std::filesystem::remove_all(root());
  std::ofstream(root()) << "in the way";
  EXPECT_EQ(put(*store, "key").reaction, Reaction::kDown);
  EXPECT_EQ(get(*store, "key"), Reaction::kDown);
  std::filesystem::remove(root());
  EXPECT_EQ(put(*store, "key").effect, PutEffect::kStored);
  EXPECT_EQ(get(*store, "key"), Reaction::kOk);
}

TEST_F(FileStoreTest, NoDescriptorIsLeftOpen) {
  const auto open_now = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  };
  const auto before = open_now();
  {
    const auto store = open(8 * kBlock);
    for (int i = 0; i < 50; ++i) put(*store, std::to_string(i));
    for (int i = 0; i < 50; ++i) get(*store, std::to_string(i));
    EXPECT_LE(open_now() - before, 3);
    store->close(Deadline::never());
    EXPECT_EQ(open_now(), before);
  }
  EXPECT_EQ(open_now(), before);
}

}  // namespace
}  // namespace kvc
