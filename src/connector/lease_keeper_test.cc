#include "connector/lease_keeper.h"

#include <gtest/gtest.h>

#include <chrono>
#include <vector>

namespace kvc {
namespace {

using std::chrono::seconds;
using Ids = std::vector<RequestId>;

constexpr Duration kLease = seconds(10);

Instant at(int second) { return Instant(seconds(second)); }

TEST(LeaseKeeper, IsDueOnceHalfOfTheLeaseIsOver) {
  LeaseKeeper keeper({.lease = kLease});
  keeper.promised(1, at(0));
  keeper.promised(2, at(2));
  EXPECT_EQ(keeper.due(at(4)), Ids{});
  EXPECT_EQ(keeper.due(at(5)), Ids{1});
  keeper.renewed(1, at(5));
  EXPECT_EQ(keeper.due(at(7)), Ids{2});
  EXPECT_EQ(keeper.due(at(10)), (Ids{1, 2}));
  keeper.over(2);
  EXPECT_EQ(keeper.due(at(10)), Ids{1});
}

TEST(LeaseKeeper, IsAskedOftenEnoughThatNoLeaseLapses) {
  LeaseKeeper keeper({.lease = kLease});
  keeper.promised(1, at(0));
  // At the worst, the answer was "not yet" a moment before half of the lease was over.
  EXPECT_LT(kLease / 2 + keeper.interval(), kLease);
}

TEST(LeaseKeeper, WithoutLeasesThereIsNothingToKeep) {
  LeaseKeeper keeper({.lease = Duration::zero()});
  keeper.promised(1, at(0));
  EXPECT_EQ(keeper.size(), 0u);
  EXPECT_EQ(keeper.interval(), Duration::zero());
}

TEST(LeaseKeeper, APromiseWithoutPagesIsLeftToItselfAfterAWhile) {
  LeaseKeeper keeper({.lease = kLease, .renewals_without_pages = 2});
  keeper.promised(1, at(0));
  keeper.renewed(1, at(5));
  EXPECT_EQ(keeper.due(at(10)), Ids{1});
  keeper.renewed(1, at(10));
  EXPECT_EQ(keeper.due(at(100)), Ids{});
  keeper.allocated(1);  // Late, but firm: whatever is still there is kept.
  EXPECT_EQ(keeper.due(at(100)), Ids{1});
  keeper.renewed(1, at(100));
  EXPECT_EQ(keeper.due(at(105)), Ids{1});
}

TEST(LeaseKeeper, FirmPromisesComeFirst) {
  LeaseKeeper keeper({.lease = kLease});
  for (const RequestId id : {1, 2, 3, 4}) keeper.promised(id, at(0));
  keeper.allocated(3);
  keeper.allocated(2);
  EXPECT_EQ(keeper.due(at(9)), (Ids{2, 3, 1, 4}));
}

TEST(LeaseKeeper, ANewPromiseBeginsAnewAndALateRenewalOfTheOldOneDoesNotAgeIt) {
  LeaseKeeper keeper({.lease = kLease, .renewals_without_pages = 1});
  keeper.promised(1, at(0));
  keeper.renewed(1, at(5));
  keeper.promised(1, at(8));
  EXPECT_EQ(keeper.due(at(12)), Ids{});
  keeper.renewed(1, at(6));
  EXPECT_EQ(keeper.due(at(12)), Ids{});
  keeper.lost(1, at(6));
  EXPECT_EQ(keeper.size(), 1u) << "what was asked before it says nothing of it";
  keeper.renewed(7, at(6));  // Nobody's.
  keeper.lost(7, at(6));
  EXPECT_EQ(keeper.size(), 1u);
  keeper.lost(1, at(13));
  EXPECT_EQ(keeper.size(), 0u);
}

}  // namespace
}  // namespace kvc
