// The Mooncake Store as a kvc::Store, on a MooncakeClient.
//
// What it adds to the client, each with a test (mooncake_store_test.cc):
//   - codes become reactions (mooncake_codes.h); answers of a wrong length are failures
//   - batches are cut so that one call and all calls of the process together stay within bounds
//   - each key occurs once in a call; further occurrences are copied (get) or follow later (put)
//   - malformed and over-large items are refused before the call; an over-large one would be
//   refused
//     by the store only after it evicted other objects
//   - puts pause after the store said that it is full
//   - no call after close, none while the client closes
//   - blocks get more copies by the store's copy tasks, and are read from another copy for as long
//     as the first one's storage process is dead and not yet forgotten (replica_copier.h,
//     replica_reader.h)
//   - a canary object goes through the store before it is used
// What stays true of the store: a put of a key that exists, or that another writer has begun and
// not finished (at most 30 s), answers kOk and stores nothing; README.md has the list.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "kvc/clock.h"
#include "kvc/log.h"
#include "kvc/result.h"
#include "kvc/store.h"
#include "store/mooncake/mooncake_client.h"
#include "store/mooncake/put_pause.h"
#include "store/mooncake/transfer_budget.h"

namespace kvc {

struct MooncakeStoreOptions {
  /// Names this client among all of the store, now and later (address, process, time): it makes the
  /// key of the canary object unique.
  std::string instance;
  /// Refused above it. An object must fit into one contiguous range of one storage segment, whose
  /// size a client cannot ask for.
  std::size_t max_object_bytes = std::size_t{256} << 20;
  /// Shared by all stores of the process; null: an own one.
  std::shared_ptr<TransferBudget> budget;
  /// Of one call to the client. More objects per call gain nothing; fewer bytes keep a call well
  /// within the lease that its objects have (10 s).
  std::size_t max_call_buffers = 256;
  std::size_t max_call_bytes = std::size_t{256} << 20;
  /// Keys of one existence probe or removal.
  std::size_t max_call_keys = 4096;
  /// What the master grants on a probe (--default_kv_lease_ttl).
  Duration lease = std::chrono::seconds(10);
  /// Copies of an object that puts and replicate() may ask for, if the client can; 1: one only.
  std::uint32_t max_replicas = 8;
  PutPauseOptions put_pause;
  std::size_t canary_bytes = std::size_t{1} << 20;  ///< > 0
  /// A store that is full or has just lost a storage process may be fine a little later.
  Duration canary_budget = std::chrono::seconds(3);
};

/// A store that took and returned the canary object. Blocks for `canary_budget` at most, plus one
/// call. The Status names the store, the code, the cause and the remedy; `client` is closed then.
/// The store has no deadlines of its own inside a call (wrap it), but begins none after one passed.
Result<std::shared_ptr<Store>> open_mooncake_store(std::shared_ptr<MooncakeClient> client,
                                                   MooncakeStoreOptions options,
                                                   std::shared_ptr<Logger> logger,
                                                   std::shared_ptr<const Clock> clock);

}  // namespace kvc
