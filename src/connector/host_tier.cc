#include "connector/host_tier.h"

#include <algorithm>
#include <limits>
#include <new>
#include <utility>

#include "base/planted.h"

namespace kvc {
namespace {

constexpr std::uint64_t kAnyUse = std::numeric_limits<std::uint64_t>::max();

StageEnd end_of(FetchEnd end) {
  switch (end) {
    case FetchEnd::kMissing:
      return StageEnd::kMissing;
    case FetchEnd::kRejected:
      return StageEnd::kRejected;
    case FetchEnd::kVerified:  // Without a page.
    case FetchEnd::kUnavailable:
      break;
  }
  return StageEnd::kUnavailable;
}

}  // namespace

HostTier::HostTier(std::shared_ptr<StagingPool> pages, HostTierOptions options)
    : pages_(std::move(pages)), options_(options) {}

// What the leader says --------------------------------------------------------------------------

void HostTier::stage(StageOrder order, Instant give_up_at) {
  if (order.hold == 0 || is_settled(order.hold) || by_hold_.contains(order.hold)) return;
  if (const auto at = releases_.find(order.hold); at != releases_.end()) {
    if (at->second == 0) return;
    if (order.blocks.size() > at->second) order.blocks.resize(at->second);
  }
  if (closed_ || by_hold_.size() >= options_.holds_max) {
    remember_release({.hold = order.hold, .from_block = 0});
    refused_.push_back({.hold = order.hold,
                        .staged = 0,
                        .done = true,
                        .end = closed_ ? StageEnd::kUnavailable : StageEnd::kNoRoom});
    return;
  }
  const HoldId hold = order.hold;
  const Sequence sequence = ++last_sequence_;
  Order& begun = orders_[sequence];
  begun.hold = hold;
  begun.blocks = std::move(order.blocks);
  begun.give_up_at = give_up_at;
  begin(sequence, begun);
  awaited_.erase(hold);
}

/// Of the order all is set but what follows from the state of the tier.
void HostTier::begin(Sequence sequence, Order& order) {
  try {
    prepare(sequence, order);
  } catch (const std::bad_alloc&) {
    take_back(sequence);
    throw;
  }
  if (order.is_loose()) return;
  order.arrived = ++uses_;
  for (std::size_t i = 0; i < order.blocks.size(); ++i) {
    const auto at = entries_.find(order.blocks[i]);
    if (at == entries_.end()) continue;
    pin(at->second);
    order.places[i] = Place::kHere;
  }
  proceed(sequence, order);
}

/// All the memory that it takes until it ends, but what its fetches take.
void HostTier::prepare(Sequence sequence, Order& order) {
  order.places.assign(order.blocks.size(), Place::kWanted);
  order.limit = order.blocks.size();
  order.news.assign(1, sequence);
  (order.is_loose() ? wanting_loose_ : wanting_).insert(sequence);
  if (!order.is_loose()) by_hold_[order.hold] = sequence;
}

/// Of an order that has not begun.
void HostTier::take_back(Sequence sequence) noexcept {
  const auto at = orders_.find(sequence);
  if (!at->second.is_loose()) by_hold_.erase(at->second.hold);
  wanting_.erase(sequence);
  wanting_loose_.erase(sequence);
  orders_.erase(at);
}

void HostTier::release(const HoldRelease& release) {
  const auto at = by_hold_.find(release.hold);
  if (at == by_hold_.end()) return remember_release(release);
  const Sequence sequence = at->second;
  Order& order = orders_.at(sequence);
  const std::size_t from = release.from_block;
  if (from > 0 && from >= order.limit) return;
  go_on_loose_if_possible(order, from);
  if (from == 0) return end_hold(sequence);
  order.is_quiet = order.is_quiet || from <= order.staged;
  cut(sequence, order, from);
  proceed(sequence, order);
}

void HostTier::keep_only(std::span<const HoldId> live, HoldId newest) {
  std::set<HoldId> kept(live.begin(), live.end());
  std::vector<HoldId> over;
  for (const auto& [hold, sequence] : by_hold_) {
    if (hold <= newest && !kept.contains(hold)) over.push_back(hold);
  }
  // One that was ordered while the leader drew up the list comes after it.
  std::erase_if(kept, [&](HoldId hold) {
    return hold > newest || is_settled(hold) || by_hold_.contains(hold);
  });
  // That of a plan may come after a newer one of a connection.
  kept.insert(awaited_.upper_bound(newest), awaited_.end());
  for (const HoldId hold : over) release({.hold = hold, .from_block = 0});
  awaited_ = std::move(kept);
  settled_up_to_ = std::max(settled_up_to_, newest);
}

std::vector<StageProgress> HostTier::take_reports() {
  refused_.reserve(refused_.size() + news_.size());
  std::vector<StageProgress> reports = std::exchange(refused_, {});
  for (auto next = news_.begin(); next != news_.end();) {
    const auto news = next++;
    const auto at = orders_.find(*news);
    if (at == orders_.end()) {
      news_.erase(news);
      continue;
    }
    Order& order = at->second;
    if (!KVC_PLANTED("report_twice")) order.news.splice(order.news.end(), news_, news);
    if (order.is_quiet) continue;
    reports.push_back({.hold = order.hold,
                       .staged = static_cast<std::uint32_t>(order.staged),
                       .done = order.is_done,
                       .end = order.end});
  }
  return reports;
}

// Orders ----------------------------------------------------------------------------------------

void HostTier::end_hold(Sequence sequence) {
  const auto at = orders_.find(sequence);
  cut(sequence, at->second, 0);
  const HoldId hold = at->second.hold;
  by_hold_.erase(hold);
  orders_.erase(at);
  remember_release({.hold = hold, .from_block = 0});
}

void HostTier::go_on_loose_if_possible(const Order& order, std::size_t from) noexcept {
  try {
    go_on_loose(order, from);
  } catch (const std::bad_alloc&) {
    return;  // The next request fetches it.
  }
}

/// What a hold has not got of its blocks from `from` on is fetched all the same, for the next
/// request with that prefix.
void HostTier::go_on_loose(const Order& order, std::size_t from) {
  std::size_t first = from;
  while (first < order.limit && order.places[first] == Place::kHere) ++first;
  if (first >= order.limit || options_.loose_max == 0) return;
  const auto at = static_cast<std::ptrdiff_t>(first);
  const auto end = static_cast<std::ptrdiff_t>(order.limit);
  Order loose;
  loose.blocks.assign(order.blocks.begin() + at, order.blocks.begin() + end);
  loose.give_up_at = order.give_up_at;
  loose.arrived = order.arrived;
  if (wanting_loose_.size() >= options_.loose_max) end_loose(*wanting_loose_.begin());
  const Sequence sequence = ++last_sequence_;
  begin(sequence, orders_[sequence] = std::move(loose));
}

void HostTier::end_loose(Sequence sequence) {
  wanting_loose_.erase(sequence);
  orders_.erase(sequence);
}

/// Block `block` of an order will not come, and so those after it are of no use. The order may be
/// gone afterwards.
void HostTier::fail(Sequence sequence, std::size_t block, StageEnd end) {
  Order& order = orders_.at(sequence);
  if (block >= order.limit) return;
  if (order.is_loose()) return end_loose(sequence);
  order.end = end;
  cut(sequence, order, block);
  proceed(sequence, order);
}

/// Lets go of what a hold has from `limit` on.
void HostTier::cut(Sequence sequence, Order& order, std::size_t limit) {
  // The first block is used last: it is of use without the others, not they without it.
  for (std::size_t i = order.limit; i > limit; --i) {
    if (order.places[i - 1] == Place::kHere) unpin(order.blocks[i - 1]);
  }
  order.limit = limit;
  order.next = std::min(order.next, limit);
  order.staged = std::min(order.staged, limit);
  if (order.next == limit) wanting_.erase(sequence);
}

/// Draws the conclusions from what a hold has now.
void HostTier::proceed(Sequence sequence, Order& order) {
  const std::size_t before = order.staged;
  while (order.staged < order.limit && order.places[order.staged] == Place::kHere) ++order.staged;
  order.next = std::max(order.next, order.staged);
  if (order.next < order.limit) {
    wanting_.insert(sequence);
  } else {
    wanting_.erase(sequence);
  }
  const bool all = order.staged == order.limit && !order.is_done;
  if (all) {
    order.is_done = true;
    if (order.end != StageEnd::kAll) ++ended_by_[static_cast<std::size_t>(order.end)];
  }
  if (all || order.staged != before) note_news(order);
}

void HostTier::note_news(Order& order) { news_.splice(news_.end(), order.news); }

void HostTier::remember_release(const HoldRelease& release) {
  if (release.hold == 0 || is_settled(release.hold)) return;
  if (release.from_block == 0 && awaited_.erase(release.hold) > 0) return;
  if (const auto known = releases_.find(release.hold); known != releases_.end()) {
    known->second = std::min(known->second, release.from_block);
    return;
  }
  try {
    releases_.try_emplace(release.hold, release.from_block);
    releases_by_age_.push_back(release.hold);
  } catch (const std::bad_alloc&) {
    // An order that comes later is held until a plan ends it.
    releases_.erase(release.hold);
    return;
  }
  if (releases_by_age_.size() <= options_.releases_max) return;
  releases_.erase(releases_by_age_.front());
  releases_by_age_.pop_front();
}

// Fetches ---------------------------------------------------------------------------------------

std::vector<HostTier::Fetch> HostTier::begin_fetches(std::size_t max, Instant now) {
  return begin_of(wanting_, max, now);
}

std::vector<HostTier::Fetch> HostTier::begin_loose_fetches(std::size_t max, Instant now) {
  return begin_of(wanting_loose_, max, now);
}

std::vector<HostTier::Fetch> HostTier::begin_of(std::set<Sequence>& wanting, std::size_t max,
                                                Instant now) {
  std::vector<Fetch> fetches;
  all_idle_leased_ = false;
  fetches.reserve(count_wanted(wanting, max));
  for (auto at = wanting.begin(); at != wanting.end() && fetches.size() < max;) {
    const Sequence sequence = *at++;  // It may leave the set below.
    Order& order = orders_.at(sequence);
    if (now >= order.give_up_at) {
      fail(sequence, order.next, StageEnd::kUnavailable);
      continue;
    }
    bool goes_on = true;
    while (goes_on && fetches.size() < max && order.next < order.limit) {
      goes_on = begin_next_if_possible(sequence, order, fetches);
    }
    if (!goes_on) continue;  // It has failed, and may be gone.
    if (!order.is_loose()) {
      proceed(sequence, order);
    } else if (order.next == order.limit) {
      end_loose(sequence);
    }
  }
  return fetches;
}

bool HostTier::begin_next_if_possible(Sequence sequence, Order& order,
                                      std::vector<Fetch>& fetches) {
  try {
    return begin_next(sequence, order, fetches);
  } catch (const std::bad_alloc&) {
    fail(sequence, order.next, StageEnd::kNoRoom);
    return false;
  }
}

/// False if there is no page for it. REQUIRES: `fetches` has room for one more.
bool HostTier::begin_next(Sequence sequence, Order& order, std::vector<Fetch>& fetches) {
  const std::size_t i = order.next;
  const BlockHash& block = order.blocks[i];
  if (order.places[i] == Place::kHere) {
    ++order.next;
    return true;
  }
  if (const auto here = entries_.find(block); here != entries_.end()) {
    order.places[i] = Place::kHere;
    if (!order.is_loose()) pin(here->second);
    ++order.next;
    return true;
  }
  const Waiter waiter{.order = sequence, .block = i};
  if (const auto flight = flights_.find(block); flight != flights_.end()) {
    flight->second.push_back(waiter);
  } else {
    std::vector<Waiter> waiters(1, waiter);
    StagingLease page = take_page_for(sequence, order);
    if (page == nullptr) {
      fail(sequence, i, StageEnd::kNoRoom);
      return false;
    }
    flights_.try_emplace(block, std::move(waiters));
    fetches.push_back({.block = block, .page = std::move(page), .give_up_at = order.give_up_at});
  }
  order.places[i] = Place::kInFlight;
  ++order.next;
  return true;
}

/// What the order holds behind the block it needs a page for is of use only with that block: it
/// makes room, from its end on.
StagingLease HostTier::take_page_for(Sequence sequence, Order& order) {
  if (order.is_loose()) return take_page(StagingPool::Use::kLoad, order.arrived);
  StagingLease page = take_page(StagingPool::Use::kLoad, kAnyUse);
  for (std::size_t last = order.limit; page == nullptr && last > order.next + 1;) {
    if (order.places[--last] != Place::kHere) continue;
    const auto at = entries_.find(order.blocks[last]);
    const bool makes_room = at->second.pins == 1 && at->second.page.use_count() == 1;
    order.end = StageEnd::kNoRoom;
    cut(sequence, order, last);
    if (makes_room) discard(at);
    // That is all there was: to look for it would look through all that others use, each time.
    all_idle_leased_ = true;
    if (makes_room) page = take_page(StagingPool::Use::kLoad, kAnyUse);
  }
  return page;
}

void HostTier::fetched(const BlockHash& block, FetchEnd end, StagingLease page) {
  const auto flight = flights_.find(block);
  if (flight == flights_.end()) return;
  const std::vector<Waiter> waiters = std::move(flight->second);
  flights_.erase(flight);
  const bool verified = end == FetchEnd::kVerified ||
                        (end == FetchEnd::kRejected && KVC_PLANTED("promise_unverified"));
  try {
    if (verified && page != nullptr && !contains(block)) insert(block, std::move(page));
  } catch (const std::bad_alloc&) {
    end = FetchEnd::kUnavailable;
  }
  if (contains(block)) return serve(block, waiters);
  for (const Waiter& waiter : waiters) {
    if (orders_.contains(waiter.order)) fail(waiter.order, waiter.block, end_of(end));
  }
}

/// The block is resident: whoever waits for it has it.
void HostTier::serve(const BlockHash& block, const std::vector<Waiter>& waiters) {
  Entry& entry = entries_.at(block);
  for (const Waiter& waiter : waiters) {
    const auto at = orders_.find(waiter.order);
    if (at == orders_.end()) continue;
    Order& order = at->second;
    if (waiter.block >= order.limit) continue;
    order.places[waiter.block] = Place::kHere;
    if (order.is_loose()) continue;
    pin(entry);
    proceed(waiter.order, order);
  }
}

void HostTier::give_up_wanted() {
  while (!wanting_.empty()) {
    const Sequence sequence = *wanting_.begin();
    fail(sequence, orders_.at(sequence).next, StageEnd::kUnavailable);
  }
  while (!wanting_loose_.empty()) end_loose(*wanting_loose_.begin());
}

std::size_t HostTier::count_wanted(const std::set<Sequence>& wanting, std::size_t at_most) const {
  std::size_t count = 0;
  for (const Sequence sequence : wanting) {
    if (count >= at_most) break;
    const Order& order = orders_.at(sequence);
    count += order.limit - order.next;
  }
  return std::min(count, at_most);
}

// Pages -----------------------------------------------------------------------------------------

StagingLease HostTier::take_page(StagingPool::Use use, std::uint64_t used_before) {
  while (pages_->may_borrow(use)) {
    StagingLease page;
    if (pages_->available(StagingPool::Use::kLoad) > options_.spare_pages)
      page = pages_->borrow(use);
    if (page != nullptr) return page;
    if (!idle_.empty() && KVC_PLANTED("reuse_page_in_transfer")) {
      // Whoever else has a lease goes on reading it, or writing to it.
      const auto oldest = entries_.find(idle_.front());
      page = std::move(oldest->second.page);
      idle_.pop_front();
      entries_.erase(oldest);
      return page;
    }
    // A page that becomes free may be borrowed by somebody else at once.
    if (!evict(used_before)) return nullptr;
  }
  return nullptr;
}

StagingLease HostTier::borrow_for_save() {
  // A save that ends lets go of a page. Until one does, all that were leased are taken to be so
  // still: while a store does not keep up, every piece of a step asks.
  const StagingPool::Claims claims = pages_->claims();
  if (claims.open == 0 || claims.ended != claims_ended_) all_idle_leased_ = false;
  claims_ended_ = claims.ended;
  return take_page(StagingPool::Use::kSave, kAnyUse);
}

StagingLease HostTier::find(const BlockHash& block) {
  const auto at = entries_.find(block);
  if (at == entries_.end()) return nullptr;
  Entry& entry = at->second;
  if (entry.pins == 0) touch(entry);
  return entry.page;
}

std::size_t HostTier::resident_prefix(std::span<const BlockHash> blocks) const {
  std::size_t count = 0;
  while (count < blocks.size() && contains(blocks[count])) ++count;
  return count;
}

void HostTier::put(const BlockHash& block, StagingLease page) {
  if (closed_ || page == nullptr || find(block) != nullptr) return;
  insert(block, std::move(page));
  const auto flight = flights_.find(block);
  if (flight != flights_.end()) serve(block, std::exchange(flight->second, {}));
}

void HostTier::insert(const BlockHash& block, StagingLease page) {
  std::list<BlockHash> place(1, block);
  Entry& entry = entries_[block];
  entry.page = std::move(page);
  entry.used = ++uses_;
  entry.at = place.begin();
  idle_.splice(idle_.end(), place);
  all_idle_leased_ = false;
}

/// Of an idle entry: it was used now.
void HostTier::touch(Entry& entry) {
  entry.used = ++uses_;
  idle_.splice(idle_.end(), idle_, entry.at);
}

void HostTier::pin(Entry& entry) {
  if (entry.pins++ == 0) held_.splice(held_.end(), idle_, entry.at);
}

void HostTier::unpin(const BlockHash& block) {
  Entry& entry = entries_.at(block);
  if (--entry.pins > 0) return;
  entry.used = ++uses_;
  idle_.splice(idle_.end(), held_, entry.at);
  all_idle_leased_ = false;
}

bool HostTier::make_room() {
  all_idle_leased_ = false;
  return evict(kAnyUse);
}

bool HostTier::evict(std::uint64_t used_before) {
  if (all_idle_leased_) return false;
  for (std::size_t left = idle_.size(); left > 0; --left) {
    const auto at = entries_.find(idle_.front());
    if (at->second.used >= used_before) return false;
    if (at->second.page.use_count() > 1) {
      touch(at->second);  // A queued save, say. The next one to need a page does not meet it again.
      continue;
    }
    discard(at);
    return true;
  }
  all_idle_leased_ = true;
  return false;
}

void HostTier::discard(Entries::iterator idle) {
  idle_.erase(idle->second.at);
  entries_.erase(idle);
  ++evictions_;
}

void HostTier::close() {
  closed_ = true;
  orders_.clear();
  by_hold_.clear();
  wanting_.clear();
  wanting_loose_.clear();
  news_.clear();
  refused_.clear();
  flights_.clear();
  idle_.clear();
  held_.clear();
  entries_.clear();
}

}  // namespace kvc
