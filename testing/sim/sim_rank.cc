#include "testing/sim/sim_rank.h"

#include <algorithm>
#include <utility>

namespace kvc::sim {

SimRank::SimRank(Site& site, const SimRankOptions& options)
    : site_(site),
      options_(options),
      shards_(shards_of(options.keyspace, options.rank, site.shape)) {
  restart();
}

void SimRank::crash() {
  if (!process_.up()) return;
  if (writers_running_ > 0) site_.coverage.hit(Mark::kWriterCrashed);
  process_.crash();
  saves_.clear();
  plans_.clear();
  not_run_ = {};
  newest_heard_ = 0;
  tier_->close();
  fetch_calls_ = 0;
  loose_running_ = false;
  writers_running_ = 0;
  broken_.clear();
  done_reported_.clear();
  ordered_.clear();
}

void SimRank::restart() {
  pages_ = make_pool(options_.staging_pages, kObjectBytes, options_.save_pages);
  tier_ = std::make_unique<HostTier>(pages_, HostTierOptions{.spare_pages = options_.spare_pages});
  process_.restart();
}

void SimRank::know(const NamedBlock& block) {
  for (const auto& [hash, content] : contents_) {
    if (hash == block.hash && content == block.content) return;
  }
  contents_.emplace_back(block.hash, block.content);
}

Content SimRank::content_of(const BlockHash& hash) const {
  for (const auto& [known, content] : contents_) {
    if (known == hash) return content;
  }
  return 0;
}

// ---- staging ----

void SimRank::stage(const StageOrder& order, Tick budget) {
  if (!process_.up()) return;
  for (const BlockHash& block : order.blocks) {
    if (tier_->contains(block)) site_.coverage.hit(Mark::kServedFromTier);
  }
  ordered_.push_back(order.hold);
  newest_heard_ = std::max(newest_heard_, order.hold);
  const std::size_t flying = tier_->in_flight();
  tier_->stage(order, now() + std::chrono::microseconds(budget));
  if (flying > 0) site_.coverage.hit(Mark::kJoinedFlight);
  pump();
}

void SimRank::release(const HoldRelease& release) {
  if (!process_.up()) return;
  const auto ordered = std::ranges::find(ordered_, release.hold);
  if (ordered == ordered_.end()) site_.coverage.hit(Mark::kReleaseBeforeOrder);
  tier_->release(release);
  pump();
}

void SimRank::keep_only(const LiveHolds& holds) {
  tier_->keep_only(holds.live, holds.newest);
  pump();
}

void SimRank::welcome(std::uint32_t leader, const LiveHolds& holds) {
  if (!process_.up()) return;
  if (std::exchange(leader_, leader) != leader) end_holds();
  newest_heard_ = std::max(newest_heard_, holds.newest);
  const std::size_t before = tier_->holds();
  keep_only(holds);
  if (tier_->holds() < before) site_.coverage.hit(Mark::kHoldDroppedOnReconnect);
}

void SimRank::end_holds() {
  if (!process_.up()) return;
  const std::size_t before = tier_->holds();
  keep_only({.live = {}, .newest = std::exchange(newest_heard_, 0)});
  if (tier_->holds() < before) site_.coverage.hit(Mark::kHoldOfFormerLeaderEnded);
}

void SimRank::pump() {
  const std::uint64_t evicted = tier_->evictions();
  while (fetch_calls_ < options_.fetch_calls) {
    std::vector<HostTier::Fetch> fetches = tier_->begin_fetches(options_.fetch_batch, now());
    const bool is_loose = fetches.empty() && !loose_running_;
    if (is_loose) fetches = tier_->begin_loose_fetches(options_.fetch_batch, now());
    if (fetches.empty()) break;
    loose_running_ = loose_running_ || is_loose;
    fetch(std::move(fetches), is_loose);
  }
  if (tier_->evictions() > evicted) site_.coverage.hit(Mark::kTierEvicted);
  send_reports();
}

void SimRank::send_reports() {
  for (const StageProgress& progress : tier_->take_reports()) {
    if (progress.done) {
      if (std::ranges::find(done_reported_, progress.hold) != done_reported_.end()) {
        return site_.oracle.rule_broken("hold " + std::to_string(progress.hold) +
                                        " was reported as done twice by rank " +
                                        std::to_string(options_.rank));
      }
      done_reported_.push_back(progress.hold);
    }
    site_.journal.note(site_.loop.now(), "rank: progress", options_.rank, progress.hold,
                       progress.staged);
    if (report_) report_(progress);
  }
}

void SimRank::fetch(std::vector<HostTier::Fetch> fetches, bool is_loose) {
  ++fetch_calls_;
  std::vector<SimStore::Get> items;
  std::vector<StagingLease> leases;
  for (const HostTier::Fetch& fetch : fetches) {
    const std::span<std::byte> page = fetch.page->bytes();
    if (site_.store.transfers().in_transfer(page.data())) {
      return site_.oracle.violation(
          "a staging page is fetched into although an earlier transfer still uses it");
    }
    items.push_back({shards_.key(fetch.block, 0), page.first(kObjectBytes)});
    leases.push_back(fetch.page);
  }
  auto shared = std::make_shared<std::vector<HostTier::Fetch>>(std::move(fetches));
  site_.store.get(process_, std::move(items), hold_pages(std::move(leases)),
                  process_.in_this_life([this, shared, is_loose](std::vector<GetResult> results) {
                    if (is_loose) loose_running_ = false;
                    fetched(*shared, std::move(results));
                    shared->clear();
                    pump();
                  }));
}

void SimRank::fetched(const std::vector<HostTier::Fetch>& fetches, std::vector<GetResult> results) {
  --fetch_calls_;
  if (results.size() != fetches.size()) results.assign(fetches.size(), GetResult{});
  for (std::size_t i = 0; i < fetches.size(); ++i) {
    const BlockHash& block = fetches[i].block;
    const std::span<std::byte> object = fetches[i].page->bytes().first(kObjectBytes);
    FetchEnd end = FetchEnd::kUnavailable;
    switch (results[i].reaction) {
      case Reaction::kOk:
      case Reaction::kCallerBug: {
        const bool whole =
            results[i].reaction == Reaction::kOk && results[i].bytes == object.size();
        const Rejection rejection =
            whole ? verify_block(shards_.describe_part(block, 0), object) : Rejection::kSize;
        end = rejection == Rejection::kNone ? FetchEnd::kVerified : FetchEnd::kRejected;
        mark_rejection(site_.coverage, rejection);
        break;
      }
      case Reaction::kMiss:
      case Reaction::kStale:
        end = FetchEnd::kMissing;
        break;
      case Reaction::kBackOff:
      case Reaction::kDown:
        if (site_.store.transfers().in_transfer(object.data())) {
          site_.coverage.hit(Mark::kFetchAbandoned);
        }
        break;
    }
    if (end == FetchEnd::kVerified) {
      site_.oracle.check_loaded(content_of(block), options_.rank, 0,
                                object.subspan(kBlockHeaderBytes), "staging");
    }
    if (end != FetchEnd::kRejected) {
      tier_->fetched(block, end, end == FetchEnd::kVerified ? fetches[i].page : nullptr);
      continue;
    }
    refuse(shards_.key(block, 0), [this, block, page = fetches[i].page] {
      tier_->fetched(block, FetchEnd::kRejected, page);
      pump();
    });
  }
}

/// What fails its check is removed before anybody is told, so that the next save heals it.
void SimRank::refuse(const std::string& key, std::function<void()> then) {
  broken_.insert(key);
  const auto removed = [this, key, then](const std::vector<Reaction>& reactions) {
    const bool told = reactions.size() == 1;
    if (told && (reactions[0] == Reaction::kOk || reactions[0] == Reaction::kMiss)) {
      broken_.erase(key);
      site_.coverage.hit(Mark::kRejectedRemoved);
    }
    if (then) then();
  };
  site_.store.remove(process_, {key}, process_.in_this_life(removed));
}

// ---- a step of the engine ----

struct SimRank::Loading {
  RankPlan plan;
  std::function<void(bool)> done;
  std::vector<StagingLease> found;  // By load; null: not in the tier.
  std::size_t next = 0;
  std::uint32_t part = 0;
  bool all_right = true;
};

void SimRank::run_plan(RankPlan plan, std::function<void(bool)> done) {
  if (!process_.up()) return;
  auto loading = std::make_shared<Loading>();
  loading->plan = std::move(plan);
  loading->done = std::move(done);
  plans_.push_back(std::move(loading));
  if (plans_.size() == 1) next_plan();
}

void SimRank::next_plan() {
  if (plans_.empty()) return;
  const std::shared_ptr<Loading> loading = plans_.front();
  end_holds_of(std::exchange(not_run_, {}));
  if (!loading->plan.runs) {
    not_run_ = loading->plan;
    plans_.pop_front();
    loading->done(false);
    return next_plan();
  }
  for (const RankPlan::Load& load : loading->plan.loads) {
    loading->found.push_back(tier_->find(load.block.hash));
  }
  load_next(loading);
}

void SimRank::drop_plans() { plans_.resize(std::min<std::size_t>(plans_.size(), 1)); }

/// After the copies of the plan's loads are complete, or if they will not be made.
void SimRank::end_holds_of(const RankPlan& plan) {
  for (const HoldId hold : plan.done_holds) tier_->release({.hold = hold, .from_block = 0});
  for (const HoldRelease& told : plan.released) release(told);
  if (plan.live_holds.newest != 0) keep_only(plan.live_holds);
  pump();
}

void SimRank::load_next(const std::shared_ptr<Loading>& loading) {
  if (loading->next == loading->plan.loads.size()) return loads_done(loading);
  const RankPlan::Load& load = loading->plan.loads[loading->next];
  if (const StagingLease& page = loading->found[loading->next]; page != nullptr) {
    return copy(loading, page);
  }
  if (load.firm) {
    return site_.oracle.violation("block " + std::to_string(load.block.content) +
                                  ", which was promised, is not staged on rank " +
                                  std::to_string(options_.rank) + " when it is to be loaded");
  }
  load_directly(loading);
}

void SimRank::copy(const std::shared_ptr<Loading>& loading, const StagingLease& page) {
  site_.loop.after(
      site_.loop.some_delay(options_.copy_ticks), process_.in_this_life([this, loading, page] {
        const RankPlan::Load& load = loading->plan.loads[loading->next];
        const std::span<const std::byte> payload =
            page->bytes().subspan(kBlockHeaderBytes, kPayloadBytes);
        std::ranges::copy(payload, load.page->begin());
        site_.oracle.check_loaded(load.block.content, options_.rank, 0, *load.page, "load");
        site_.coverage.hit(Mark::kLoaded);
        ++loading->next;
        load_next(loading);
      }));
}

/// As in leased mode: from the store, part by part, and fails closed.
void SimRank::load_directly(const std::shared_ptr<Loading>& loading) {
  const RankPlan::Load& load = loading->plan.loads[loading->next];
  auto buffer = std::make_shared<std::vector<std::byte>>(kObjectBytes);
  const std::uint32_t part = loading->part;
  std::vector<SimStore::Get> items{{shards_.key(load.block.hash, part), *buffer}};
  const auto next = [this, loading, buffer, part](const std::vector<GetResult>& results) {
    const RankPlan::Load& wanted = loading->plan.loads[loading->next];
    const bool found = results.size() == 1 && results[0].reaction == Reaction::kOk;
    Rejection rejection = found ? Rejection::kSize : Rejection::kNone;
    if (found && results[0].bytes == buffer->size()) {
      rejection = verify_block(shards_.describe_part(wanted.block.hash, part), *buffer);
    }
    mark_rejection(site_.coverage, rejection);
    if (rejection != Rejection::kNone) refuse(shards_.key(wanted.block.hash, part), nullptr);
    if (found && rejection == Rejection::kNone) {
      const std::span<std::byte> place =
          std::span(*wanted.page).subspan(part * kPayloadBytes, kPayloadBytes);
      std::ranges::copy(std::span(*buffer).subspan(kBlockHeaderBytes), place.begin());
      site_.oracle.check_loaded(wanted.block.content, options_.rank, part, place, "direct load");
      site_.coverage.hit(Mark::kLoaded);
    } else {
      loading->all_right = false;
    }
    if (++loading->part == shards_.parts()) {
      loading->part = 0;
      ++loading->next;
    }
    load_next(loading);
  };
  site_.store.get(process_, std::move(items), buffer, process_.in_this_life(next));
}

void SimRank::loads_done(const std::shared_ptr<Loading>& loading) {
  loading->found.clear();
  end_holds_of(loading->plan);
  site_.loop.after(
      site_.loop.some_delay(options_.pass_ticks), process_.in_this_life([this, loading] {
        const RankPlan& plan = loading->plan;
        // The pass: what was not loaded is computed from what was. A failed load fails the step.
        if (loading->all_right) {
          for (std::size_t i = 0; i < plan.computed.size(); ++i) {
            for (std::uint32_t part = 0; part < shards_.parts(); ++part) {
              Oracle::fill(
                  plan.computed[i].content, options_.rank, part,
                  std::span(*plan.computed_pages[i]).subspan(part * kPayloadBytes, kPayloadBytes));
            }
          }
          for (const RankPlan::Save& save : plan.saves) this->save(save);
          start_writers();
        }
        plans_.pop_front();
        loading->done(loading->all_right);
        next_plan();
      }));
}

// ---- saves ----

StagingLease SimRank::page_for_save() {
  StagingLease page = tier_->borrow_for_save();
  if (page != nullptr && site_.store.transfers().in_transfer(page->bytes().data())) {
    site_.oracle.violation("a snapshot is written to a page that a transfer still uses");
  }
  return page;
}

std::optional<ShardWriter::Item> SimRank::snapshot(const RankPlan::Save& save) {
  ShardWriter::Item item{save.block, {}};
  for (std::uint32_t part = 0; part < shards_.parts(); ++part) {
    const StagingLease page = page_for_save();
    if (page == nullptr) return std::nullopt;
    const std::span<std::byte> object = page->bytes().first(kObjectBytes);
    std::ranges::copy(std::span(*save.page).subspan(part * kPayloadBytes, kPayloadBytes),
                      object.begin() + kBlockHeaderBytes);
    item.parts.push_back({object, page});
    if (shards_.parts() == 1) tier_->put(save.block.hash, without_claim(page));
  }
  return item;
}

void SimRank::save(const RankPlan::Save& save) {
  std::optional<ShardWriter::Item> item = snapshot(save);
  if (!item.has_value()) return site_.coverage.hit(Mark::kSaveDropped);
  saves_.push_back(std::move(*item));
}

void SimRank::start_writers() {
  while (!saves_.empty() && writers_running_ < options_.writers) {
    ++writers_running_;
    const auto begin = [this, items = std::exchange(saves_, {})]() mutable {
      write(std::move(items));
    };
    site_.loop.after(site_.loop.some_delay(options_.pass_ticks),
                     process_.in_this_life(std::move(begin)));
  }
}

/// What is sealed here may have been served from the tier before: a load reads no header.
void SimRank::write(std::vector<ShardWriter::Item> items) {
  for (const ShardWriter::Item& item : items) {
    for (std::uint32_t part = 0; part < item.parts.size(); ++part) {
      seal_block(shards_.describe_part(item.block.hash, part), item.parts[part].bytes);
    }
  }
  auto writer = std::make_shared<ShardWriter>(site_, process_, shards_, broken_, std::move(items));
  writer->start([this](const ShardWriter::Ending&) {
    --writers_running_;
    pump();  // Pages have become free.
    start_writers();
  });
}

std::uint64_t SimRank::state() const {
  return (std::uint64_t{process_.up()} << 60) | (tier_->resident() << 48) | (tier_->held() << 40) |
         (tier_->holds() << 32) | (tier_->in_flight() << 24) | (pages_->lent() << 16) |
         (std::uint64_t{writers_running_} << 8) | saves_.size();
}

}  // namespace kvc::sim
