// What the mooncake back end needs of a Mooncake Store client, with Mooncake's own codes: six calls
// for objects, and four for their replicas, which a client may lack.
//
// The real implementation calls the binding of Mooncake's wheel and lives with the bindings, so
// that the core knows no interpreter; another one may load a C library. The fake of the tests
// reproduces the client's traps. An implementation converts and forwards; every rule about what may
// be called when, and what a code means, is in mooncake_store.cc and mooncake_codes.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kvc {

/// Answer of a batched call.
struct MooncakeReply {
  /// One code per key. Of any other length: the call failed as a whole.
  std::vector<std::int64_t> codes;
  /// Not empty: the call failed as a whole, and why.
  std::string error;
};

/// One complete copy of an object in a storage process's memory.
struct MooncakeReplica {
  std::string endpoint;       ///< Of the storage process, for transfers.
  std::uint64_t address = 0;  ///< There.
  std::uint64_t bytes = 0;
};

struct MooncakeReplicas {
  /// By key, in the order in which the store would read them; none: no such object.
  std::vector<std::vector<MooncakeReplica>> of_key;
  std::string error;  ///< Not empty: the call failed as a whole, and why.
};

/// Memory that a storage process lends.
struct MooncakeSegment {
  std::string name;  ///< By which copies are asked for.
  std::string endpoint;
  std::uint64_t free_bytes = 0;
};

struct MooncakeSegments {
  std::vector<MooncakeSegment> usable;
  std::string error;  ///< Not empty: they cannot be told, and why.
};

/// Safe to call from several threads at once, but close() and destruction must have no call beside
/// them, and nothing may be called after close(): a real client crashes the process then. Calls
/// block as long as the store pleases and must not throw. The lists of a call have equal length;
/// keys are not empty and, in one put or get, distinct; sizes are not zero.
class MooncakeClient {
 public:
  virtual ~MooncakeClient() = default;

  /// 1 present, 0 absent, negative: error. Grants leases.
  virtual MooncakeReply batch_is_exist(const std::vector<std::string>& keys) = 0;
  /// 0 or an error. 0 also if the key was taken, even if only by an unfinished put, and if fewer
  /// than `replicas` copies were stored for lack of storage processes.
  virtual MooncakeReply batch_put_from(const std::vector<std::string>& keys,
                                       const std::vector<const std::byte*>& data,
                                       const std::vector<std::size_t>& sizes,
                                       std::uint32_t replicas) = 0;
  /// Bytes read (the size of the object, which may be smaller than the buffer) or an error.
  virtual MooncakeReply batch_get_into(const std::vector<std::string>& keys,
                                       const std::vector<std::byte*>& data,
                                       const std::vector<std::size_t>& sizes) = 0;
  /// 0 or an error. Removes leased objects too.
  virtual MooncakeReply batch_remove(const std::vector<std::string>& keys) = 0;

  /// Whether the four calls below can be made.
  virtual bool knows_replicas() const = 0;
  /// Grants leases. A master that is down is no error: then no key has any.
  virtual MooncakeReplicas batch_replicas(const std::vector<std::string>& keys) = 0;
  /// The storage processes that take objects now.
  virtual MooncakeSegments segments() = 0;
  /// Asks the store to copy an object to the segment, in the background. One code.
  virtual MooncakeReply create_copy_task(const std::string& key, const std::string& segment) = 0;
  /// Reads from a storage process, past the store: bytes read or an error. Nothing protects them
  /// but the lease that batch_replicas() granted. One code.
  virtual MooncakeReply read_replica(const MooncakeReplica& replica, std::byte* data) = 0;

  /// One code each.
  virtual MooncakeReply register_buffer(std::byte* data, std::size_t bytes) = 0;
  virtual MooncakeReply unregister_buffer(std::byte* data) = 0;

  /// Called once.
  virtual void close() = 0;

  /// Which store this is, for messages: for example "master 10.0.0.1:50051".
  virtual std::string description() const = 0;
};

}  // namespace kvc
