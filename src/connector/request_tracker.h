// The requests that a scheduler knows, bounded; past the bound the one that was quiet longest is
// forgotten. A request whose promise may still have to be kept is never forgotten: its tokens count
// as loaded for the engine, so forgetting it would serve pages that nobody filled.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
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
  /// Replaces what was known of `id`. `plans` counts the plans so far: an open promise is protected
  /// until two more plans were made without an allocation. False if there is no room, since all
  /// that could go is protected; then the request is not tracked.
  bool insert(RequestId id, TrackedRequest request, std::uint64_t plans);
  void erase(RequestId id);

  std::size_t size() const { return entries_.size(); }
  /// Requests that lost their place, or found none.
  std::uint64_t forgotten() const { return forgotten_; }

 private:
  struct Entry {
    RequestId id;
    TrackedRequest request;
    std::uint64_t inserted_at;
  };
  using Entries = std::list<Entry>;  // Most recently active first.

  bool make_room(std::uint64_t plans);

  std::size_t limit_;
  Entries entries_;
  std::unordered_map<RequestId, Entries::iterator> by_id_;
  std::uint64_t forgotten_ = 0;
};

}  // namespace kvc
