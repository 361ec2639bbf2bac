// A store in the memory of this process: what `MC_BACKEND=memory` uses, and the cheap stand-in that
// tests run on, in both kinds of publishing that a real store can have.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kvc/store.h"

namespace kvc {

struct MemoryStoreOptions {
  /// Payload bytes of all objects together; past it the least recently used objects go. Also the
  /// largest object.
  std::size_t capacity_bytes = std::size_t{1} << 30;
  /// Bounds what keys and bookkeeping take (about 200 bytes an object), which is not in the above.
  std::size_t max_objects = std::size_t{1} << 22;
  /// False: a put shows the first half of the object, then the whole, as a store does whose objects
  /// grow while they are written.
  bool atomic_publish = true;
  /// With atomic_publish false, called between the two steps, without a lock. False: the writer
  /// dies there, the half object stays and the put answers kDown. Empty: go on.
  std::function<bool(std::string_view key)> between_steps;
};

/// Safe to use from any thread; copies of payload are made outside the lock. put, get and exists
/// count as use for the eviction order. Never blocks, so deadlines are not looked at.
class MemoryStore : public Store {
 public:
  /// Of all objects, half-written ones too, sorted. Does not count as use.
  virtual std::vector<std::string> keys() const = 0;
  /// Payload of all objects; a half-written one counts whole.
  virtual std::size_t bytes_used() const = 0;
  /// Objects that had to go since the beginning.
  virtual std::size_t evicted() const = 0;
};

std::shared_ptr<MemoryStore> make_memory_store(MemoryStoreOptions options);

}  // namespace kvc
