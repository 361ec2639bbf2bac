#include "connector/replica_raiser.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "base/hand_over.h"
#include "connector/quiet_log.h"

namespace kvc {
namespace {

constexpr Duration kFirstPause = std::chrono::seconds(1);
constexpr Duration kLongestPause = std::chrono::minutes(1);

}  // namespace

ReplicaRaiser::ReplicaRaiser(PipelineParts parts, ReplicaRaiserOptions options,
                             std::function<bool()> is_busy)
    : parts_(std::move(parts)), options_(options), is_busy_(std::move(is_busy)) {}

void ReplicaRaiser::raise(std::span<const HotBlock> blocks) {
  if (blocks.empty()) return;
  const bool busy = is_busy_();
  const Instant now = parts_.worker.clock->now();
  const std::uint64_t block_bytes = parts_.shards.object_bytes() * parts_.shards.parts();
  std::uint64_t dropped = 0;
  {
    const MutexLock lock(mutex_);
    const bool refuses = busy || closed_ || now < paused_until_;
    for (const HotBlock& hot : blocks) {
      if (is_queued(hot.block)) continue;
      const std::uint64_t bytes = block_bytes * (hot.replicas - 1);
      if (refuses || queue_.size() >= options_.queue_blocks || !take_allowance(bytes, now)) {
        ++dropped;
      } else {
        queue_.push_back(hot);
      }
    }
  }
  count_dropped(dropped);
  start_task();
}

bool ReplicaRaiser::is_queued(const BlockHash& block) const {
  return std::ranges::any_of(queue_, [&block](const HotBlock& hot) { return hot.block == block; });
}

bool ReplicaRaiser::take_allowance(std::uint64_t bytes, Instant now) {
  const auto rate = static_cast<double>(options_.bytes_per_second);
  if (allowance_at_ == Instant::min()) {
    allowance_ = rate;
  } else {
    const double passed = std::chrono::duration<double>(now - allowance_at_).count();
    allowance_ = std::min(rate, allowance_ + std::max(passed, 0.0) * rate);
  }
  allowance_at_ = now;
  // A block larger than a second's worth goes when the allowance is full, and is paid off after.
  const double needed = std::min(static_cast<double>(bytes), rate);
  if (rate <= 0 || allowance_ < needed) return false;
  allowance_ -= static_cast<double>(bytes);
  return true;
}

void ReplicaRaiser::count_dropped(std::uint64_t dropped) {
  if (dropped == 0) return;
  parts_.counters->update([dropped](WorkerStats& stats) { stats.replications_dropped += dropped; });
}

void ReplicaRaiser::drop_queue() {
  count_dropped(queue_.size());
  queue_.clear();
}

void ReplicaRaiser::start_task() {
  {
    const MutexLock lock(mutex_);
    if (queue_.empty() || scheduled_) return;
    scheduled_ = true;
  }
  if (submit_task()) return;
  const MutexLock lock(mutex_);
  scheduled_ = false;
  drop_queue();
}

bool ReplicaRaiser::submit_task() {
  // A task keeps this alive only while it runs.
  return hand_over(*parts_.worker.executor, [self = weak_from_this()] {
    if (const std::shared_ptr<ReplicaRaiser> raiser = self.lock()) raiser->run_task();
  });
}

/// One batch per turn, so that loads and saves get theirs.
void ReplicaRaiser::run_task() {
  std::vector<HotBlock> batch;
  try {
    batch = take_batch();
    if (!batch.empty()) raise_batch(batch);
  } catch (const std::exception& error) {
    parts_.counters->update(
        [&batch](WorkerStats& stats) { stats.replications_failed += batch.size(); });
    log_quietly(*parts_.worker.logger, LogLevel::kError,
                "a batch of replications broke off: ", error.what());
  }
  {
    const MutexLock lock(mutex_);
    running_ = false;
    scheduled_ = false;
    changed_.notify_all();
  }
  start_task();
}

std::vector<HotBlock> ReplicaRaiser::take_batch() {
  const bool busy = is_busy_();
  const Instant now = parts_.worker.clock->now();
  const MutexLock lock(mutex_);
  if (busy || closed_ || now < paused_until_) drop_queue();
  std::vector<HotBlock> batch;
  const std::size_t most = std::max<std::size_t>(options_.batch_objects / objects_of_block(), 1);
  while (!queue_.empty() && batch.size() < most) {
    batch.push_back(queue_.front());
    queue_.pop_front();
  }
  running_ = !batch.empty();
  return batch;
}

std::size_t ReplicaRaiser::objects_of_block() const {
  const CommitRole& role = parts_.shards.role;
  return std::size_t{parts_.shards.parts()} + (role.needs_ready() ? 1 : 0) +
         (role.rank == 0 ? 1 : 0);
}

/// What this rank answers for. All of it must have the copies, or losing one loses the block.
std::vector<std::string> ReplicaRaiser::keys_of(const BlockHash& block) const {
  const RankShards& shards = parts_.shards;
  std::vector<std::string> keys;
  keys.reserve(objects_of_block());
  for (std::uint32_t part = 0; part < shards.parts(); ++part) {
    keys.push_back(shards.key(block, part));
  }
  if (shards.role.needs_ready()) keys.push_back(shards.keys.ready(block, shards.role.rank));
  if (shards.role.rank == 0) keys.push_back(shards.keys.manifest(block));
  return keys;
}

void ReplicaRaiser::raise_batch(const std::vector<HotBlock>& batch) {
  const Instant begin = parts_.worker.clock->now();
  std::vector<ReplicaItem> items;
  std::vector<std::size_t> ends;  // Of each block's items.
  for (const HotBlock& hot : batch) {
    for (std::string& key : keys_of(hot.block)) items.push_back({std::move(key), hot.replicas});
    ends.push_back(items.size());
  }
  const std::size_t count = items.size();
  std::vector<Reaction> reactions = parts_.worker.store->replicate(
      std::move(items), {.deadline = {begin + options_.deadline}, .hold = nullptr});
  reactions.resize(count, Reaction::kDown);
  std::uint64_t done = 0;
  std::size_t at = 0;
  for (const std::size_t end : ends) {
    bool all = true;
    for (; at < end; ++at) all = all && reactions[at] == Reaction::kOk;
    if (all) ++done;
  }
  const Instant now = parts_.worker.clock->now();
  parts_.counters->update([&, took = now - begin](WorkerStats& stats) {
    stats.blocks_replicated += done;
    stats.replications_failed += batch.size() - done;
    stats.replication_latency.add(took);
  });
  // One that has gone says nothing about the store.
  const bool refused = std::ranges::any_of(reactions, [](Reaction reaction) {
    return reaction != Reaction::kOk && reaction != Reaction::kMiss;
  });
  const MutexLock lock(mutex_);
  if (done > 0) pause_ = Duration::zero();
  if (!refused || done > 0) return;
  pause_ = std::clamp(2 * pause_, kFirstPause, kLongestPause);
  paused_until_ = now + pause_;
}

bool ReplicaRaiser::close(Deadline deadline) {
  const MutexLock lock(mutex_);
  closed_ = true;
  drop_queue();
  while (running_) {
    if (deadline.passed(*parts_.worker.clock)) return false;
    changed_.wait_until(mutex_, deadline.at);
  }
  return true;
}

}  // namespace kvc
