#include "testing/sim/sim_leader.h"

#include <algorithm>
#include <utility>

namespace kvc::sim {
namespace {

/// From one leader's newest hold to the next one's first: the time between them, in the product.
constexpr HoldId kHoldsBetweenLeaders = 100;

}  // namespace

struct SimLeader::Query {
  std::vector<NamedBlock> blocks;
  std::vector<BlockHash> hashes;
  std::function<void(Promise)> answer;
  Tick due = 0;
  std::uint64_t deadline = 0;  // The event.
  std::size_t resident = 0;
  std::uint64_t probe_since = 0;
  std::optional<PrefixProbe> probe;
  HoldId hold = 0;
  std::vector<std::uint32_t> lives;  // Of the ranks, when they were ordered.
};

SimLeader::SimLeader(Site& site, const SimLeaderOptions& options,
                     std::vector<std::unique_ptr<SimRank>>& ranks,
                     std::vector<std::unique_ptr<SimLink>>& links)
    : site_(site),
      options_(options),
      shards_(shards_of(options.keyspace, 0, site.shape)),
      ranks_(ranks),
      links_(links) {
  for (std::uint32_t rank = 0; rank < links_.size(); ++rank) {
    links_[rank]->set_events({.lost =
                                  [this, rank] {
                                    if (!process_.up()) return;
                                    book_->on_rank_lost(rank);
                                    if (open_ != nullptr) close(open_, false);
                                  },
                              .connected = [this, rank] { connected(rank); }});
    ranks_[rank]->set_report([this, rank](const StageProgress& progress) {
      links_[rank]->to_leader([this, rank, progress] {
        if (!process_.up()) return;
        book_->on_progress(rank, progress);
        if (open_ != nullptr) close(open_, false);
      });
    });
  }
  restart();
}

void SimLeader::crash() {
  process_.crash();
  open_ = newest_ = nullptr;
  firm_.clear();
}

void SimLeader::say_goodbye() {
  firm_.clear();
  open_ = nullptr;
  for (const HoldId hold : book_->live()) book_->release(hold, 0);
  const std::vector<HoldRelease> releases = book_->take_releases();
  for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    if (!links_[rank]->connected()) continue;
    for (const HoldRelease& release : releases) ranks_[rank]->release(release);
    if (rank != 0) ranks_[rank]->end_holds();
  }
  crash();
}

void SimLeader::restart() {
  const HoldId before = book_ == nullptr ? 0 : book_->newest() + kHoldsBetweenLeaders;
  book_ = std::make_unique<PromiseBook>(
      PromiseBookOptions{.ranks = static_cast<std::uint32_t>(ranks_.size()),
                         .max_holds = 64,
                         .newest_before = before,
                         .hold_for = std::chrono::microseconds(options_.hold_for),
                         .plans_per_list = kPlansPerList});
  process_.restart();
}

void SimLeader::connected(std::uint32_t rank) {
  if (!process_.up()) return;
  links_[rank]->to_rank([this, rank, leader = process_.life(),
                         holds = LiveHolds{.live = book_->live(), .newest = book_->newest()}] {
    ranks_[rank]->welcome(leader, holds);
  });
}

std::shared_ptr<SimLeader::Query> SimLeader::begin(std::vector<NamedBlock> blocks,
                                                   std::function<void(Promise)> answer) {
  expire();
  // The job that asked before has died meanwhile.
  if (open_ != nullptr) release(std::exchange(open_, nullptr)->hold, 0);
  auto query = std::make_shared<Query>();
  query->blocks = std::move(blocks);
  for (const NamedBlock& block : query->blocks) query->hashes.push_back(block.hash);
  query->answer = std::move(answer);
  query->due = site_.loop.now() + options_.stage_deadline;
  newest_ = query;
  return query;
}

void SimLeader::order_directly(std::vector<NamedBlock> blocks,
                               std::function<void(Promise)> answer) {
  const std::shared_ptr<Query> query = begin(std::move(blocks), std::move(answer));
  order(query, query->blocks.size());
}

void SimLeader::query(std::vector<NamedBlock> blocks, std::function<void(Promise)> answer) {
  const std::shared_ptr<Query> query = begin(std::move(blocks), std::move(answer));
  if (options_.staged && !all_connected()) {  // Asks no store in vain.
    site_.coverage.hit(Mark::kPromiseUnavailable);
    return query->answer({});
  }
  if (options_.staged) query->resident = ranks_[0]->tier().resident_prefix(query->hashes);
  query->probe_since = site_.loop.steps();
  query->probe.emplace(ProbeOptions{.world_size = site_.shape.ranks,
                                    .atomic_publish = site_.shape.atomic_publish,
                                    .layers = site_.shape.by_layer ? site_.shape.parts : 0,
                                    .first_chunk_blocks = 2,
                                    .max_chunk_blocks = 4},
                       shards_.keys, std::span(query->hashes).subspan(query->resident));
  probe(query);
}

bool SimLeader::all_connected() const {
  return std::ranges::all_of(links_, [](const auto& link) { return link->connected(); });
}

void SimLeader::probe(const std::shared_ptr<Query>& query) {
  const bool timed = site_.loop.order() == EventOrder::kByTime;
  if (timed && site_.loop.now() >= query->due) query->probe->abandon();
  std::vector<std::string> keys = query->probe->next_keys();
  if (keys.empty()) return probed(query);
  site_.store.exists(process_, std::move(keys),
                     process_.in_this_life([this, query](const std::vector<Reaction>& reactions) {
                       query->probe->on_exists(reactions);
                       if (query == newest_) probe(query);
                     }));
}

void SimLeader::probed(const std::shared_ptr<Query>& query) {
  const std::size_t found = query->probe->available_blocks();
  std::vector<Content> contents;
  for (std::size_t i = 0; i < found; ++i) {
    contents.push_back(query->blocks[query->resident + i].content);
  }
  site_.oracle.check_probe(contents, query->probe_since);
  switch (query->probe->end()) {
    case PrefixProbe::End::kAll:
      site_.coverage.hit(Mark::kProbeAll);
      break;
    case PrefixProbe::End::kNoManifest:
      site_.coverage.hit(Mark::kProbeNoManifest);
      break;
    case PrefixProbe::End::kShardLost:
      site_.coverage.hit(Mark::kProbeShardLost);
      break;
    case PrefixProbe::End::kStoreError:
    case PrefixProbe::End::kPending:
      site_.coverage.hit(Mark::kProbeStoreError);
      break;
  }
  const std::size_t count = query->resident + found;
  site_.journal.note(site_.loop.now(), "leader: probed", query->resident, found,
                     static_cast<unsigned>(query->probe->end()));
  if (!options_.staged) return query->answer({0, static_cast<std::uint32_t>(count)});
  order(query, count);
}

void SimLeader::order(const std::shared_ptr<Query>& query, std::size_t count) {
  query->hold = all_connected() ? book_->begin(static_cast<std::uint32_t>(count)) : 0;
  if (query->hold == 0) return query->answer({});
  query->blocks.resize(count);
  query->hashes.resize(count);
  site_.journal.note(site_.loop.now(), "leader: order", query->hold, count);
  for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    for (const NamedBlock& block : query->blocks) ranks_[rank]->know(block);
    query->lives.push_back(ranks_[rank]->process().life());
    links_[rank]->to_rank(
        [this, rank,
         order = StageOrder{.hold = query->hold, .blocks = query->hashes, .fetch_budget = {}}] {
          ranks_[rank]->stage(order, options_.fetch_budget);
        });
    if (!links_[rank]->connected()) book_->on_rank_lost(rank);
  }
  open_ = query;
  if (options_.stage_deadline == 0) return close(query, false);
  const Tick left = query->due > site_.loop.now() ? query->due - site_.loop.now() : 1;
  query->deadline = site_.loop.after(left, process_.in_this_life([this, query] {
    if (open_ == query) close(query, true);
  }));
  close(query, false);
}

/// Promises as soon as waiting could not help, or time is up.
void SimLeader::close(const std::shared_ptr<Query>& query, bool late) {
  if (!late && !book_->is_settled(query->hold)) return;
  const std::shared_ptr<Query> closing = query;  // `query` may be open_ itself.
  open_ = nullptr;
  site_.loop.forget(closing->deadline);
  const StagedPrefix staged = book_->close(closing->hold, now());
  site_.journal.note(site_.loop.now(), "leader: promise", closing->hold, staged.blocks,
                     static_cast<unsigned>(staged.end));
  check_promise(*closing, staged.blocks);
  send_releases();
  switch (staged.end) {
    case StageEnd::kAll:
      site_.coverage.hit(Mark::kPromiseFull);
      break;
    case StageEnd::kMissing:
      site_.coverage.hit(Mark::kPromiseMissing);
      break;
    case StageEnd::kRejected:
      site_.coverage.hit(Mark::kPromiseRejected);
      break;
    case StageEnd::kNoRoom:
      site_.coverage.hit(Mark::kPromiseNoRoom);
      break;
    case StageEnd::kUnavailable:
      site_.coverage.hit(Mark::kPromiseUnavailable);
      break;
    case StageEnd::kTooMany:
    case StageEnd::kLate:
      site_.coverage.hit(Mark::kPromiseLate);
      break;
  }
  if (staged.blocks > 0 && staged.end != StageEnd::kAll) site_.coverage.hit(Mark::kPromiseCut);
  closing->answer({staged.blocks > 0 ? closing->hold : 0, staged.blocks});
}

/// Whatever is promised lies verified on every rank that has not died since it was ordered.
void SimLeader::check_promise(const Query& query, std::uint32_t blocks) const {
  for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    SimRank& of = *ranks_[rank];
    if (!of.process().up() || of.process().life() != query.lives[rank]) continue;
    for (std::uint32_t i = 0; i < blocks; ++i) {
      if (of.tier().contains(query.hashes[i])) continue;
      return site_.oracle.violation("block " + std::to_string(query.blocks[i].content) +
                                    " is promised, but not staged on rank " + std::to_string(rank));
    }
  }
}

void SimLeader::send_releases() {
  for (const HoldRelease& release : book_->take_releases()) {
    if (release.from_block == 0 && std::ranges::find(firm_, release.hold) != firm_.end()) {
      site_.oracle.rule_broken("hold " + std::to_string(release.hold) +
                               " ends although its load is not done");
    }
    for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank) {
      links_[rank]->to_rank([this, rank, release] { ranks_[rank]->release(release); });
    }
  }
}

void SimLeader::expire() {
  for (std::size_t n = book_->expire(now()); n > 0; --n) site_.coverage.hit(Mark::kHoldExpired);
  send_releases();
}

bool SimLeader::renew(HoldId hold) { return book_->renew(hold, now()); }

bool SimLeader::allocated(HoldId hold) {
  if (!book_->allocated(hold)) return false;
  firm_.push_back(hold);
  return true;
}

void SimLeader::release(HoldId hold, std::uint32_t from_block) {
  if (from_block == 0) std::erase(firm_, hold);
  book_->release(hold, from_block);
  send_releases();
}

PromiseBook::PlanEnds SimLeader::plan(const std::vector<HoldId>& loaded) {
  expire();
  for (const HoldId hold : loaded) book_->planned(hold);
  PromiseBook::PlanEnds ends = book_->take_plan();
  send_releases();
  return ends;
}

}  // namespace kvc::sim
