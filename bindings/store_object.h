// Stores as Python objects.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "bindings/gil.h"
#include "kvc/executor.h"
#include "kvc/store.h"
#include "store/file/file_store.h"
#include "store/memory/memory_store.h"
#include "store/wrap/store_call_counters.h"

namespace kvc::bindings {

/// Any store.
using StoreObject = Owned<Store>;

/// A memory store, which can also be looked into.
struct MemoryStoreObject : StoreObject {
  explicit MemoryStoreObject(std::shared_ptr<MemoryStore> store)
      : StoreObject(store), memory(std::move(store)) {}

  std::shared_ptr<MemoryStore> memory;
};

/// A store in a folder, which can be asked about it.
struct FileStoreObject : StoreObject {
  explicit FileStoreObject(std::shared_ptr<FileStore> store)
      : StoreObject(store), file(std::move(store)) {}

  std::shared_ptr<FileStore> file;
};

/// A store whose calls end by their deadline and which is left alone while it is down.
struct GuardedStoreObject : StoreObject {
  GuardedStoreObject(std::shared_ptr<Store> store, std::shared_ptr<StoreCallCounters> call_counters,
                     std::vector<std::shared_ptr<Executor>> call_threads)
      : StoreObject(std::move(store)),
        counters(std::move(call_counters)),
        executors(std::move(call_threads)) {}
  void disown() {
    new std::vector<std::shared_ptr<Executor>>(executors);
    StoreObject::disown();
  }

  std::shared_ptr<StoreCallCounters> counters;
  std::vector<std::shared_ptr<Executor>> executors;
};

}  // namespace kvc::bindings
