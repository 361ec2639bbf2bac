// What every store must do, as one GoogleTest suite. A store, fake or decorator registers itself:
//
//   const bool kRegistered = register_store_conformance({
//       .name = "MemoryAtomic",
//       .open = [] { return make_memory_store({}); },
//       .expected = {.atomic_publish = true, .put_tells_existing = true, ...},
//   });
//
// The suite is as strict as the interface (kvc/store.h); where a store may lawfully differ, a named
// parameter says so. docs/contract/store.md lists the claims and the tests that prove them.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "kvc/store.h"

namespace kvc::testlib {

struct StoreConformance {
  /// Name of the GoogleTest suite.
  std::string name;
  /// A store that works and holds no object whose key begins with `key_prefix`. Called once per
  /// test, which closes it.
  std::function<std::shared_ptr<Store>()> open;
  std::string key_prefix = "conformance/";

  /// capabilities() must say exactly this. Some claims are tested only where they are made.
  StoreCapabilities expected;

  /// A call whose deadline has passed is answered kDown and has no effect. False: deadlines are not
  /// looked at, the call is simply made.
  bool looks_at_deadlines = false;
  /// Objects up to this size are read and written.
  std::size_t largest_object_bytes = std::size_t{8} << 20;
  /// Payload that the store can hold, if writing past it is to be tested; objects of 1 MiB are then
  /// evicted or refused with kBackOff. 0: not tested.
  std::size_t capacity_bytes = 0;
  /// Calls made by each thread of the concurrency tests.
  int calls_per_thread = 200;
};

/// Registers the suite; call it before RUN_ALL_TESTS(), for instance from an initialiser at
/// namespace scope. Returns true.
bool register_store_conformance(StoreConformance parameters);

}  // namespace kvc::testlib
