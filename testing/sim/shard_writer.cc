#include "testing/sim/shard_writer.h"

#include <algorithm>
#include <utility>

namespace kvc::sim {

using Action = BlockCommit::Action;

namespace {

template <typename Answer>
std::vector<Answer> checked(std::vector<Answer> answers, std::size_t count, Answer instead) {
  if (answers.size() == count) return answers;
  return std::vector<Answer>(count, instead);
}

bool gone(Reaction reaction) { return reaction == Reaction::kOk || reaction == Reaction::kMiss; }

PutResult both(const PutResult& a, const PutResult& b) {
  const auto nothing = [](const PutResult& result) {
    return result.effect == PutEffect::kExisted || result.effect == PutEffect::kNone;
  };
  PutResult all{a.reaction == Reaction::kOk ? b.reaction : a.reaction, a.effect};
  if (a.effect != b.effect) {
    all.effect = nothing(a) && nothing(b) ? PutEffect::kExisted : PutEffect::kUnknown;
  }
  return all;
}

}  // namespace

ShardWriter::ShardWriter(Site& site, Process& process, const RankShards& shards, BrokenKeys& broken,
                         std::vector<Item> items)
    : site_(site), process_(process), shards_(shards), broken_(broken) {
  blocks_.reserve(items.size());
  for (Item& item : items) {
    const std::size_t parts = item.parts.size();
    blocks_.push_back({std::move(item), BlockCommit(shards.role),
                       std::vector<PartState>(parts, PartState::kToPut)});
  }
}

template <typename F>
auto ShardWriter::then(F action) {
  return process_.in_this_life([self = shared_from_this(), action = std::move(action)](
                                   auto answers) mutable { action(std::move(answers)); });
}

void ShardWriter::start(Done done) {
  done_ = std::move(done);
  if (broken_.empty()) return next();
  remove_broken();
}

void ShardWriter::remove_broken() {
  std::vector<std::string> keys;
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    for (std::uint32_t part = 0; part < shards_.parts(); ++part) {
      std::string key = key_of({i, part});
      if (broken_.contains(key)) keys.push_back(std::move(key));
    }
  }
  if (keys.empty()) return next();
  site_.store.remove(process_, keys, then([this, keys](std::vector<Reaction> answers) {
                       answers = checked(std::move(answers), keys.size(), Reaction::kDown);
                       for (std::size_t i = 0; i < keys.size(); ++i) {
                         if (!gone(answers[i])) continue;
                         broken_.erase(keys[i]);
                         site_.coverage.hit(Mark::kRejectedRemoved);
                       }
                       next();
                     }));
}

/// The blocks whose next action comes first in the protocol go first, as in CommitBatch.
void ShardWriter::next() {
  Action action = Action::kDone;
  for (const Block& block : blocks_) action = std::min(action, block.commit.next());
  if (action == Action::kDone) return ended();
  Indices ready;
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    if (blocks_[i].commit.next() != action) continue;
    ready.push_back(i);
    if (++blocks_[i].actions > BlockCommit::kMaxActions) {
      return site_.oracle.violation("a commit asks for more than kMaxActions actions");
    }
  }
  switch (action) {
    case Action::kPutShard:
      return put_part(ready, 0,
                      std::vector<PutResult>(blocks_.size(), {Reaction::kOk, PutEffect::kNone}));
    case Action::kVerifyShard:
      return verify(ready);
    case Action::kRemoveShard:
      return remove_bad(ready);
    case Action::kProbeShard:
      return probe_shard(ready);
    case Action::kPutReady:
    case Action::kPutManifest:
      return put_markers(action, ready);
    case Action::kProbeQuorum:
      return probe_quorum(ready);
    case Action::kDone:
      return;
  }
}

ShardWriter::Parts ShardWriter::parts_in(PartState state, const Indices& blocks) const {
  Parts found;
  for (const std::size_t i : blocks) {
    for (std::uint32_t part = 0; part < blocks_[i].parts.size(); ++part) {
      if (blocks_[i].parts[part] == state) found.push_back({i, part});
    }
  }
  return found;
}

std::vector<std::string> ShardWriter::keys_of(const Parts& parts) const {
  std::vector<std::string> keys;
  keys.reserve(parts.size());
  for (const PartOf& at : parts) keys.push_back(key_of(at));
  return keys;
}

void ShardWriter::put_part(const Indices& blocks, std::uint32_t part,
                           std::vector<PutResult> outcomes) {
  if (part == shards_.parts()) {
    for (const std::size_t i : blocks) blocks_[i].commit.on_put(outcomes[i]);
    return next();
  }
  Indices wanted;
  std::vector<SimStore::Put> items;
  auto holds = std::make_shared<std::vector<BufferHold>>();
  for (const std::size_t i : blocks) {
    const Block& block = blocks_[i];
    if (outcomes[i].reaction != Reaction::kOk || block.parts[part] != PartState::kToPut) continue;
    wanted.push_back(i);
    items.push_back({key_of({i, part}), shard_tag(block.item.block, shards_.role.rank, part),
                     block.item.parts[part].bytes});
    holds->push_back(block.item.parts[part].hold);
  }
  if (wanted.empty()) return put_part(blocks, part + 1, std::move(outcomes));
  site_.store.put(process_, std::move(items), std::move(holds),
                  then([this, blocks, wanted, part,
                        outcomes = std::move(outcomes)](std::vector<PutResult> results) mutable {
                    results = checked(std::move(results), wanted.size(),
                                      PutResult{Reaction::kDown, PutEffect::kUnknown});
                    for (std::size_t n = 0; n < wanted.size(); ++n) {
                      const std::size_t i = wanted[n];
                      const bool ours = results[n].effect == PutEffect::kStored;
                      state_of({i, part}) = ours ? PartState::kOurs : PartState::kUnsure;
                      if (results[n].effect == PutEffect::kExisted)
                        site_.coverage.hit(Mark::kShardExisted);
                      PutResult& outcome = outcomes[i];
                      outcome = outcome.effect == PutEffect::kNone ? results[n]
                                                                   : both(outcome, results[n]);
                    }
                    put_part(blocks, part + 1, std::move(outcomes));
                  }));
}

void ShardWriter::verify(const Indices& blocks) {
  const Parts unsure = parts_in(PartState::kUnsure, blocks);
  auto bytes = std::make_shared<std::vector<std::byte>>(unsure.size() * kObjectBytes);
  std::vector<SimStore::Get> items;
  for (std::size_t n = 0; n < unsure.size(); ++n) {
    items.push_back({key_of(unsure[n]), std::span(*bytes).subspan(n * kObjectBytes, kObjectBytes)});
  }
  site_.store.get(process_, std::move(items), bytes,
                  then([this, blocks, unsure, bytes](std::vector<GetResult> results) {
                    verified(blocks, unsure,
                             checked(std::move(results), unsure.size(), GetResult{}), *bytes);
                  }));
}

void ShardWriter::verified(const Indices& blocks, const Parts& unsure,
                           const std::vector<GetResult>& results,
                           const std::vector<std::byte>& bytes) {
  std::vector<Reaction> answers(blocks_.size(), Reaction::kOk);
  for (std::size_t n = 0; n < unsure.size(); ++n) {
    const PartOf& at = unsure[n];
    const BlockHash& block = blocks_[at.block].item.block.hash;
    const Reaction reaction =
        results[n].reaction == Reaction::kCallerBug ? Reaction::kOk : results[n].reaction;
    const bool intact =
        results[n].reaction == Reaction::kOk && results[n].bytes == kObjectBytes &&
        verify_block(shards_.describe_part(block, at.part),
                     std::span(bytes).subspan(n * kObjectBytes, kObjectBytes)) == Rejection::kNone;
    if (intact) {
      state_of(at) = PartState::kIntact;
    } else if (reaction == Reaction::kMiss) {
      state_of(at) = PartState::kToPut;
    } else if (reaction == Reaction::kOk || reaction == Reaction::kStale) {
      state_of(at) = PartState::kBad;
    } else {
      answers[at.block] = reaction;
    }
  }
  for (const std::size_t i : blocks) {
    BlockCommit& commit = blocks_[i].commit;
    const auto any = [&](PartState state) {
      return std::ranges::find(blocks_[i].parts, state) != blocks_[i].parts.end();
    };
    if (answers[i] != Reaction::kOk) {
      commit.on_verified(answers[i], false);
    } else if (any(PartState::kBad)) {
      commit.on_verified(Reaction::kOk, false);
      site_.coverage.hit(Mark::kShardReplaced);
    } else if (any(PartState::kToPut)) {
      commit.on_verified(Reaction::kMiss, false);
    } else {
      commit.on_verified(Reaction::kOk, true);
      site_.coverage.hit(Mark::kShardVerified);
    }
  }
  next();
}

void ShardWriter::remove_bad(const Indices& blocks) {
  const Parts bad = parts_in(PartState::kBad, blocks);
  site_.store.remove(process_, keys_of(bad),
                     then([this, blocks, bad](std::vector<Reaction> reactions) {
                       reactions = checked(std::move(reactions), bad.size(), Reaction::kDown);
                       std::vector<Reaction> answers(blocks_.size(), Reaction::kOk);
                       for (std::size_t n = 0; n < bad.size(); ++n) {
                         if (gone(reactions[n])) {
                           state_of(bad[n]) = PartState::kToPut;
                         } else {
                           answers[bad[n].block] = reactions[n];
                         }
                       }
                       for (const std::size_t i : blocks) blocks_[i].commit.on_removed(answers[i]);
                       next();
                     }));
}

void ShardWriter::probe_shard(const Indices& blocks) {
  Parts all;
  for (const std::size_t i : blocks) {
    blocks_[i].layers_since = site_.loop.steps();
    for (std::uint32_t part = 0; part < shards_.parts(); ++part) all.push_back({i, part});
  }
  site_.store.exists(process_, keys_of(all),
                     then([this, blocks, all](std::vector<Reaction> reactions) {
                       reactions = checked(std::move(reactions), all.size(), Reaction::kDown);
                       std::vector<Reaction> answers(blocks_.size(), Reaction::kOk);
                       for (std::size_t n = 0; n < all.size(); ++n) {
                         if (reactions[n] != Reaction::kOk) answers[all[n].block] = reactions[n];
                       }
                       for (const std::size_t i : blocks) {
                         blocks_[i].commit.on_shard_probed(answers[i]);
                       }
                       next();
                     }));
}

void ShardWriter::put_markers(Action action, const Indices& blocks) {
  const bool ready = action == Action::kPutReady;
  auto bytes = std::make_shared<std::vector<std::byte>>(blocks.size() * kBlockHeaderBytes);
  std::vector<SimStore::Put> items;
  for (std::size_t n = 0; n < blocks.size(); ++n) {
    const Block& block = blocks_[blocks[n]];
    const NamedBlock& name = block.item.block;
    const std::uint32_t rank = shards_.role.rank;
    const std::span<std::byte> object =
        std::span(*bytes).subspan(n * kBlockHeaderBytes, kBlockHeaderBytes);
    seal_block(
        shards_.describe_marker(ready ? ObjectKind::kReady : ObjectKind::kManifest, name.hash),
        object);
    Tag tag = shard_tag(name, ready ? rank : 0, 0);
    tag.is = ready ? ObjectIs::kReady : ObjectIs::kManifest;
    tag.seen_since = ready ? block.layers_since : block.quorum_since;
    items.push_back({ready ? shards_.keys.ready(name.hash, rank) : shards_.keys.manifest(name.hash),
                     tag, object});
  }
  site_.store.put(process_, std::move(items), bytes,
                  then([this, blocks](std::vector<PutResult> results) {
                    results = checked(std::move(results), blocks.size(),
                                      PutResult{Reaction::kDown, PutEffect::kUnknown});
                    for (std::size_t n = 0; n < blocks.size(); ++n) {
                      blocks_[blocks[n]].commit.on_put(results[n]);
                    }
                    next();
                  }));
}

void ShardWriter::probe_quorum(const Indices& blocks) {
  std::vector<std::string> keys;
  for (const std::size_t i : blocks) {
    blocks_[i].quorum_since = site_.loop.steps();
    for (std::string& key : quorum_keys(shards_.keys, blocks_[i].item.block.hash, shards_.role)) {
      keys.push_back(std::move(key));
    }
  }
  const std::size_t count = keys.size();
  site_.store.exists(
      process_, std::move(keys), then([this, blocks, count](std::vector<Reaction> reactions) {
        reactions = checked(std::move(reactions), count, Reaction::kDown);
        const std::size_t ranks = shards_.role.world_size;
        for (std::size_t n = 0; n < blocks.size(); ++n) {
          blocks_[blocks[n]].commit.on_quorum(std::span(reactions).subspan(n * ranks, ranks));
        }
        next();
      }));
}

void ShardWriter::ended() {
  Ending ending;
  for (const Block& block : blocks_) {
    switch (block.commit.outcome()) {
      case BlockCommit::Outcome::kCommitted:
        ++ending.committed;
        site_.coverage.hit(Mark::kCommitted);
        break;
      case BlockCommit::Outcome::kWaitingForPeers:
        ++ending.waiting;
        site_.coverage.hit(Mark::kWaitingForPeers);
        break;
      case BlockCommit::Outcome::kPending:
      case BlockCommit::Outcome::kFailed:
        ++ending.failed;
        site_.coverage.hit(Mark::kCommitFailed);
        break;
    }
  }
  for (Block& block : blocks_) block.item.parts.clear();
  if (done_) std::exchange(done_, nullptr)(ending);
}

}  // namespace kvc::sim
