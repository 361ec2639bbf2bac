#include "connector/staging.h"

#include <gtest/gtest.h>

#include <set>

#include "connector/staging_plan.h"
#include "kvc/block_format.h"
#include "store/memory/memory_store.h"
#include "testing/gated_store.h"

namespace kvc {
namespace {

using Use = StagingPool::Use;

struct Pool {
  explicit Pool(std::size_t pages, std::size_t save_limit) {
    area = std::move(StagingArea::create(pages * 4096, *make_host_page_copier(), *store)).value();
    pool = std::make_shared<StagingPool>(area, area->bytes(), 4096, save_limit);
  }

  std::shared_ptr<testlib::GatedStore> store =
      std::make_shared<testlib::GatedStore>(make_memory_store({}));
  std::shared_ptr<StagingArea> area;
  std::shared_ptr<StagingPool> pool;
};

TEST(Staging, LendsEveryPageOnceAndTakesItBack) {
  Pool staging(4, 4);
  std::vector<StagingLease> leases;
  std::set<const std::byte*> pages;
  for (int i = 0; i < 4; ++i) {
    leases.push_back(staging.pool->borrow(Use::kLoad));
    ASSERT_NE(leases.back(), nullptr);
    EXPECT_EQ(leases.back()->bytes().size(), 4096u);
    pages.insert(leases.back()->bytes().data());
  }
  EXPECT_EQ(pages.size(), 4u);
  EXPECT_EQ(staging.pool->borrow(Use::kLoad), nullptr);
  EXPECT_EQ(staging.pool->lent(), 4u);
  leases.clear();
  EXPECT_EQ(staging.pool->lent(), 0u);
  EXPECT_EQ(staging.pool->available(Use::kLoad), 4u);
}

TEST(Staging, SavesCannotTakeThePagesOfLoads) {
  Pool staging(4, 3);
  std::vector<StagingLease> saves;
  while (StagingLease page = staging.pool->borrow(Use::kSave)) saves.push_back(std::move(page));
  EXPECT_EQ(saves.size(), 3u);
  EXPECT_EQ(staging.pool->available(Use::kSave), 0u);
  EXPECT_EQ(staging.pool->available(Use::kLoad), 1u);
  const StagingLease load = staging.pool->borrow(Use::kLoad);
  EXPECT_NE(load, nullptr);
  saves.pop_back();
  EXPECT_EQ(staging.pool->available(Use::kSave), 1u);
}

TEST(Staging, HeldPageIsInQuarantineUntilTheHoldEnds) {
  Pool staging(2, 2);
  StagingLease page = staging.pool->borrow(Use::kSave);
  BufferHold hold = hold_pages({page});
  page.reset();
  EXPECT_EQ(staging.pool->lent(), 1u);
  hold.reset();
  EXPECT_EQ(staging.pool->lent(), 0u);
}

TEST(Staging, PageThatOthersShareWithASaveDoesNotCountAsASavesAfterIt) {
  Pool staging(2, 1);
  StagingLease save = staging.pool->borrow(Use::kSave);
  StagingLease shared = without_claim(save);
  EXPECT_EQ(shared->bytes().data(), save->bytes().data());
  EXPECT_EQ(without_claim(shared), shared);
  EXPECT_FALSE(staging.pool->may_borrow(Use::kSave));
  EXPECT_EQ(shared.use_count(), 2) << "the save's use of the page is seen";
  save.reset();
  EXPECT_EQ(shared.use_count(), 1);
  EXPECT_EQ(staging.pool->lent(), 1u);
  EXPECT_TRUE(staging.pool->may_borrow(Use::kSave));
  const StagingLease next = staging.pool->borrow(Use::kSave);
  EXPECT_NE(next->bytes().data(), shared->bytes().data());
  shared.reset();
  EXPECT_EQ(staging.pool->lent(), 1u);
}

TEST(Staging, PageOutlivesPoolAndArea) {
  Pool staging(1, 1);
  StagingLease page = staging.pool->borrow(Use::kLoad);
  ASSERT_TRUE(staging.area->close(*staging.store, false).code() == Code::kTimedOut);
  staging.pool.reset();
  staging.area.reset();
  page->bytes()[0] = std::byte{1};  // A sanitizer would tell.
  page.reset();
}

TEST(Staging, IsRegisteredOnceAndUnregisteredWhenIdle) {
  Pool staging(2, 2);
  EXPECT_EQ(staging.store->registered(), 1u);
  EXPECT_TRUE(staging.area->close(*staging.store, true).ok());
  EXPECT_EQ(staging.store->registered(), 0u);
}

TEST(Staging, StaysRegisteredWhileACallMayUseIt) {
  Pool staging(2, 2);
  EXPECT_EQ(staging.area->close(*staging.store, false).code(), Code::kTimedOut);
  EXPECT_EQ(staging.store->registered(), 1u);
}

TEST(Staging, RefusedRegistrationSaysSo) {
  const std::shared_ptr<MemoryStore> store = make_memory_store({});
  store->close(Deadline{});
  const auto area = StagingArea::create(4096, *make_host_page_copier(), *store);
  ASSERT_FALSE(area.ok());
  EXPECT_EQ(area.status().code(), Code::kUnavailable);
}

WorkerOptions sized(std::size_t staging_bytes, std::size_t save_queue_bytes) {
  WorkerOptions options;
  options.staging_bytes = staging_bytes;
  options.save_queue_bytes = save_queue_bytes;
  return options;
}

TEST(StagingPlan, FitsTheMemoryItWasGiven) {
  for (const bool atomic : {true, false}) {
    for (const std::size_t page :
         {std::size_t{1}, std::size_t{3968}, std::size_t{3969}, std::size_t{1} << 20}) {
      const WorkerOptions options = sized(std::size_t{64} << 20, std::size_t{32} << 20);
      const Result<StagingPlan> plan = plan_staging(options, page, atomic);
      ASSERT_TRUE(plan.ok());
      EXPECT_LE(plan->total_bytes(), options.staging_bytes);
      EXPECT_GE(plan->page_bytes, kBlockHeaderBytes + page);
      EXPECT_EQ(plan->page_bytes % 4096, 0u);
      EXPECT_LE(plan->save_pages * page, options.save_queue_bytes);
      EXPECT_LT(plan->save_pages, plan->pages);
      EXPECT_GE(plan->save_pages, 1u);
      EXPECT_EQ(plan->check_pages > 0, !atomic);
    }
  }
}

TEST(StagingPlan, LoadsKeepAShareWhateverTheSaveQueueIs) {
  const std::size_t bytes = std::size_t{64} << 20;
  const Result<StagingPlan> plan = plan_staging(sized(bytes, bytes * 100), 4096, true);
  ASSERT_TRUE(plan.ok());
  EXPECT_GE(plan->pages - plan->save_pages, plan->pages / 4);
}

TEST(StagingPlan, NamesTheSettingAndWhatWouldDo) {
  const Result<StagingPlan> small = plan_staging(sized(1 << 20, 1 << 30), 1 << 20, true);
  ASSERT_FALSE(small.ok());
  EXPECT_EQ(small.status().code(), Code::kInvalid);
  EXPECT_NE(small.status().message().find("staging_bytes is 1048576"), std::string::npos);
  // The remedy that it names is enough, and one byte less is not.
  const std::string& message = small.status().message();
  const std::size_t remedy = std::stoul(message.substr(message.rfind(' ') + 1));
  EXPECT_TRUE(plan_staging(sized(remedy, 1 << 30), 1 << 20, true).ok());
  EXPECT_FALSE(plan_staging(sized(remedy - 1, 1 << 30), 1 << 20, true).ok());

  const Result<StagingPlan> queue = plan_staging(sized(1 << 30, 4095), 4096, true);
  ASSERT_FALSE(queue.ok());
  EXPECT_NE(queue.status().message().find("save_queue_bytes is 4095"), std::string::npos);
  // A queue that is half of too little is not what has to be raised.
  const Result<StagingPlan> both = plan_staging(sized(4096, 2048), 4096, true);
  ASSERT_FALSE(both.ok());
  EXPECT_EQ(both.status().message().find("staging_bytes is 4096"), 0u);
  const Result<StagingPlan> no_saves = plan_staging(sized(1 << 30, 0), 4096, true);
  ASSERT_TRUE(no_saves.ok());
  EXPECT_EQ(no_saves->save_pages, 0u);
  EXPECT_FALSE(plan_staging(sized(1 << 30, static_cast<std::size_t>(-1)),
                            static_cast<std::size_t>(-1) - 8, true)
                   .ok());
}

TEST(StagingPlan, BatchesAreBoundedInBlocksAndBytes) {
  WorkerOptions options;
  options.batch_blocks = 64;
  options.batch_bytes = 1000;
  EXPECT_EQ(blocks_per_batch(options, 10), 64u);
  EXPECT_EQ(blocks_per_batch(options, 100), 10u);
  EXPECT_EQ(blocks_per_batch(options, 5000), 1u);
}

}  // namespace
}  // namespace kvc
