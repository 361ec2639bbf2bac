#include "connector/shard_sets.h"

#include <iterator>

namespace kvc {

void RecentShards::saw(const BlockHash& block) {
  const Instant now = clock_->now();
  const Instant until = now + lifetime_;
  const MutexLock lock(mutex_);
  while (!sightings_.empty() && sightings_.front().until <= now) {
    by_block_.erase(sightings_.front().block);
    sightings_.pop_front();
  }
  if (const auto found = by_block_.find(block); found != by_block_.end()) {
    found->second->until = until;
    sightings_.splice(sightings_.end(), sightings_, found->second);
    return;
  }
  Sightings fresh;
  fresh.push_back({block, until});
  by_block_.emplace(block, fresh.begin());
  sightings_.splice(sightings_.end(), fresh);
  if (sightings_.size() <= limit_) return;
  by_block_.erase(sightings_.front().block);
  sightings_.pop_front();
}

bool RecentShards::contains(const BlockHash& block) const {
  const Instant now = clock_->now();
  const MutexLock lock(mutex_);
  const auto found = by_block_.find(block);
  return found != by_block_.end() && now < found->second->until;
}

bool RecentShards::seen_after(const BlockHash& block, Instant before) const {
  const MutexLock lock(mutex_);
  const auto found = by_block_.find(block);
  return found != by_block_.end() && found->second->until - lifetime_ > before;
}

void RecentShards::forget(const BlockHash& block) {
  const MutexLock lock(mutex_);
  const auto found = by_block_.find(block);
  if (found == by_block_.end()) return;
  sightings_.erase(found->second);
  by_block_.erase(found);
}

void RecentShards::clear() {
  const MutexLock lock(mutex_);
  by_block_.clear();
  sightings_.clear();
}

std::size_t RecentShards::size() const {
  const MutexLock lock(mutex_);
  return sightings_.size();
}

void BrokenObjects::add(const std::string& key) {
  const MutexLock lock(mutex_);
  if (keys_.size() < kLimit) keys_.insert(key);
}

bool BrokenObjects::contains(const std::string& key) const {
  const MutexLock lock(mutex_);
  return keys_.contains(key);
}

bool BrokenObjects::empty() const {
  const MutexLock lock(mutex_);
  return keys_.empty();
}

void BrokenObjects::remove(const std::string& key) {
  const MutexLock lock(mutex_);
  keys_.erase(key);
}

}  // namespace kvc
