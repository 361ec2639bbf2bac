#include "connector/request_tracker.h"

namespace kvc {
namespace {

/// How many quiet requests are looked at for one that may go; bounds the cost of a query.
constexpr std::size_t kCandidates = 64;
constexpr std::uint64_t kPlansThatProtectAPromise = 2;

}  // namespace

TrackedRequest* RequestTracker::find(RequestId id) {
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found->second);
  return &found->second->request;
}

const TrackedRequest* RequestTracker::look_at(RequestId id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &found->second->request;
}

bool RequestTracker::insert(RequestId id, TrackedRequest request, std::uint64_t plans) {
  erase(id);
  if (is_full()) return false;
  Entries fresh;
  fresh.push_back({id, std::move(request), plans});
  by_id_.emplace(id, fresh.begin());
  entries_.splice(entries_.begin(), fresh);
  return true;
}

void RequestTracker::erase(RequestId id) {
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return;
  entries_.erase(found->second);
  by_id_.erase(found);
}

std::optional<RequestId> RequestTracker::least_needed(std::uint64_t plans) const {
  std::size_t looked_at = 0;
  for (auto at = entries_.rbegin(); at != entries_.rend() && looked_at < kCandidates;
       ++at, ++looked_at) {
    const bool promise_is_open =
        at->request.has_open_promise() && plans < at->inserted_at + kPlansThatProtectAPromise;
    if (!promise_is_open && !at->request.owes_loads()) return at->id;
  }
  return std::nullopt;
}

}  // namespace kvc
