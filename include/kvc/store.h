// The store: batched calls on immutable objects, each with a deadline.
//
// Everything above this interface (commit protocol, scheduler, worker) knows a store only by its
// capabilities, and a result only by the reaction that it calls for. Backends and decorators
// (deadline, breaker, fault) implement the same class and pass the same conformance suite
// (testing/store_conformance.h). How to add one: docs/backend-guide.md. Numbered claims, each with
// its test: docs/contract/store.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvc/clock.h"
#include "kvc/status.h"

namespace kvc {

/// What the caller should do about one item of a batch.
enum class Reaction {
  kOk,         ///< Done; for exists: it is there.
  kMiss,       ///< Not there (or not complete yet). Ordinary.
  kBackOff,    ///< No space, quota, or a lease in the way: stop writing for a while, keep serving.
  kStale,      ///< Said to be there, could not be read: treat as a miss, expect it to go.
  kDown,       ///< The store does not answer: open the breaker.
  kCallerBug,  ///< The request itself is wrong (empty key, wrong size). Never retried.
};

std::string_view to_string(Reaction reaction);

/// Keeps the memory of a call alive. A store that abandons a call at its deadline keeps the hold
/// until the transfer is provably over, so releasing a buffer to a pool belongs in its destructor.
using BufferHold = std::shared_ptr<const void>;

struct CallContext {
  Deadline deadline;
  BufferHold hold;
};

struct PutItem {
  std::string key;
  const std::byte* data = nullptr;
  std::size_t bytes = 0;  ///< > 0
  /// Copies wanted of an object that this put stores, in different places. The store keeps as many
  /// as it has places for, at most capabilities().max_replicas, and says nothing if they are fewer.
  std::uint32_t replicas = 1;
};

/// An object that is stored, and how many copies of it are wanted.
struct ReplicaItem {
  std::string key;
  std::uint32_t replicas = 1;
};

enum class PutEffect {
  kNone,     ///< Nothing was stored by this call.
  kStored,   ///< This call stored the bytes.
  kExisted,  ///< The key was there before, its bytes are unchanged (and perhaps incomplete).
  kUnknown,  ///< The store does not tell the two apart, or the reply was lost.
};

struct PutResult {
  Reaction reaction = Reaction::kDown;
  PutEffect effect = PutEffect::kNone;
};

struct GetItem {
  std::string key;
  std::byte* data = nullptr;
  std::size_t capacity = 0;  ///< Bytes that may be written at `data`.
};

struct GetResult {
  Reaction reaction = Reaction::kDown;
  std::size_t bytes = 0;  ///< Size of the object; meaningful with kOk only.
};

/// Positive statements about a store; each flag is a guarantee.
struct StoreCapabilities {
  /// An object becomes visible at once and complete. Without it a reader may see a part of it.
  bool atomic_publish = false;
  /// PutEffect is never kUnknown on a successful put.
  bool put_tells_existing = false;
  /// How long an existence probe protects an object from eviction; zero: not at all.
  Duration lease{0};
  /// Objects above this are refused with kCallerBug before the call. 0: no limit known.
  std::size_t max_object_bytes = 0;
  /// Shared by other processes.
  bool shared_between_processes = false;
  /// Copies of one object that the store can keep so that one place may be lost. 1: no more than
  /// the one, and replicate() is not to be called.
  std::uint32_t max_replicas = 1;
};

/// Safe to call from any thread. Each batched call answers with exactly one result per item, in
/// order, whatever happened: a store that fails as a whole answers kDown for every item. Duplicate
/// keys in one batch are allowed and answered each on its own. No call throws; none returns later
/// than its deadline by more than scheduling noise when wrapped by the deadline decorator (a bare
/// backend may overrun).
class Store {
 public:
  virtual ~Store() = default;

  virtual StoreCapabilities capabilities() const = 0;

  /// kOk: present, kMiss: absent. May grant a lease (capabilities().lease): ask for reading only
  /// what may be loaded.
  virtual std::vector<Reaction> exists(std::vector<std::string> keys, CallContext context) = 0;

  /// Stores each object unless its key is taken; never replaces bytes. The data must not change
  /// until the call returned and `context.hold` was released.
  virtual std::vector<PutResult> put(std::vector<PutItem> items, CallContext context) = 0;

  /// Reads each object whole. An object larger than `capacity` is kCallerBug with nothing usable in
  /// the buffer. Whatever the result, the bytes must be verified before they are used.
  virtual std::vector<GetResult> get(std::vector<GetItem> items, CallContext context) = 0;

  /// Brings each object to `replicas` complete copies, within the store: no bytes pass through the
  /// caller, the object stays readable throughout, and copies are never taken away. kOk: it has
  /// them, or more; kMiss: it is not there; kBackOff: there is no place or no room for another
  /// copy, or copying was not over by the deadline (it may still end well), or the store does so
  /// for somebody else. Where max_replicas is 1, every item is kCallerBug.
  virtual std::vector<Reaction> replicate(std::vector<ReplicaItem> items, CallContext context);

  /// Removes objects even when leased, with all their copies. kMiss: was not there.
  virtual std::vector<Reaction> remove(std::vector<std::string> keys, CallContext context) = 0;

  /// Makes memory known for zero-copy transfers. Buffers of put and get need not lie in registered
  /// memory unless the backend says so; they should.
  virtual Status register_memory(std::span<std::byte> memory) = 0;
  virtual Status unregister_memory(std::span<std::byte> memory) = 0;

  /// Ends the use of the store: later calls answer kDown. Idempotent; waits for calls in flight at
  /// most until `deadline`.
  virtual void close(Deadline deadline) = 0;
};

}  // namespace kvc
