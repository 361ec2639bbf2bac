#include "testing/sim/shard_writer.h"

#include <utility>

namespace kvc::sim {

ShardWriter::ShardWriter(Site& site, Process& process, const RankShards& shards, BrokenKeys& broken,
                         std::vector<Item> items)
    : site_(site),
      process_(process),
      shards_(shards),
      broken_(broken),
      steps_(shards.role, items.size(), shards.parts()) {
  blocks_.reserve(items.size());
  for (Item& item : items) blocks_.push_back({.item = std::move(item)});
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

std::vector<std::string> ShardWriter::keys_of(const CommitSteps::Parts& parts) const {
  std::vector<std::string> keys;
  keys.reserve(parts.size());
  for (const Part& at : parts) keys.push_back(key_of(at));
  return keys;
}

void ShardWriter::remove_broken() {
  std::vector<std::string> keys = keys_of(steps_.parts());
  std::erase_if(keys, [this](const std::string& key) { return !broken_.contains(key); });
  if (keys.empty()) return next();
  site_.store.remove(process_, keys, then([this, keys](std::vector<Reaction> answers) {
                       answers = checked(std::move(answers), keys.size());
                       for (std::size_t i = 0; i < keys.size(); ++i) {
                         if (!is_gone(answers[i])) continue;
                         broken_.erase(keys[i]);
                         site_.coverage.hit(Mark::kRejectedRemoved);
                       }
                       next();
                     }));
}

void ShardWriter::end_step() {
  steps_.end_step();
  next();
}

void ShardWriter::next() {
  for (const std::size_t i : steps_.blocks()) {
    if (++blocks_[i].actions > BlockCommit::kMaxActions) {
      return site_.oracle.violation("a commit asks for more than kMaxActions actions");
    }
  }
  switch (steps_.action()) {
    case Action::kPutShard:
      return put_part(0);
    case Action::kVerifyShard:
      return verify();
    case Action::kRemoveShard:
      return remove_bad();
    case Action::kProbeShard:
      return probe_shard();
    case Action::kPutReady:
      return put_markers(ObjectKind::kReady);
    case Action::kPutManifest:
      return put_markers(ObjectKind::kManifest);
    case Action::kProbeQuorum:
      return probe_quorum();
    case Action::kDone:
      return ended();
  }
}

void ShardWriter::put_part(std::uint32_t part) {
  if (part == shards_.parts()) return end_step();
  const CommitSteps::Indices wanted = steps_.puts(part);
  if (wanted.empty()) return put_part(part + 1);
  std::vector<SimStore::Put> items;
  auto holds = std::make_shared<std::vector<BufferHold>>();
  for (const std::size_t i : wanted) {
    const Item& item = blocks_[i].item;
    items.push_back({key_of({i, part}), shard_tag(item.block, shards_.role.rank, part),
                     item.parts[part].bytes});
    holds->push_back(item.parts[part].hold);
  }
  const std::size_t count = items.size();
  site_.store.put(process_, std::move(items), std::move(holds),
                  then([this, part, count](std::vector<PutResult> results) {
                    results = checked(std::move(results), count);
                    for (const PutResult& result : results) {
                      if (result.effect == PutEffect::kExisted) {
                        site_.coverage.hit(Mark::kShardExisted);
                      }
                    }
                    steps_.on_put(part, std::move(results));
                    put_part(part + 1);
                  }));
}

void ShardWriter::verify() {
  const CommitSteps::Parts unsure = steps_.parts();
  auto bytes = std::make_shared<std::vector<std::byte>>(unsure.size() * kObjectBytes);
  const auto object = [bytes](std::size_t n) {
    return std::span(*bytes).subspan(n * kObjectBytes, kObjectBytes);
  };
  std::vector<SimStore::Get> items;
  for (std::size_t n = 0; n < unsure.size(); ++n) items.push_back({key_of(unsure[n]), object(n)});
  site_.store.get(process_, std::move(items), bytes,
                  then([this, unsure, object](std::vector<GetResult> results) {
                    results = checked(std::move(results), unsure.size());
                    for (std::size_t n = 0; n < unsure.size(); ++n) {
                      const Part& at = unsure[n];
                      const BlockHash& block = blocks_[at.block].item.block.hash;
                      steps_.on_read(at, results[n],
                                     shards_.intact(block, at.part, results[n], object(n)));
                    }
                    end_verification();
                  }));
}

void ShardWriter::end_verification() {
  const CommitSteps::Indices blocks = steps_.blocks();
  steps_.end_step();
  for (const std::size_t i : blocks) {
    const BlockCommit& commit = steps_.commit(i);
    if (commit.next() == Action::kPutReady) site_.coverage.hit(Mark::kShardVerified);
    const bool again = commit.failure() == Reaction::kStale;  // It has been replaced before.
    if (commit.next() == Action::kRemoveShard || again) site_.coverage.hit(Mark::kShardReplaced);
  }
  next();
}

void ShardWriter::remove_bad() {
  site_.store.remove(process_, keys_of(steps_.parts()),
                     then([this](std::vector<Reaction> reactions) {
                       steps_.on_removed(std::move(reactions));
                       end_step();
                     }));
}

void ShardWriter::probe_shard() {
  for (const std::size_t i : steps_.blocks()) blocks_[i].layers_since = site_.loop.steps();
  site_.store.exists(process_, keys_of(steps_.parts()),
                     then([this](std::vector<Reaction> reactions) {
                       steps_.on_probed(std::move(reactions));
                       end_step();
                     }));
}

void ShardWriter::put_markers(ObjectKind kind) {
  const bool ready = kind == ObjectKind::kReady;
  const CommitSteps::Indices& blocks = steps_.blocks();
  auto bytes = std::make_shared<std::vector<std::byte>>(blocks.size() * kBlockHeaderBytes);
  std::vector<SimStore::Put> items;
  for (std::size_t n = 0; n < blocks.size(); ++n) {
    const Block& block = blocks_[blocks[n]];
    const NamedBlock& name = block.item.block;
    const std::span<std::byte> object =
        std::span(*bytes).subspan(n * kBlockHeaderBytes, kBlockHeaderBytes);
    seal_block(shards_.describe_marker(kind, name.hash), object);
    Tag tag = shard_tag(name, ready ? shards_.role.rank : 0, 0);
    tag.is = ready ? ObjectIs::kReady : ObjectIs::kManifest;
    tag.seen_since = ready ? block.layers_since : block.quorum_since;
    items.push_back({shards_.marker_key(kind, name.hash), tag, object});
  }
  site_.store.put(process_, std::move(items), bytes, then([this](std::vector<PutResult> results) {
                    steps_.on_markers_put(std::move(results));
                    end_step();
                  }));
}

void ShardWriter::probe_quorum() {
  std::vector<std::string> keys;
  for (const std::size_t i : steps_.blocks()) {
    blocks_[i].quorum_since = site_.loop.steps();
    for (std::string& key : quorum_keys(shards_.keys, blocks_[i].item.block.hash, shards_.role)) {
      keys.push_back(std::move(key));
    }
  }
  site_.store.exists(process_, std::move(keys), then([this](std::vector<Reaction> reactions) {
                       steps_.on_quorum(std::move(reactions));
                       end_step();
                     }));
}

void ShardWriter::ended() {
  Ending ending;
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    switch (steps_.commit(i).outcome()) {
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
