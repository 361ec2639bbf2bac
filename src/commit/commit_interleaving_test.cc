// Every order of the single store steps of two and three writers of one block, with objects evicted
// between any two steps, and any step refused, lost before or lost after it took effect, or broken
// off half way. A tiny model of a store stands in for the real one; what has already been visited
// is not explored again.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "kvc/commit.h"

namespace kvc {
namespace {

using Action = BlockCommit::Action;
using Outcome = BlockCommit::Outcome;

constexpr std::size_t kMaxRanks = 3;
constexpr std::uint8_t kNobody = 0xff;

enum class Content : std::uint8_t { kAbsent, kPartial, kComplete };

struct World {
  std::vector<std::uint32_t> writer_ranks;
  std::uint32_t ranks = 2;
  bool atomic_publish = false;
  bool by_layer = false;
  bool tells_existing = true;
  std::uint8_t faults = 0;
  std::uint8_t evictions = 0;
  /// Rank 0's shard at the start: what a writer left behind that crashed.
  Content leftover = Content::kAbsent;

  bool needs_ready() const { return by_layer || !atomic_publish; }
};

struct Writer {
  explicit Writer(const World& world, std::uint32_t of_rank)
      : rank(of_rank),
        commit({.rank = of_rank,
                .world_size = world.ranks,
                .atomic_publish = world.atomic_publish,
                .by_layer = world.by_layer}) {}

  std::uint32_t rank;
  BlockCommit commit;
  bool putting = false;       // A shard is half written by this writer.
  bool second_round = false;  // Mirrors what the machine remembers of a replacement.
  bool saw_complete = false;  // This writer stored the shard whole, or verified it.
  std::uint8_t actions = 0;
  std::vector<Reaction> probed;
};

struct State {
  std::array<Content, kMaxRanks> shards{};
  std::array<std::uint8_t, kMaxRanks> shard_owner{kNobody, kNobody, kNobody};
  std::array<bool, kMaxRanks> ready{};
  std::array<bool, kMaxRanks> ever_complete{};
  bool manifest = false;
  bool disturbed = false;  // A fault or an eviction happened on the way here.
  std::uint8_t last_marker = kNobody;
  std::uint8_t faults_left = 0;
  std::uint8_t evictions_left = 0;
  std::vector<Writer> writers;

  std::string key() const {
    std::string text;
    const auto add = [&text](auto value) { text.push_back(static_cast<char>(value)); };
    for (std::size_t r = 0; r < kMaxRanks; ++r) {
      add(shards[r]), add(shard_owner[r]), add(ready[r]), add(ever_complete[r]);
    }
    add(manifest), add(disturbed), add(last_marker), add(faults_left), add(evictions_left);
    for (const Writer& writer : writers) {
      add(writer.commit.next()), add(writer.commit.outcome()), add(writer.commit.shard_written());
      add(writer.putting), add(writer.second_round), add(writer.saw_complete), add(writer.actions);
      add(writer.probed.size());
      for (const Reaction reaction : writer.probed) add(reaction);
    }
    return text;
  }
};

class Explorer {
 public:
  explicit Explorer(World world) : world_(std::move(world)) {}

  void run() {
    State start;
    start.faults_left = world_.faults;
    start.evictions_left = world_.evictions;
    start.shards[0] = world_.leftover;
    start.ever_complete[0] = world_.leftover == Content::kComplete;
    for (const std::uint32_t rank : world_.writer_ranks) start.writers.emplace_back(world_, rank);
    visit(std::move(start));
  }

  std::size_t endings() const { return endings_; }
  std::size_t commits() const { return commits_; }

 private:
  void visit(State state) {
    if (::testing::Test::HasFailure() || !seen_.insert(state.key()).second) return;
    bool moved = false;
    for (std::size_t i = 0; i < state.writers.size(); ++i) {
      const Action action = state.writers[i].commit.next();
      if (action == Action::kDone) continue;
      moved = true;
      perform(state, i, action);
    }
    if (!moved) return check_end(state);
    evict(state);
  }

  void evict(const State& state) {
    if (state.evictions_left == 0) return;
    const auto without = [&](auto&& take) {
      State next = state;
      if (!take(next)) return;
      --next.evictions_left;
      next.disturbed = true;
      visit(std::move(next));
    };
    for (std::size_t r = 0; r < world_.ranks; ++r) {
      without([r](State& next) {
        const bool there = next.shards[r] == Content::kComplete;
        next.shards[r] = Content::kAbsent;
        return there;
      });
      without([r](State& next) { return std::exchange(next.ready[r], false); });
    }
    without([](State& next) { return std::exchange(next.manifest, false); });
  }

  void perform(const State& state, std::size_t i, Action action) {
    switch (action) {
      case Action::kPutShard:
        return put_shard(state, i);
      case Action::kVerifyShard:
        return verify(state, i);
      case Action::kRemoveShard:
        return remove(state, i);
      case Action::kProbeShard:
        return probe_shard(state, i);
      case Action::kProbeQuorum:
        return probe(state, i);
      case Action::kPutReady:
      case Action::kPutManifest:
        return put_marker(state, i, action);
      case Action::kDone:
        return;
    }
  }

  /// A copy of `state` in which writer `i` has used up one action.
  State step(const State& state, std::size_t i) {
    State next = state;
    Writer& writer = next.writers[i];
    ++writer.actions;
    EXPECT_LE(writer.actions, BlockCommit::kMaxActions);
    return next;
  }

  /// Runs `change` on copies of `state` as a step that fails, if the fault budget allows it.
  template <typename Change>
  void with_fault(const State& state, std::size_t i, Change change) {
    if (state.faults_left == 0) return;
    State next = step(state, i);
    --next.faults_left;
    next.disturbed = true;
    change(next, next.writers[i]);
    visit(std::move(next));
  }

  PutEffect existed() const {
    return world_.tells_existing ? PutEffect::kExisted : PutEffect::kUnknown;
  }
  PutEffect stored() const {
    return world_.tells_existing ? PutEffect::kStored : PutEffect::kUnknown;
  }

  void complete_shard(State& next, std::size_t i) {
    const std::uint32_t rank = next.writers[i].rank;
    next.shards[rank] = Content::kComplete;
    next.ever_complete[rank] = true;
    next.writers[i].saw_complete = true;
    if (!world_.needs_ready()) next.last_marker = static_cast<std::uint8_t>(i);
  }

  void put_shard(const State& state, std::size_t i) {
    if (state.writers[i].putting) return finish_shard(state, i);
    const std::uint32_t rank = state.writers[i].rank;
    const bool taken = state.shards[rank] != Content::kAbsent;
    for (const Reaction reaction : {Reaction::kBackOff, Reaction::kDown}) {
      with_fault(state, i, [&](State&, Writer& writer) {
        writer.commit.on_put({reaction, PutEffect::kNone});
      });
    }
    if (!taken) {
      with_fault(state, i, [&](State& next, Writer& writer) {  // The reply is lost.
        complete_shard(next, i);
        writer.commit.on_put({Reaction::kDown, PutEffect::kUnknown});
      });
    }
    if (!taken && !world_.atomic_publish) {
      with_fault(state, i, [&](State& next, Writer& writer) {  // Broken off half way.
        next.shards[rank] = Content::kPartial;
        next.shard_owner[rank] = kNobody;
        writer.commit.on_put({Reaction::kDown, PutEffect::kUnknown});
      });
      State next = state;  // Half of the put; the action counts when it ends.
      next.shards[rank] = Content::kPartial;
      next.shard_owner[rank] = static_cast<std::uint8_t>(i);
      next.writers[i].putting = true;
      return visit(std::move(next));
    }
    State next = step(state, i);
    if (!taken) complete_shard(next, i);
    if (taken && !world_.needs_ready()) next.last_marker = static_cast<std::uint8_t>(i);
    next.writers[i].commit.on_put({Reaction::kOk, taken ? existed() : stored()});
    visit(std::move(next));
  }

  void finish_shard(const State& state, std::size_t i) {
    State next = step(state, i);
    Writer& writer = next.writers[i];
    writer.putting = false;
    if (next.shards[writer.rank] == Content::kPartial && next.shard_owner[writer.rank] == i) {
      complete_shard(next, i);
      writer.commit.on_put({Reaction::kOk, stored()});
    } else {  // Removed, and perhaps begun anew, by somebody else.
      writer.commit.on_put({Reaction::kStale, PutEffect::kNone});
    }
    visit(std::move(next));
  }

  void verify(const State& state, std::size_t i) {
    for (const Reaction reaction : {Reaction::kDown, Reaction::kStale}) {
      with_fault(state, i,
                 [&](State&, Writer& writer) { writer.commit.on_verified(reaction, false); });
    }
    State next = step(state, i);
    Writer& writer = next.writers[i];
    const Content content = next.shards[writer.rank];
    writer.saw_complete = writer.saw_complete || content == Content::kComplete;
    writer.second_round = writer.second_round || content == Content::kAbsent;
    writer.commit.on_verified(content == Content::kAbsent ? Reaction::kMiss : Reaction::kOk,
                              content == Content::kComplete);
    visit(std::move(next));
  }

  void remove(const State& state, std::size_t i) {
    for (const bool applied : {false, true}) {
      with_fault(state, i, [&](State& next, Writer& writer) {
        if (applied) next.shards[writer.rank] = Content::kAbsent;
        writer.commit.on_removed(Reaction::kDown);
      });
    }
    State next = step(state, i);
    Writer& writer = next.writers[i];
    const bool there = next.shards[writer.rank] != Content::kAbsent;
    next.shards[writer.rank] = Content::kAbsent;
    writer.second_round = true;
    writer.commit.on_removed(there ? Reaction::kOk : Reaction::kMiss);
    visit(std::move(next));
  }

  void probe_shard(const State& state, std::size_t i) {
    with_fault(state, i,
               [&](State&, Writer& writer) { writer.commit.on_shard_probed(Reaction::kDown); });
    State next = step(state, i);
    Writer& writer = next.writers[i];
    const bool there = next.shards[writer.rank] == Content::kComplete;
    writer.saw_complete = writer.saw_complete || there;
    writer.commit.on_shard_probed(there ? Reaction::kOk : Reaction::kMiss);
    visit(std::move(next));
  }

  /// One key per step: a batched probe is no snapshot.
  void probe(const State& state, std::size_t i) {
    if (state.writers[i].probed.empty()) {
      with_fault(state, i, [&](State&, Writer& writer) {
        writer.commit.on_quorum(std::vector<Reaction>(world_.ranks, Reaction::kDown));
      });
    }
    const std::size_t rank = state.writers[i].probed.size();
    const bool there =
        world_.needs_ready() ? state.ready[rank] : state.shards[rank] == Content::kComplete;
    const bool last = rank + 1 == world_.ranks;
    State next = last ? step(state, i) : state;
    Writer& writer = next.writers[i];
    writer.probed.push_back(there ? Reaction::kOk : Reaction::kMiss);
    if (last) writer.commit.on_quorum(writer.probed);
    visit(std::move(next));
  }

  void put_marker(const State& state, std::size_t i, Action action) {
    const auto publish = [&](State& next) {
      const Writer& writer = next.writers[i];
      if (action == Action::kPutReady) {
        EXPECT_TRUE(writer.saw_complete) << "READY for a shard that its writer never saw complete";
        next.ready[writer.rank] = true;
        next.last_marker = static_cast<std::uint8_t>(i);
        return;
      }
      for (std::size_t r = 0; r < world_.ranks; ++r) {
        EXPECT_TRUE(next.ever_complete[r]) << "a manifest whose shard never was complete";
        EXPECT_EQ(writer.probed[r], Reaction::kOk) << "a manifest whose shards were not all seen";
      }
      next.manifest = true;
    };
    with_fault(state, i, [&](State&, Writer& writer) {
      writer.commit.on_put({Reaction::kBackOff, PutEffect::kNone});
    });
    with_fault(state, i, [&](State& next, Writer& writer) {
      publish(next);
      writer.commit.on_put({Reaction::kDown, PutEffect::kUnknown});
    });
    State next = step(state, i);
    Writer& writer = next.writers[i];
    const bool taken = action == Action::kPutReady ? next.ready[writer.rank] : next.manifest;
    publish(next);
    writer.commit.on_put({Reaction::kOk, taken ? existed() : stored()});
    visit(std::move(next));
  }

  void check_end(const State& state) {
    ++endings_;
    for (std::size_t i = 0; i < state.writers.size(); ++i) {
      const Writer& writer = state.writers[i];
      EXPECT_NE(writer.commit.outcome(), Outcome::kPending);
      if (writer.commit.outcome() == Outcome::kCommitted) ++commits_;
      if (state.disturbed || state.last_marker != i) continue;
      EXPECT_EQ(writer.commit.outcome(), Outcome::kCommitted)
          << "whose marker came last must see all of them";
      EXPECT_TRUE(state.manifest);
    }
  }

  const World world_;
  std::unordered_set<std::string> seen_;
  std::size_t endings_ = 0;
  std::size_t commits_ = 0;
};

void explore_all(World world, bool by_layer) {
  world.by_layer = by_layer;
  for (const bool atomic : {true, false}) {
    for (const bool tells : {true, false}) {
      for (const Content leftover : {Content::kAbsent, Content::kPartial, Content::kComplete}) {
        if (atomic && leftover == Content::kPartial) continue;
        world.atomic_publish = atomic;
        world.tells_existing = tells;
        world.leftover = leftover;
        SCOPED_TRACE(::testing::Message()
                     << "by layer " << by_layer << " atomic " << atomic << " tells " << tells
                     << " leftover " << static_cast<int>(leftover));
        Explorer explorer(world);
        explorer.run();
        EXPECT_GT(explorer.endings(), 0u);
        EXPECT_GT(explorer.commits(), 0u);
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

void explore_all(const World& world) {
  explore_all(world, false);
  explore_all(world, true);
}

TEST(CommitInterleaving, LastOfTwoRanksCommits) { explore_all({.writer_ranks = {0, 1}}); }

TEST(CommitInterleaving, LastOfThreeRanksCommits) {
  explore_all({.writer_ranks = {0, 1, 2}, .ranks = 3});
}

TEST(CommitInterleaving, WritersOfTheSameShardDoNotDisturbEachOther) {
  explore_all({.writer_ranks = {0, 0, 1}});
}

TEST(CommitInterleaving, TwoRanksWithFaultsAndEvictions) {
  explore_all({.writer_ranks = {0, 1}, .faults = 2, .evictions = 2});
}

TEST(CommitInterleaving, ThreeRanksWithAFaultAndAnEviction) {
  explore_all({.writer_ranks = {0, 1, 2}, .ranks = 3, .faults = 1, .evictions = 1});
}

TEST(CommitInterleaving, WritersOfTheSameShardWithAFaultAndAnEviction) {
  explore_all({.writer_ranks = {0, 0, 1}, .faults = 1, .evictions = 1});
}

}  // namespace
}  // namespace kvc
