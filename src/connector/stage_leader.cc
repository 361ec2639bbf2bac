#include "kvc/stage_leader.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/mutex.h"
#include "connector/promise_book.h"

namespace kvc {

struct StageLeader::Impl {
  using Links = std::vector<std::shared_ptr<StageLink>>;

  Impl(const StageLeaderOptions& with, std::shared_ptr<const Clock> time)
      : options(with),
        clock(std::move(time)),
        links(std::make_shared<const Links>()),
        book({.ranks = with.world_size,
              .max_holds = with.max_holds,
              .newest_before = with.newest_before,
              .hold_for = with.hold_for}) {}

  bool is_reachable(const Links& to, std::uint32_t rank) const;
  /// The first rank that cannot be reached; their number if all can.
  std::uint32_t first_unreachable(const Links& to) const;
  std::shared_ptr<const Links> current_links() const KVC_EXCLUDES(mutex);
  /// Ends promises whose time is over, and sends what there is to release. Without memory the next
  /// plan tells what a link has not.
  void send_releases() noexcept KVC_EXCLUDES(mutex);
  void order(HoldId hold, std::span<const BlockHash> blocks, const Links& from) KVC_EXCLUDES(mutex);
  StagedBlocks close(HoldId hold, Deadline deadline) KVC_EXCLUDES(mutex);
  void release(HoldId hold, std::uint32_t from_block) noexcept KVC_EXCLUDES(mutex);

  const StageLeaderOptions options;
  const std::shared_ptr<const Clock> clock;

  mutable Mutex mutex;
  CondVar changed;
  std::shared_ptr<const Links> links KVC_GUARDED_BY(mutex);
  PromiseBook book KVC_GUARDED_BY(mutex);
  std::string rendezvous KVC_GUARDED_BY(mutex);
};

bool StageLeader::Impl::is_reachable(const Links& to, std::uint32_t rank) const {
  return to.size() == options.world_size && to[rank] != nullptr && to[rank]->connected();
}

std::uint32_t StageLeader::Impl::first_unreachable(const Links& to) const {
  std::uint32_t rank = 0;
  while (rank < options.world_size && is_reachable(to, rank)) ++rank;
  return rank;
}

std::shared_ptr<const StageLeader::Impl::Links> StageLeader::Impl::current_links() const {
  const MutexLock lock(mutex);
  return links;
}

void StageLeader::Impl::send_releases() noexcept {
  std::vector<HoldRelease> releases;
  std::shared_ptr<const Links> to;
  {
    const MutexLock lock(mutex);
    (void)book.expire(clock->now());
    releases = book.take_releases();
    to = links;
  }
  for (const HoldRelease& release : releases) {
    for (const std::shared_ptr<StageLink>& link : *to) {
      if (link != nullptr) link->release(release);
    }
  }
}

void StageLeader::Impl::order(HoldId hold, std::span<const BlockHash> blocks, const Links& from) {
  for (std::uint32_t rank = 0; rank < from.size(); ++rank) {
    const bool taken = from[rank]->stage({.hold = hold,
                                          .blocks = {blocks.begin(), blocks.end()},
                                          .fetch_budget = options.fetch_budget});
    if (taken) continue;
    // Its connection broke before the hold was known, which is told by nobody else. It may be
    // there again by now.
    const MutexLock lock(mutex);
    book.on_progress(rank,
                     {.hold = hold, .staged = 0, .done = true, .end = StageEnd::kUnavailable});
  }
}

StagedBlocks StageLeader::Impl::close(HoldId hold, Deadline deadline) {
  const MutexLock lock(mutex);
  while (!book.is_settled(hold) && !deadline.passed(*clock)) {
    changed.wait_until(mutex, deadline.at);
  }
  const StagedPrefix staged = book.close(hold, clock->now());
  return {.hold = staged.blocks == 0 ? 0 : hold,
          .blocks = staged.blocks,
          .end = staged.end,
          .rank = staged.rank};
}

void StageLeader::Impl::release(HoldId hold, std::uint32_t from_block) noexcept {
  {
    const MutexLock lock(mutex);
    book.release(hold, from_block);
  }
  send_releases();
}

StageLeader::StageLeader(const StageLeaderOptions& options, std::shared_ptr<const Clock> clock)
    : impl_(std::make_unique<Impl>(options, std::move(clock))) {}

StageLeader::~StageLeader() {
  try {
    for (const HoldId hold : live_holds().live) impl_->release(hold, 0);
  } catch (const std::bad_alloc&) {
    return;  // The next leader ends them.
  }
}

std::uint32_t StageLeader::world_size() const { return impl_->options.world_size; }

void StageLeader::set_links(std::vector<std::shared_ptr<StageLink>> links) {
  auto shared = std::make_shared<const Impl::Links>(std::move(links));
  const MutexLock lock(impl_->mutex);
  impl_->links.swap(shared);
}

void StageLeader::set_rendezvous(std::string rendezvous) {
  const MutexLock lock(impl_->mutex);
  impl_->rendezvous = std::move(rendezvous);
}

std::uint32_t StageLeader::awaited() const {
  const std::shared_ptr<const Impl::Links> links = impl_->current_links();
  std::uint32_t awaited = 0;
  for (std::uint32_t rank = 0; rank < impl_->options.world_size; ++rank) {
    if (!impl_->is_reachable(*links, rank)) ++awaited;
  }
  return awaited;
}

StagedBlocks StageLeader::stage(std::span<const BlockHash> blocks, Deadline deadline) {
  Impl& impl = *impl_;
  impl.send_releases();
  if (blocks.empty()) return {};
  blocks = blocks.first(std::min(blocks.size(), kMaxOrderBlocks));
  const std::shared_ptr<const Impl::Links> links = impl.current_links();
  const std::uint32_t unreachable = impl.first_unreachable(*links);
  if (unreachable < impl.options.world_size) {
    return {.hold = 0, .blocks = 0, .end = StageEnd::kUnavailable, .rank = unreachable};
  }
  HoldId hold = 0;
  {
    const MutexLock lock(impl.mutex);
    hold = impl.book.begin(static_cast<std::uint32_t>(blocks.size()));
  }
  if (hold == 0) return {.hold = 0, .blocks = 0, .end = StageEnd::kTooMany, .rank = 0};
  try {
    impl.order(hold, blocks, *links);
    const StagedBlocks staged = impl.close(hold, deadline);
    impl.send_releases();
    return staged;
  } catch (...) {
    impl.release(hold, 0);
    throw;
  }
}

bool StageLeader::renew(HoldId hold) {
  const MutexLock lock(impl_->mutex);
  return impl_->book.renew(hold, impl_->clock->now());
}

bool StageLeader::allocated(HoldId hold) {
  const MutexLock lock(impl_->mutex);
  return impl_->book.allocated(hold);
}

void StageLeader::expire() noexcept { impl_->send_releases(); }

void StageLeader::release(HoldId hold, std::uint32_t from_block) noexcept {
  impl_->release(hold, from_block);
}

void StageLeader::plan(std::span<const HoldId> loaded, StepPlan* plan) {
  Impl& impl = *impl_;
  impl.send_releases();
  const bool all_connected = connected();
  const MutexLock lock(impl.mutex);
  if (!all_connected) plan->rendezvous = impl.rendezvous;
  for (const HoldId hold : loaded) impl.book.planned(hold);
  PromiseBook::PlanEnds ends = impl.book.take_plan();
  // It is told now, or never: nothing that may fail comes after this.
  plan->released = std::move(ends.released);
  plan->done_holds = std::move(ends.done);
  plan->live_holds = std::move(ends.live);
}

LiveHolds StageLeader::live_holds() const {
  const MutexLock lock(impl_->mutex);
  return {.live = impl_->book.live(), .newest = impl_->book.newest()};
}

std::size_t StageLeader::holds() const {
  const MutexLock lock(impl_->mutex);
  return impl_->book.size();
}

void StageLeader::on_progress(std::uint32_t rank, const StageProgress& progress) {
  const MutexLock lock(impl_->mutex);
  impl_->book.on_progress(rank, progress);
  impl_->changed.notify_all();
}

void StageLeader::on_rank_lost(std::uint32_t rank) {
  const MutexLock lock(impl_->mutex);
  impl_->book.on_rank_lost(rank);
  impl_->changed.notify_all();
}

}  // namespace kvc
