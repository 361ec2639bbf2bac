#include "replication/heat_table.h"

#include <algorithm>
#include <cmath>

namespace kvc {
namespace {

/// Of the table, what repeated blocks may take; the rest is left for newcomers to prove themselves.
constexpr std::size_t repeated_limit(std::size_t limit) {
  return std::min(limit - limit / 4, limit - 1);
}

}  // namespace

HeatTable::HeatTable(Duration half_life, std::size_t limit)
    : half_life_(static_cast<double>(half_life.count())), limit_(limit) {}

double HeatTable::heat_at(const BlockHeat& block, Instant now) const {
  const auto passed = static_cast<double>(std::max((now - block.at).count(), Duration::rep{0}));
  return block.heat * std::exp2(-passed / half_life_);
}

BlockHeat* HeatTable::find(const BlockHash& block) {
  const auto found = entries_.find(block);
  return found == entries_.end() ? nullptr : &found->second->heat;
}

BlockHeat& HeatTable::touch(const BlockHash& block, Instant now) {
  const auto found = entries_.find(block);
  if (found == entries_.end()) {
    std::list<Entry> fresh;
    fresh.push_front({block, {}});
    entries_.emplace(block, fresh.begin());
    once_.splice(once_.begin(), fresh);
  } else {
    Entry& entry = *found->second;
    repeated_.splice(repeated_.begin(), entry.repeated ? repeated_ : once_, found->second);
    entry.repeated = true;
  }
  BlockHeat& heat = entries_.find(block)->second->heat;
  heat.heat = heat_at(heat, now) + 1;
  heat.at = std::max(heat.at, now);
  keep_bounds();
  return heat;
}

/// What was touched just now stays: it is in front of its list.
void HeatTable::keep_bounds() {
  if (repeated_.size() > repeated_limit(limit_)) {
    repeated_.back().repeated = false;
    once_.splice(once_.begin(), repeated_, std::prev(repeated_.end()));
  }
  if (entries_.size() <= limit_) return;
  entries_.erase(once_.back().block);
  once_.pop_back();
}

}  // namespace kvc
