// Random histories of the host tier: what must be so of it at any time.

#include <algorithm>
#include <iterator>
#include <map>
#include <vector>

#include "connector/host_tier_fixture.h"
#include "testing/seed.h"

namespace kvc {
namespace {

/// What a leader knows of its holds, and what must be so of the tier at any time.
class History {
 public:
  explicit History(std::uint64_t seed) : random_(seed), world_(3 + random_.below(10)) {}

  void run(int steps) {
    for (int i = 0; i < steps && !::testing::Test::HasFailure(); ++i) {
      step();
      check();
    }
    finish();
  }

 private:
  struct Hold {
    std::vector<std::uint64_t> numbers;
    std::uint32_t staged = 0;
    std::size_t kept = 0;  // Blocks that the leader has not let go of.
    bool done = false;
  };

  void step() {
    switch (random_.below(9)) {
      case 0:
      case 1: {
        std::vector<std::uint64_t> numbers(1 + random_.below(5));
        const std::uint64_t first = random_.below(6);
        for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = first + i;
        const HoldId hold = ++last_hold_;
        holds_[hold] = {.numbers = numbers, .kept = numbers.size()};
        world_.stage(hold, numbers, now_ + std::chrono::seconds(random_.below(4)));
        break;
      }
      case 2:
      case 3:
        (void)world_.begin(random_.below(4), now_);
        break;
      case 4:
        (void)world_.begin_loose(random_.below(3), now_);
        break;
      case 5:
      case 6:
        end_one();
        break;
      case 7:
        let_go();
        break;
      default:
        now_ += std::chrono::milliseconds(random_.below(900));
        if (StagingLease page = world_.pool->borrow(StagingPool::Use::kLoad); page != nullptr) {
          const BlockHash saved = block(random_.below(12));
          TierWorld::fill(*page, saved);
          world_.tier->put(saved, std::move(page));
        } else if (random_.below(2) == 0) {
          (void)world_.tier->make_room();
        }
    }
  }

  void end_one() {
    if (world_.in_flight.empty()) return;
    auto at = world_.in_flight.begin();
    std::advance(at, random_.below(world_.in_flight.size()));
    const BlockHash which = at->first;
    StagingLease page = std::move(at->second);
    world_.in_flight.erase(at);
    const auto how = static_cast<FetchEnd>(random_.below(8) < 5 ? 0 : 1 + random_.below(3));
    // What was not verified has other bytes.
    TierWorld::fill(*page, how == FetchEnd::kVerified ? which : block(1000));
    if (how == FetchEnd::kUnavailable && random_.below(2) == 0) given_up_.push_back(page);
    if (random_.below(4) == 0) given_up_.clear();
    world_.tier->fetched(which, how, std::move(page));
  }

  void let_go() {
    if (holds_.empty()) return;
    auto at = holds_.begin();
    std::advance(at, random_.below(holds_.size()));
    const auto from = static_cast<std::uint32_t>(random_.below(2) * random_.below(5));
    world_.release(at->first, from);
    at->second.kept = std::min<std::size_t>(at->second.kept, from);
    if (from == 0) holds_.erase(at);
  }

  void check() {
    for (const StageProgress& progress : world_.tier->take_reports()) {
      const auto at = holds_.find(progress.hold);
      ASSERT_NE(at, holds_.end()) << "told of a hold that is over";
      Hold& hold = at->second;
      EXPECT_FALSE(hold.done) << "told twice that it is done";
      EXPECT_GE(progress.staged, hold.staged);
      EXPECT_LE(progress.staged, hold.numbers.size());
      hold.staged = progress.staged;
      hold.done = progress.done;
    }
    for (const auto& [id, hold] : holds_) {
      for (std::size_t i = 0; i < std::min<std::size_t>(hold.staged, hold.kept); ++i) {
        const StagingLease page = world_.tier->find(block(hold.numbers[i]));
        ASSERT_NE(page, nullptr) << "block " << i << " of hold " << id << " was promised";
        EXPECT_TRUE(TierWorld::holds(page, block(hold.numbers[i])));
      }
    }
    for (std::uint64_t number = 0; number < 12; ++number) {
      const StagingLease page = world_.tier->find(block(number));
      EXPECT_TRUE(page == nullptr || TierWorld::holds(page, block(number)));
      for (const StagingLease& other : given_up_) EXPECT_NE(page, other);
    }
    EXPECT_EQ(world_.tier->in_flight(), world_.in_flight.size());
    EXPECT_EQ(world_.tier->holds(), holds_.size());
  }

  /// Without faults everything comes to its end, and nothing is left over.
  void finish() {
    given_up_.clear();
    now_ = Instant::max();
    (void)world_.begin(100, now_);
    (void)world_.begin_loose(100, now_);
    while (!world_.in_flight.empty()) end_one();
    check();
    for (const auto& [id, hold] : holds_) {
      const bool decided = hold.kept < hold.numbers.size();
      EXPECT_TRUE(hold.done || decided) << "hold " << id;
    }
    while (!holds_.empty()) {
      world_.release(holds_.begin()->first);
      holds_.erase(holds_.begin());
    }
    EXPECT_EQ(world_.tier->held(), 0u);
    EXPECT_EQ(world_.tier->wanted(), 0u);
    while (world_.tier->make_room()) {
    }
    given_up_.clear();
    EXPECT_EQ(world_.pool->lent(), 0u);
  }

  Random random_;
  TierWorld world_;
  Instant now_{};
  HoldId last_hold_ = 0;
  std::map<HoldId, Hold> holds_;
  std::vector<StagingLease> given_up_;  // By transfers that are not over.
};

TEST(HostTier, RandomHistoriesKeepItsInvariants) {
  const std::uint64_t seed = testlib::test_seed(5);
  for (std::uint64_t i = 0; i < 2000 && !HasFailure(); ++i) {
    SCOPED_TRACE("seed " + std::to_string(seed + i));
    History(seed + i).run(60);
  }
}

}  // namespace
}  // namespace kvc
