#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bind.h"
#include "bindings/convert.h"
#include "bindings/gil.h"
#include "bindings/stats.h"
#include "bindings/status_error.h"
#include "bindings/store_object.h"
#include "kvc/clock.h"
#include "kvc/log.h"
#include "kvc/store.h"
#include "store/wrap/breaker_store.h"
#include "store/wrap/deadline_store.h"
#include "store/wrap/handle_store.h"

namespace kvc::bindings {
namespace {

namespace nb = nanobind;
using nb::literals::operator""_a;

constexpr double kDefaultTimeoutSeconds = 5.0;

Deadline after_seconds(double seconds) {
  return Deadline::after(*system_clock(), to_duration(seconds));
}

std::string_view to_string(PutEffect effect) {
  switch (effect) {
    case PutEffect::kNone:
      return "none";
    case PutEffect::kStored:
      return "stored";
    case PutEffect::kExisted:
      return "existed";
    case PutEffect::kUnknown:
      return "unknown";
  }
  return "unknown";
}

nb::list to_list(const std::vector<Reaction>& reactions) {
  nb::list list;
  for (const Reaction reaction : reactions) list.append(to_str(kvc::to_string(reaction)));
  return list;
}

nb::list exists(StoreObject& store, std::vector<std::string> keys, double timeout_s) {
  const CallContext context{.deadline = after_seconds(timeout_s), .hold = nullptr};
  std::vector<Reaction> reactions;
  {
    const GilRelease release;
    reactions = store->exists(std::move(keys), context);
  }
  return to_list(reactions);
}

nb::list put(StoreObject& store, const std::vector<std::tuple<std::string, nb::bytes>>& objects,
             double timeout_s, std::uint32_t replicas) {
  // Copies, since an abandoned call may read them after Python's objects are gone.
  auto copies = std::make_shared<std::vector<std::string>>();
  for (const auto& [key, bytes] : objects) copies->emplace_back(bytes.c_str(), bytes.size());
  std::vector<PutItem> items;
  for (std::size_t i = 0; i < objects.size(); ++i) {
    const std::string& copy = (*copies)[i];
    items.push_back({.key = std::get<0>(objects[i]),
                     .data = reinterpret_cast<const std::byte*>(copy.data()),
                     .bytes = copy.size(),
                     .replicas = replicas});
  }
  std::vector<PutResult> results;
  {
    const GilRelease release;
    results = store->put(std::move(items), {.deadline = after_seconds(timeout_s), .hold = copies});
  }
  nb::list list;
  for (const PutResult& result : results) {
    list.append(
        nb::make_tuple(to_str(kvc::to_string(result.reaction)), to_str(to_string(result.effect))));
  }
  return list;
}

nb::list get(StoreObject& store, const std::vector<std::string>& keys, std::size_t capacity,
             double timeout_s) {
  auto buffers = std::make_shared<std::vector<std::vector<std::byte>>>(
      keys.size(), std::vector<std::byte>(capacity));
  std::vector<GetItem> items;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    items.push_back({.key = keys[i], .data = (*buffers)[i].data(), .capacity = capacity});
  }
  std::vector<GetResult> results;
  {
    const GilRelease release;
    results = store->get(std::move(items), {.deadline = after_seconds(timeout_s), .hold = buffers});
  }
  nb::list list;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const std::size_t bytes = results[i].reaction == Reaction::kOk ? results[i].bytes : 0;
    list.append(nb::make_tuple(to_str(kvc::to_string(results[i].reaction)),
                               to_bytes(std::span((*buffers)[i]).first(bytes))));
  }
  return list;
}

nb::list remove(StoreObject& store, std::vector<std::string> keys, double timeout_s) {
  const CallContext context{.deadline = after_seconds(timeout_s), .hold = nullptr};
  std::vector<Reaction> reactions;
  {
    const GilRelease release;
    reactions = store->remove(std::move(keys), context);
  }
  return to_list(reactions);
}

nb::list replicate(StoreObject& store, const std::vector<std::string>& keys, std::uint32_t replicas,
                   double timeout_s) {
  const CallContext context{.deadline = after_seconds(timeout_s), .hold = nullptr};
  std::vector<ReplicaItem> items;
  items.reserve(keys.size());
  for (const std::string& key : keys) items.push_back({key, replicas});
  std::vector<Reaction> reactions;
  {
    const GilRelease release;
    reactions = store->replicate(std::move(items), context);
  }
  return to_list(reactions);
}

void close(StoreObject& store, double timeout_s) {
  const Deadline deadline = after_seconds(timeout_s);
  const GilRelease release;
  store->close(deadline);
}

nb::dict capabilities(const StoreObject& store) {
  const StoreCapabilities can = store->capabilities();
  nb::dict dict;
  dict["atomic_publish"] = can.atomic_publish;
  dict["put_tells_existing"] = can.put_tells_existing;
  dict["lease_s"] = std::chrono::duration<double>(can.lease).count();
  dict["max_object_bytes"] = can.max_object_bytes;
  dict["shared_between_processes"] = can.shared_between_processes;
  dict["max_replicas"] = can.max_replicas;
  return dict;
}

/// A store's client may wait by spinning (Mooncake's does for every transfer). The engine, the
/// small calls that it waits for, and the threads that move the bytes go first. Where there is a
/// core for each it costs nothing.
constexpr int kNicenessOfTransfers = 5;

nb::dict counters(const GuardedStoreObject& store) {
  return to_numbers(*store.counters, kStoreCallStats);
}

MemoryStoreObject memory_store(std::size_t capacity_bytes, bool atomic_publish) {
  MemoryStoreOptions options;
  options.capacity_bytes = capacity_bytes;
  options.atomic_publish = atomic_publish;
  return MemoryStoreObject(make_memory_store(std::move(options)));
}

FileStoreObject file_store(std::string path, std::uint64_t max_bytes) {
  FileStoreOptions options;
  options.path = std::move(path);
  options.max_bytes = max_bytes;
  Result<std::shared_ptr<FileStore>> store = Status();
  {
    const GilRelease release;
    store =
        open_file_store(std::move(options), make_stderr_logger(LogLevel::kWarning), system_clock());
  }
  return FileStoreObject(value_or_throw(std::move(store)));
}

nb::dict stats(const FileStoreObject& store) {
  const FileStoreStats now = [&store] {
    const GilRelease release;
    return store.file->stats();
  }();
  return to_numbers(now, kFileStoreStats);
}

bool take_stock(const FileStoreObject& store) {
  const GilRelease release;
  return store.file->take_stock();
}

GuardedStoreObject guarded_store(const StoreObject& inner, std::size_t threads,
                                 std::size_t max_abandoned) {
  auto call_counters = std::make_shared<StoreCallCounters>();
  const std::shared_ptr<const Clock> clock = system_clock();
  const std::shared_ptr<Executor> calls =
      make_call_threads({.name = "kvc-store", .threads = threads}, call_counters);
  const std::shared_ptr<Executor> transfers = make_call_threads(
      {.name = "kvc-move", .threads = threads, .niceness = kNicenessOfTransfers}, call_counters);
  std::shared_ptr<Store> timely =
      make_deadline_store(inner.shared(), calls, clock, call_counters,
                          {.max_abandoned = max_abandoned, .transfers = transfers});
  std::shared_ptr<Store> store = make_breaker_store(
      std::move(timely), clock, make_stderr_logger(LogLevel::kWarning), call_counters);
  return {std::move(store), std::move(call_counters), {calls, transfers}};
}

void bind_store_class(nb::module_& m) {
  nb::class_<StoreObject>(m, "Store")
      .def("exists", &exists, "keys"_a, "timeout_s"_a = kDefaultTimeoutSeconds,
           nb::sig("def exists(self, keys: list[str], timeout_s: float = 5.0) -> list[str]"))
      .def("put", &put, "objects"_a, "timeout_s"_a = kDefaultTimeoutSeconds, "replicas"_a = 1,
           nb::sig("def put(self, objects: list[tuple[str, bytes]], timeout_s: float = 5.0, "
                   "replicas: int = 1) -> list[tuple[str, str]]"))
      .def("replicate", &replicate, "keys"_a, "replicas"_a, "timeout_s"_a = kDefaultTimeoutSeconds,
           nb::sig("def replicate(self, keys: list[str], replicas: int, timeout_s: float = 5.0) -> "
                   "list[str]"))
      .def("get", &get, "keys"_a, "capacity"_a, "timeout_s"_a = kDefaultTimeoutSeconds,
           nb::sig("def get(self, keys: list[str], capacity: int, timeout_s: float = 5.0) -> "
                   "list[tuple[str, bytes]]"))
      .def("remove", &remove, "keys"_a, "timeout_s"_a = kDefaultTimeoutSeconds,
           nb::sig("def remove(self, keys: list[str], timeout_s: float = 5.0) -> list[str]"))
      .def("capabilities", &capabilities,
           nb::sig("def capabilities(self) -> dict[str, bool | int | float]"))
      .def(
          "handle",
          [](const StoreObject& store) {
            return StoreObject(make_store_handle(store.shared(), system_clock()));
          },
          "One user's handle: closing it leaves the store open.")
      .def("close", &close, "timeout_s"_a)
      .def("disown", &StoreObject::disown, "Give up without closing: after a fork, in the child.");
}

}  // namespace

void bind_store(nb::module_& m) {
  bind_store_class(m);
  nb::class_<MemoryStoreObject, StoreObject>(m, "MemoryStore")
      .def(nb::new_(&memory_store), "capacity_bytes"_a, "atomic_publish"_a = true)
      .def("keys", [](const MemoryStoreObject& store) { return store.memory->keys(); })
      .def("bytes_used", [](const MemoryStoreObject& store) { return store.memory->bytes_used(); })
      .def("evicted", [](const MemoryStoreObject& store) { return store.memory->evicted(); });
  nb::class_<FileStoreObject, StoreObject>(m, "FileStore")
      .def(nb::new_(&file_store), "path"_a, "max_bytes"_a,
           "Opens or makes the folder, which may take seconds after a boot.")
      .def("path", [](const FileStoreObject& store) { return store.file->path(); })
      .def("stats", &stats, nb::sig("def stats(self) -> dict[str, int]"))
      .def("take_stock", &take_stock,
           "Counts what lies in the folder; false: others were at work.");
  nb::class_<GuardedStoreObject, StoreObject>(m, "GuardedStore")
      .def(nb::new_(&guarded_store), "inner"_a, nb::kw_only(), "threads"_a, "max_abandoned"_a,
           "Ends calls by their deadline, rests while the store is down.")
      .def("counters", &counters, nb::sig("def counters(self) -> dict[str, int]"))
      .def("disown", &GuardedStoreObject::disown,
           "Give up without closing: after a fork, in the child.");
}

}  // namespace kvc::bindings
