#include "connector/lease_keeper.h"

#include <algorithm>

namespace kvc {

void LeaseKeeper::promised(RequestId id, Instant at) {
  if (options_.lease > Duration::zero()) leases_.insert_or_assign(id, Lease{.since = at});
}

void LeaseKeeper::allocated(RequestId id) {
  const auto found = leases_.find(id);
  if (found != leases_.end()) found->second.is_firm = true;
}

std::vector<RequestId> LeaseKeeper::due(Instant now) const {
  std::vector<RequestId> ids;
  for (const auto& [id, lease] : leases_) {
    if (!lease.is_firm && lease.renewals >= options_.renewals_without_pages) continue;
    if (now - lease.since >= options_.lease / 2) ids.push_back(id);
  }
  std::ranges::sort(ids, [this](RequestId a, RequestId b) {
    const bool a_is_firm = leases_.at(a).is_firm;
    const bool b_is_firm = leases_.at(b).is_firm;
    return a_is_firm != b_is_firm ? a_is_firm : a < b;
  });
  return ids;
}

void LeaseKeeper::renewed(RequestId id, Instant at) {
  Lease* lease = older_than(id, at);
  if (lease == nullptr) return;
  lease->since = at;
  ++lease->renewals;
}

void LeaseKeeper::lost(RequestId id, Instant at) {
  if (older_than(id, at) != nullptr) leases_.erase(id);
}

LeaseKeeper::Lease* LeaseKeeper::older_than(RequestId id, Instant at) {
  const auto found = leases_.find(id);
  return found == leases_.end() || found->second.since >= at ? nullptr : &found->second;
}

}  // namespace kvc
