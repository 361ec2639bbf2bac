// Reads of objects whose first copy cannot be had.
//
// A Mooncake client always reads the first copy of an object. For client_ttl (10 s) after a storage
// process died the master goes on naming its copies, so that reads of an object fail although
// another copy is well. What is done here instead:
//   1. a read that failed in transfer makes the storage process of the first copy suspect
//   2. it is read from a copy elsewhere, past the store, by address
//   3. as long as any process is suspect, objects whose first copy lies there and that have another
//      one are read from that at once; a failing read would cost up to a second each
// The lease of the question after the copies protects the bytes, as it does in an ordinary read;
// whether they are the right ones is for the reader to verify, as ever.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "kvc/clock.h"
#include "store/mooncake/mooncake_client.h"

namespace kvc {

/// One object to read. `code` is what the client answered, kNotRead before it was asked.
struct ReplicaRead {
  static constexpr std::int64_t kNotRead = std::numeric_limits<std::int64_t>::min();

  std::string key;
  std::byte* data = nullptr;
  std::size_t capacity = 0;
  std::int64_t code = kNotRead;
};

/// Safe to use from any thread.
class ReplicaReader {
 public:
  /// A read that took so long may go on after it was given up: the engine of the client waits half
  /// a minute for a transfer.
  static constexpr Duration kGivenUpAfter = std::chrono::seconds(25);

  struct Options {
    Duration lease;                                   ///< That a question after copies grants.
    Duration suspect_for = std::chrono::seconds(10);  ///< The master's client_ttl.
  };

  ReplicaReader(std::shared_ptr<MooncakeClient> client, std::shared_ptr<const Clock> clock,
                Options options);

  /// Reads those that would be read from a suspect although a copy is elsewhere. The codes of the
  /// others stay kNotRead. Asks the store nothing while there are no suspects. True: a transfer was
  /// given up, and may go on into its buffer.
  bool read_around_suspects(std::span<ReplicaRead> reads, Deadline deadline);

  /// Reads those whose transfer failed (-800) from another copy, where there is one. True as above.
  bool read_failed_elsewhere(std::span<ReplicaRead> reads, Deadline deadline);

 private:
  using Endpoints = std::set<std::string>;

  Endpoints suspects_now() KVC_EXCLUDES(mutex_);
  void suspect(const Endpoints& endpoints) KVC_EXCLUDES(mutex_);
  bool read(ReplicaRead& one, const std::vector<MooncakeReplica>& replicas,
            const Endpoints& avoided, Instant asked_at, Deadline deadline);

  const std::shared_ptr<MooncakeClient> client_;
  const std::shared_ptr<const Clock> clock_;
  const Options options_;
  mutable Mutex mutex_;
  std::map<std::string, Instant> suspect_until_ KVC_GUARDED_BY(mutex_);  // By endpoint.
};

}  // namespace kvc
