// Which promises rest on leases of the store, and when those must be renewed so that none lapses
// before its load is planned. A state machine without threads, clock or I/O.
//
//   promised -> due -> renewed -> due -> ... -> over (its load was planned, the request ended, or
//                                                     there is nothing left to protect)
#pragma once

#include <cstddef>
#include <unordered_map>
#include <vector>

#include "kvc/clock.h"
#include "kvc/step_plan.h"

namespace kvc {

struct LeaseKeeperOptions {
  Duration lease{0};  ///< Zero: there are none.
  /// A promise that gets no pages is renewed so often and then left to itself: the engine may have
  /// dropped its request without a word, and a store full of leased objects takes no puts.
  std::size_t renewals_without_pages = 6;
};

/// Not thread-safe. Requests that it does not know are ignored.
class LeaseKeeper {
 public:
  explicit LeaseKeeper(const LeaseKeeperOptions& options) : options_(options) {}

  /// A lease was taken at `at` for what is promised to the request.
  void promised(RequestId id, Instant at);
  /// The promise is firm: it is renewed until it is over.
  void allocated(RequestId id);
  void over(RequestId id) { leases_.erase(id); }

  /// Requests of whose lease half is over, firm promises first.
  std::vector<RequestId> due(Instant now) const;
  /// What was asked for at `at`: the lease is renewed, or cannot be and is over. Neither of them if
  /// another promise was given to the same request meanwhile.
  void renewed(RequestId id, Instant at);
  void lost(RequestId id, Instant at);

  /// How often to ask what is due, so that no lease lapses; zero: never.
  Duration interval() const { return options_.lease / kChecksPerLease; }
  std::size_t size() const { return leases_.size(); }

 private:
  static constexpr int kChecksPerLease = 4;

  struct Lease {
    Instant since{};
    bool is_firm = false;
    std::size_t renewals = 0;
  };

  /// That was taken before `at`, if there is one.
  Lease* older_than(RequestId id, Instant at);

  const LeaseKeeperOptions options_;
  std::unordered_map<RequestId, Lease> leases_;
};

}  // namespace kvc
