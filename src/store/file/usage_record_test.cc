#include "store/file/usage_record.h"

#include <gtest/gtest.h>

#include <fstream>
#include <memory>

#include "store/file/file_store_fixture.h"

namespace kvc {
namespace {

using Check = UsageRecord::Check;

// Each record() is a process of its own, as far as locks go.
class UsageRecordTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(ok(Folder::open_path(temporary_.path().string(), &folder_)));
    OpenFile file;
    ASSERT_TRUE(ok(folder_.create_named("usage", &file)));
    ASSERT_TRUE(ok(file.write_at(0, UsageRecord::empty_image())));
  }

  std::unique_ptr<UsageRecord> record(Duration patience = std::chrono::seconds(60)) {
    OpenFile file;
    FileInfo info;
    EXPECT_TRUE(ok(folder_.open_file("usage", Folder::Access::kReadWrite, &file, &info)));
    return std::make_unique<UsageRecord>(std::move(file), patience);
  }

  static std::uint64_t total(const UsageRecord& record) {
    std::uint64_t bytes = 0;
    EXPECT_TRUE(ok(record.total(&bytes)));
    return bytes;
  }
  static void add(UsageRecord& record, std::size_t folder, std::uint64_t bytes) {
    std::uint64_t after = 0;
    EXPECT_TRUE(ok(record.add(folder, bytes, &after)));
    EXPECT_EQ(after, total(record));
  }

  testlib::TemporaryFolder temporary_;
  Folder folder_;
};

TEST_F(UsageRecordTest, SumsWhatAllProcessesSay) {
  const auto a = record();
  const auto b = record();
  add(*a, 0, 100);
  add(*b, 255, 20);
  add(*b, 0, 3);
  EXPECT_EQ(total(*a), 123u);
  EXPECT_TRUE(ok(a->subtract(0, 50)));
  EXPECT_EQ(total(*b), 73u);
  EXPECT_TRUE(ok(a->subtract(255, 1000)));
  EXPECT_EQ(total(*b), 53u) << "never below nothing";
}

TEST_F(UsageRecordTest, ScanFindsWhatADeadWriterLeft) {
  auto dead = record();
  const auto alive = record();
  {
    const auto flight = std::make_unique<UsageRecord::InFlight>(dead.get(), 7);
    add(*dead, 7, 4096);
    UsageRecord::Scan scan(alive.get(), 7);
    EXPECT_FALSE(scan.finish(0)) << "a writer is in flight";
    EXPECT_EQ(total(*alive), 4096u);
  }
  dead.reset();
  UsageRecord::Scan scan(alive.get(), 7);
  EXPECT_TRUE(scan.finish(0));
  EXPECT_EQ(total(*alive), 0u);
}

// Every way in which a writer or a remover can overlap a scan; in none may the record end below
// what the writer's object takes.
TEST_F(UsageRecordTest, ScanThatOverlapsAChangeIsDropped) {
  const auto writer = record();
  const auto scanner = record();
  {  // begins and ends within the scan
    UsageRecord::Scan scan(scanner.get(), 3);
    {
      const UsageRecord::InFlight flight(writer.get(), 3);
      add(*writer, 3, 4096);
    }
    EXPECT_FALSE(scan.finish(0));
  }
  {  // was in flight before, ends within
    auto flight = std::make_unique<UsageRecord::InFlight>(writer.get(), 3);
    add(*writer, 3, 4096);
    UsageRecord::Scan scan(scanner.get(), 3);
    flight.reset();
    EXPECT_FALSE(scan.finish(0));
  }
  {  // a remover that has not subtracted yet when the scan ends
    UsageRecord::Scan scan(scanner.get(), 3);
    const UsageRecord::InFlight flight(writer.get(), 3);
    EXPECT_FALSE(scan.finish(0));
  }
  {  // another thread of the scanner's own process
    const UsageRecord::InFlight flight(scanner.get(), 3);
    UsageRecord::Scan scan(scanner.get(), 3);
    EXPECT_FALSE(scan.finish(0));
  }
  {  // in another folder
    const UsageRecord::InFlight flight(writer.get(), 4);
    add(*writer, 4, 4096);
    UsageRecord::Scan scan(scanner.get(), 3);
    EXPECT_TRUE(scan.finish(8192));
  }
  EXPECT_EQ(total(*writer), 8192u + 4096u);
}

TEST_F(UsageRecordTest, FlightsOfOneProcessAreCounted) {
  const auto writer = record();
  const auto scanner = record();
  auto first = std::make_unique<UsageRecord::InFlight>(writer.get(), 1);
  { const UsageRecord::InFlight second(writer.get(), 1); }
  EXPECT_FALSE(UsageRecord::Scan(scanner.get(), 1).finish(0)) << "the first is still in flight";
  first.reset();
  EXPECT_TRUE(UsageRecord::Scan(scanner.get(), 1).finish(0));
}

TEST_F(UsageRecordTest, OfAStoppedProcessTheLockIsGivenUpInTime) {
  OpenFile holder;
  FileInfo info;
  ASSERT_TRUE(ok(folder_.open_file("usage", Folder::Access::kReadWrite, &holder, &info)));
  constexpr std::uint64_t kChangeLock = 1u << 20;
  ASSERT_TRUE(ok(holder.lock(kChangeLock, Duration::zero())));
  const auto waiting = record(std::chrono::milliseconds(20));
  std::uint64_t after = 0;
  EXPECT_EQ(waiting->add(0, 1, &after), std::errc::timed_out);
  EXPECT_EQ(total(*waiting), 0u) << "reading needs no lock";
  ASSERT_TRUE(ok(holder.unlock(kChangeLock)));
  EXPECT_TRUE(ok(record()->add(0, 1, &after)));
}

TEST_F(UsageRecordTest, IsVouchedForInOneBootOnly) {
  const auto one = record();
  bool vouched = true;
  ASSERT_TRUE(ok(one->vouched_for("boot a", &vouched)));
  EXPECT_FALSE(vouched);
  add(*one, 9, 4096);
  ASSERT_TRUE(ok(one->vouch("boot a")));
  EXPECT_EQ(total(*one), 4096u);
  ASSERT_TRUE(ok(record()->vouched_for("boot a", &vouched)));
  EXPECT_TRUE(vouched);
  ASSERT_TRUE(ok(one->vouched_for("boot b", &vouched)));
  EXPECT_FALSE(vouched);
  ASSERT_TRUE(ok(one->vouch("")));
  ASSERT_TRUE(ok(one->vouched_for("", &vouched)));
  EXPECT_FALSE(vouched) << "a machine that does not tell its boots is always looked at anew";
}

TEST_F(UsageRecordTest, DamageIsSeenAndRepaired) {
  const auto path = temporary_.path() / "usage";
  const auto one = record();
  Check check{};
  ASSERT_TRUE(ok(one->check(&check)));
  EXPECT_EQ(check, Check::kGood);
  for (const std::size_t bytes : {0u, 10u, 64u, 4000u}) {
    std::filesystem::resize_file(path, bytes);
    ASSERT_TRUE(ok(one->check(&check)));
    EXPECT_EQ(check, Check::kDamaged) << bytes;
    std::uint64_t after = 0;
    EXPECT_EQ(one->add(200, 1, &after), std::errc::bad_message) << bytes;
    ASSERT_TRUE(ok(one->repair()));
    ASSERT_TRUE(ok(one->check(&check)));
    EXPECT_EQ(check, Check::kGood) << bytes;
    add(*one, 200, 1);
    EXPECT_EQ(total(*one), 1u);
    ASSERT_TRUE(ok(one->repair()));
    EXPECT_EQ(total(*one), 1u) << "what is good is left alone";
    ASSERT_TRUE(ok(one->subtract(200, 1)));
  }
  std::ofstream(path, std::ios::in | std::ios::binary) << "kvcfiles\x02";
  ASSERT_TRUE(ok(one->check(&check)));
  EXPECT_EQ(check, Check::kOtherVersion);
}

}  // namespace
}  // namespace kvc
