// Ranks as tests of the leader play them: what each answers to an order is set by hand, and what it
// was told is kept.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "kvc/stage_leader.h"
#include "testing/sim_clock.h"

namespace kvc {

/// Safe to use from any thread.
class HandLink final : public StageLink {
 public:
  /// Runs within stage(), and may report.
  using Answer = std::function<void(const StageOrder& order)>;

  bool connected() const override {
    const MutexLock lock(mutex_);
    if (missing_for_ == 0) return connected_;
    --missing_for_;
    return false;
  }
  bool stage(StageOrder order) override {
    Answer answer;
    {
      const MutexLock lock(mutex_);
      if (!takes_orders_) return false;
      orders_.push_back(order);
      answer = answer_;
      changed_.notify_all();
    }
    if (answer) answer(order);
    return connected();
  }
  void release(HoldRelease release) override {
    const MutexLock lock(mutex_);
    releases_.push_back(release);
  }

  void set_connected(bool connected) {
    const MutexLock lock(mutex_);
    connected_ = connected;
  }
  /// Comes back after so many have asked.
  void set_missing_for(int askers) {
    const MutexLock lock(mutex_);
    missing_for_ = askers;
  }
  /// Off: as between two connections. connected() is as it was set.
  void set_takes_orders(bool takes) {
    const MutexLock lock(mutex_);
    takes_orders_ = takes;
  }
  void answer_with(Answer answer) {
    const MutexLock lock(mutex_);
    answer_ = std::move(answer);
  }
  std::vector<StageOrder> orders() const {
    const MutexLock lock(mutex_);
    return orders_;
  }
  std::vector<HoldRelease> releases() const {
    const MutexLock lock(mutex_);
    return releases_;
  }
  std::vector<HoldRelease> take_releases() {
    const MutexLock lock(mutex_);
    return std::exchange(releases_, {});
  }
  /// Returns with the first order.
  StageOrder await_order() {
    const MutexLock lock(mutex_);
    while (orders_.empty()) changed_.wait(mutex_);
    return orders_.front();
  }

 private:
  mutable Mutex mutex_;
  CondVar changed_;
  bool connected_ KVC_GUARDED_BY(mutex_) = true;
  mutable int missing_for_ KVC_GUARDED_BY(mutex_) = 0;
  bool takes_orders_ KVC_GUARDED_BY(mutex_) = true;
  Answer answer_ KVC_GUARDED_BY(mutex_);
  std::vector<StageOrder> orders_ KVC_GUARDED_BY(mutex_);
  std::vector<HoldRelease> releases_ KVC_GUARDED_BY(mutex_);
};

/// A leader and its ranks; each stages all that it is asked for, at once, until told otherwise.
class StageFixture {
 public:
  static constexpr Duration kHoldFor = std::chrono::seconds(10);

  explicit StageFixture(std::uint32_t ranks, std::shared_ptr<testlib::SimClock> with_clock =
                                                 std::make_shared<testlib::SimClock>())
      : clock(std::move(with_clock)),
        leader(std::make_shared<StageLeader>(
            StageLeaderOptions{.world_size = ranks, .max_holds = 64, .hold_for = kHoldFor},
            clock)) {
    std::vector<std::shared_ptr<StageLink>> shared;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      links.push_back(std::make_shared<HandLink>());
      shared.push_back(links.back());
      stages(rank, 1u << 20);
    }
    leader->set_links(std::move(shared));
  }

  void report(std::uint32_t rank, const StageProgress& progress) {
    leader->on_progress(rank, progress);
  }

  /// From now on `rank` stages at most so many blocks of an order, at once, and is done.
  void stages(std::uint32_t rank, std::uint32_t at_most, StageEnd end = StageEnd::kMissing) {
    links[rank]->answer_with([this, rank, at_most, end](const StageOrder& order) {
      const auto all = static_cast<std::uint32_t>(order.blocks.size());
      const bool cut = at_most < all;
      report(rank, {order.hold, cut ? at_most : all, true, cut ? end : StageEnd::kAll});
    });
  }
  /// From now on `rank` reports so many blocks and goes on; `takes` passes.
  void works_on(std::uint32_t rank, std::uint32_t staged, Duration takes) {
    links[rank]->answer_with([this, rank, staged, takes](const StageOrder& order) {
      clock->advance(takes);
      report(rank, {order.hold, staged, false, StageEnd::kAll});
    });
  }

  std::size_t orders() const { return links[0]->orders().size(); }

  std::shared_ptr<testlib::SimClock> clock;
  std::shared_ptr<StageLeader> leader;
  std::vector<std::shared_ptr<HandLink>> links;
};

}  // namespace kvc
