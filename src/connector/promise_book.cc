#include "connector/promise_book.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/planted.h"

namespace kvc {
namespace {

/// A rank may be so many plans behind the leader, at most, when it comes back from a lost
/// connection: an engine prepares one step while it runs another. Kept too long, a hold costs
/// nothing, since its load ends it.
constexpr std::uint64_t kPlansUntilLoaded = 4;

}  // namespace

HoldId PromiseBook::begin(std::uint32_t blocks) {
  // Ends that no plan has told count too: without plans there must be no end to the list of them.
  if (blocks == 0 || holds_.size() + unplanned_.size() >= options_.max_holds) return 0;
  Hold hold;
  hold.blocks = blocks;
  hold.ranks.resize(options_.ranks);
  const HoldId id = newest_ + 1;
  const auto place = to_come_.emplace(id, 0).first;
  try {
    holds_.emplace(id, std::move(hold));
  } catch (const std::bad_alloc&) {
    to_come_.erase(place);
    throw;
  }
  newest_ = id;
  return id;
}

void PromiseBook::on_progress(std::uint32_t rank, const StageProgress& progress) {
  Hold* hold = find(progress.hold);
  if (hold == nullptr || hold->state != State::kStaging || rank >= hold->ranks.size()) return;
  Rank& known = hold->ranks[rank];
  if (known.done) return;
  known.staged = std::max(known.staged, std::min(progress.staged, hold->blocks));
  known.done = progress.done;
  if (progress.done) known.end = progress.end;
}

void PromiseBook::on_rank_lost(std::uint32_t rank) {
  for (auto& [id, hold] : holds_) {
    if (hold.state != State::kStaging || rank >= hold.ranks.size()) continue;
    hold.ranks[rank] = {.staged = 0, .done = true, .end = StageEnd::kUnavailable};
  }
}

StagedPrefix PromiseBook::staged_by_all(const Hold& hold) const {
  StagedPrefix staged{.blocks = hold.blocks, .end = StageEnd::kAll, .rank = 0};
  bool certain = true;
  for (std::uint32_t r = 0; r < hold.ranks.size(); ++r) {
    const Rank& rank = hold.ranks[r];
    if (rank.staged >= hold.blocks) continue;
    // Of ranks that have equally few, one that is done says more than one that is late.
    const bool says_more = rank.staged == staged.blocks && rank.done && !certain;
    if (rank.staged >= staged.blocks && !says_more) continue;
    // A rank that is done with less than all and gives no reason has lost what it counted.
    const StageEnd why = rank.end == StageEnd::kAll ? StageEnd::kUnavailable : rank.end;
    staged = {.blocks = rank.staged, .end = rank.done ? why : StageEnd::kLate, .rank = r};
    certain = rank.done;
  }
  return staged;
}

bool PromiseBook::is_settled(HoldId id) const {
  const Hold* hold = find(id);
  if (hold == nullptr || hold->state != State::kStaging) return true;
  std::uint32_t most = hold->blocks;
  for (const Rank& rank : hold->ranks) {
    if (rank.done) most = std::min(most, rank.staged);
  }
  return std::ranges::all_of(hold->ranks, [&](const Rank& rank) { return rank.staged >= most; });
}

StagedPrefix PromiseBook::close(HoldId id, Instant now) {
  Hold* hold = find(id);
  if (hold == nullptr || hold->state != State::kStaging) {
    return {.blocks = 0, .end = StageEnd::kUnavailable, .rank = 0};
  }
  StagedPrefix staged = staged_by_all(*hold);
  if (KVC_PLANTED("promise_unverified")) staged.blocks = hold->blocks;
  const std::uint32_t ordered = hold->blocks;
  hold->state = State::kPromised;
  hold->blocks = staged.blocks;
  hold->ranks.clear();
  hold->expires_at = end_of_a_hold(now);
  next_expiry_ = std::min(next_expiry_, hold->expires_at);
  if (staged.blocks < ordered) tell({id, staged.blocks});
  if (staged.blocks == 0) holds_.erase(id);
  return staged;
}

Instant PromiseBook::end_of_a_hold(Instant now) const {
  return options_.hold_for > Instant::max() - now ? Instant::max() : now + options_.hold_for;
}

bool PromiseBook::renew(HoldId id, Instant now) {
  Hold* hold = find(id);
  if (hold == nullptr || hold->state != State::kPromised) return false;
  hold->expires_at = end_of_a_hold(now);
  return true;
}

bool PromiseBook::allocated(HoldId id) {
  Hold* hold = find(id);
  if (hold == nullptr || hold->state == State::kStaging) return false;
  hold->state = State::kFirm;
  return true;
}

void PromiseBook::planned(HoldId id) {
  const auto found = holds_.find(id);
  if (found == holds_.end() || found->second.state == State::kStaging) return;
  if (KVC_PLANTED("release_before_copy")) tell({id, 0});
  loading_.push_back({id, plans_ + 1});
  to_come_.erase(id);
  holds_.erase(found);
}

void PromiseBook::release(HoldId id, std::uint32_t from_block) {
  Hold* hold = find(id);
  if (hold == nullptr || from_block >= hold->blocks) return;
  if (from_block == 0) {
    tell({id, 0});
    holds_.erase(id);
    return;
  }
  // What a rank has staged of an open hold may not reach so far; its promise is cut when it closes.
  if (hold->state == State::kStaging) return;
  hold->blocks = from_block;
  tell({id, from_block});
}

std::size_t PromiseBook::expire(Instant now) {
  std::size_t expired = 0;
  if (now < next_expiry_) return expired;
  next_expiry_ = Instant::max();
  for (auto at = holds_.begin(); at != holds_.end();) {
    const Hold& hold = at->second;
    const bool may = hold.state == State::kPromised ||
                     (KVC_PLANTED("expiry_after_allocation") && hold.state == State::kFirm);
    if (!may || now < hold.expires_at) {
      if (may) next_expiry_ = std::min(next_expiry_, hold.expires_at);
      ++at;
      continue;
    }
    tell({at->first, 0});
    at = holds_.erase(at);
    ++expired;
  }
  return expired;
}

std::vector<HoldRelease> PromiseBook::take_releases() { return std::exchange(unsent_, {}); }

PromiseBook::PlanEnds PromiseBook::take_plan() {
  const std::uint64_t plan = plans_ + 1;
  PlanEnds ends;
  ends.released.reserve(unplanned_.size() + loading_.size());
  ends.done.reserve(loading_.size());
  if (lists_holds(plan)) ends.live = {.live = not_loaded(), .newest = newest_};
  // From here on nothing needs memory: what this plan does not tell, no other one would.
  plans_ = plan;
  while (!unplanned_.empty()) {
    auto told = unplanned_.extract(unplanned_.begin());
    ends.released.push_back({told.key(), told.mapped()});
    if (find(told.key()) != nullptr) to_come_.insert(std::move(told));
  }
  while (!loading_.empty() && plan - loading_.front().plan > kPlansUntilLoaded) {
    // By now the load is done, or its plan never reached the ranks; then this one ends the hold.
    ends.released.push_back({loading_.front().hold, 0});
    loading_.pop_front();
  }
  for (const Loading& loading : loading_) {
    if (loading.plan == plan) ends.done.push_back(loading.hold);
  }
  return ends;
}

bool PromiseBook::lists_holds(std::uint64_t plan) const {
  return newest_ != options_.newest_before && plan % options_.plans_per_list == 0 &&
         !KVC_PLANTED("plan_without_live_holds");
}

/// With those whose load is in the next plan.
std::vector<HoldId> PromiseBook::not_loaded() const {
  std::vector<HoldId> holds;
  holds.reserve(holds_.size() + loading_.size());
  for (const auto& [id, hold] : holds_) holds.push_back(id);
  for (const Loading& loading : loading_) {
    if (loading.plan > plans_) holds.push_back(loading.hold);
  }
  return holds;
}

std::vector<HoldId> PromiseBook::live() const {
  std::vector<HoldId> holds;
  holds.reserve(holds_.size() + loading_.size());
  for (const auto& [id, hold] : holds_) holds.push_back(id);
  for (const Loading& loading : loading_) holds.push_back(loading.hold);
  return holds;
}

PromiseBook::Hold* PromiseBook::find(HoldId id) {
  const auto found = holds_.find(id);
  return found == holds_.end() ? nullptr : &found->second;
}

const PromiseBook::Hold* PromiseBook::find(HoldId id) const {
  const auto found = holds_.find(id);
  return found == holds_.end() ? nullptr : &found->second;
}

void PromiseBook::tell(HoldRelease release) noexcept {
  try {
    unsent_.push_back(release);
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): the next plan tells it.
  }
  if (const auto known = unplanned_.find(release.hold); known != unplanned_.end()) {
    known->second = std::min(known->second, release.from_block);
    return;
  }
  auto told = to_come_.extract(release.hold);
  told.mapped() = release.from_block;
  unplanned_.insert(std::move(told));
}

}  // namespace kvc
