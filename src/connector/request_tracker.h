// The requests that a scheduler knows, bounded; past the bound the one that was quiet longest is
// forgotten. A request whose promise may still have to be kept is never forgotten: its tokens count
// as loaded for the engine, so forgetting it would serve pages that nobody filled.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <unordered_map>
#include <utility>

#include "connector/tracked_request.h"
#include "kvc/step_plan.h"

namespace kvc {

/// Not thread-safe.
class RequestTracker {
 public:
  explicit RequestTracker(std::size_t limit) : limit_(limit) {}

  /// Null if unknown. A request that is found counts as active.
  TrackedRequest* find(RequestId id);
  /// Without making it active.
  const TrackedRequest* look_at(RequestId id) const;
  bool is_full() const { return entries_.size() >= limit_; }
  /// The request that was quiet longest and may be forgotten for another one; none if all that
  /// could go is protected. `plans` counts the plans so far: an open promise is protected until two
  /// more plans were made without an allocation.
  std::optional<RequestId> least_needed(std::uint64_t plans) const;
  /// Replaces what was known of `id`. False if there is no room for it.
  bool insert(RequestId id, TrackedRequest request, std::uint64_t plans);
  void erase(RequestId id);

  std::size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    RequestId id;
    TrackedRequest request;
    std::uint64_t inserted_at;
  };
  using Entries = std::list<Entry>;  // Most recently active first.

  std::size_t limit_;
  Entries entries_;
  std::unordered_map<RequestId, Entries::iterator> by_id_;
};

}  // namespace kvc
