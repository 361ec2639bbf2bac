// Loads from a store whose leases may lapse: batches that fit, leases that are kept, and one more
// question before a request fails.

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "connector/load_speed.h"
#include "connector/worker_fixture.h"
#include "testing/leasing_store.h"

namespace kvc {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testlib::LeasingStore;

/// Takes a while for each object, and remembers how many a transfer had.
class SlowStore final : public testlib::PassingStore {
 public:
  SlowStore(std::shared_ptr<Store> inner, std::shared_ptr<testlib::SimClock> clock, Duration object)
      : testlib::PassingStore(std::move(inner)), clock_(std::move(clock)), object_(object) {}

  std::vector<GetResult> get(std::vector<GetItem> items, CallContext context) override {
    clock_->advance(object_ * static_cast<int>(items.size()));
    transfers.push_back(items.size());
    return inner_->get(std::move(items), std::move(context));
  }

  std::vector<std::size_t> transfers;

 private:
  const std::shared_ptr<testlib::SimClock> clock_;
  const Duration object_;
};

/// Does not find some objects at the first time of asking.
class ForgetfulStore final : public testlib::PassingStore {
 public:
  ForgetfulStore(std::shared_ptr<Store> inner, std::vector<std::string> keys)
      : testlib::PassingStore(std::move(inner)), keys_(std::move(keys)) {}

  std::vector<GetResult> get(std::vector<GetItem> items, CallContext context) override {
    std::vector<GetResult> results = inner_->get(items, std::move(context));
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (std::erase(keys_, items[i].key) > 0) results[i] = {Reaction::kMiss, 0};
    }
    return results;
  }

 private:
  std::vector<std::string> keys_;
};

TEST(FaultKinds, B28_ABatchFitsIntoHalfALease) {
  constexpr Duration kLease = seconds(10);
  WorkerWorld world;
  auto slow = std::make_shared<SlowStore>(world.store, world.clock, milliseconds(400));
  world.on = std::make_shared<LeasingStore>(slow, kLease);
  world.options.load_deadline = seconds(60);
  world.options.batch_blocks = 20;
  world.start();
  world.put_all(60);
  EXPECT_TRUE(world.load(world.tasks(numbers_to(60))).empty());
  // The first one is a guess, since nothing was measured; then 12 of 400 ms are just short of 5 s.
  ASSERT_GT(slow->transfers.size(), 2u);
  for (std::size_t i = 1; i < slow->transfers.size(); ++i) EXPECT_LE(slow->transfers[i], 12u);
}

TEST(FaultKinds, B28_ABatchIsNeverLessThanOneObject) {
  WorkerWorld world;
  auto slow = std::make_shared<SlowStore>(world.store, world.clock, seconds(2));
  world.on = std::make_shared<LeasingStore>(slow, milliseconds(1));
  world.options.load_deadline = seconds(60);
  world.start();
  world.put_all(4);
  EXPECT_TRUE(world.load(world.tasks(numbers_to(4))).empty());
}

TEST(FaultKinds, B28_AStoreWithoutLeasesSetsNoBoundToBatches) {
  WorkerWorld world;
  auto slow = std::make_shared<SlowStore>(world.store, world.clock, milliseconds(400));
  world.on = slow;
  world.options.load_deadline = seconds(60);
  world.options.batch_blocks = 64;
  world.start();
  world.put_all(60);
  EXPECT_TRUE(world.load(world.tasks(numbers_to(60))).empty());
  EXPECT_GE(*std::ranges::max_element(slow->transfers), 30u);
}

TEST(FaultKinds, B28_ALoadThatTakesLongerThanALeaseKeepsThoseOfWhatIsLeft) {
  constexpr Duration kLease = seconds(4);
  WorkerWorld world;
  auto leasing = std::make_shared<LeasingStore>(world.store, kLease, world.clock);
  world.on = std::make_shared<SlowStore>(leasing, world.clock, seconds(1));
  world.options.load_deadline = seconds(60);
  world.options.batch_blocks = 1;
  world.start();
  world.put_all(20);
  std::vector<std::string> keys;
  for (const std::uint64_t number : numbers_to(20)) keys.push_back(world.shard(number));
  (void)leasing->exists(keys, {});
  // Whenever a batch is copied, everything that may go from the store goes.
  std::size_t evicted = 0;
  std::size_t copied = 0;
  auto copier = std::make_shared<WatchedCopier>();
  copier->before_copy_in = [&](SlotIndex) {
    world.executor->run_all();
    for (std::size_t i = ++copied; i < keys.size(); ++i) evicted += leasing->evict(keys[i]) ? 1 : 0;
    return Status();
  };
  world.copier = copier;
  world.start();
  EXPECT_TRUE(world.load(world.tasks(numbers_to(20))).empty());
  EXPECT_EQ(evicted, 0u);
}

TEST(FaultKinds, B28_AMissingBlockIsAskedForOnceMore) {
  WorkerWorld world;
  auto forgetful = std::make_shared<ForgetfulStore>(
      world.store, std::vector<std::string>{world.shard(2), world.shard(5)});
  world.on = forgetful;
  world.start();
  world.put_all(6);
  EXPECT_TRUE(world.load(world.tasks(numbers_to(6))).empty());
  EXPECT_EQ(world.worker->stats().loads_asked_again, 2u);
  EXPECT_EQ(world.worker->stats().loads_missing, 0u);
  for (const std::uint64_t number : numbers_to(6)) {
    EXPECT_TRUE(world.pool.holds(static_cast<SlotIndex>(number - 1), make_hash(number), 0));
  }
}

TEST(FaultKinds, B28_AndThenItsRequestFails) {
  WorkerWorld world;
  auto forgetful = std::make_shared<ForgetfulStore>(
      world.store, std::vector<std::string>{world.shard(2), world.shard(2)});
  world.on = forgetful;
  world.start();
  world.put_all(3);
  world.lose(world.shard(2));
  const std::vector<LoadFailure> failures = world.load(world.tasks(numbers_to(3)));
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_EQ(failures[0].status.code(), Code::kMissing);
  EXPECT_EQ(world.worker->stats().loads_missing, 1u);
  EXPECT_EQ(world.store->count(StoreOp::kGet), 2u) << "all of them, then this one once more";
  EXPECT_TRUE(world.pool.is_poison(1));
}

TEST(LoadSpeed, ALongLoadTellsHoweverSmallItIs) {
  LoadSpeed speed;
  speed.moved(std::uint64_t{1} << 10, milliseconds(10));
  EXPECT_EQ(speed.bytes_per_second(), LoadSpeed::kFirstGuess) << "the time of a call";
  speed.moved(std::uint64_t{4} << 20, seconds(2));
  EXPECT_EQ(speed.bytes_per_second(), std::uint64_t{2} << 20) << "a guess weighs nothing";
  speed.moved(std::uint64_t{24} << 20, seconds(4));
  EXPECT_EQ(speed.bytes_per_second(), std::uint64_t{3} << 20);
}

}  // namespace
}  // namespace kvc
