// mooncake_trtllm._testing: stores that a test holds up, slows down or lets fail. Not part of the
// product.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "bindings/gil.h"
#include "bindings/store_object.h"
#include "kvc/clock.h"
#include "store/file/file_store.h"
#include "store/wrap/fault_store.h"
#include "testing/gated_store.h"
#include "testing/passing_store.h"

namespace {

namespace nb = nanobind;
using nb::literals::operator""_a;
using kvc::bindings::GilRelease;
using kvc::bindings::StoreObject;
using kvc::testlib::GatedStore;
using kvc::testlib::GatePoint;

struct GatedStoreObject : StoreObject {
  explicit GatedStoreObject(std::shared_ptr<GatedStore> store)
      : StoreObject(store), gated(std::move(store)) {}

  std::shared_ptr<GatedStore> gated;
};

kvc::Reaction to_reaction(std::string_view text) {
  for (const kvc::Reaction reaction :
       {kvc::Reaction::kOk, kvc::Reaction::kMiss, kvc::Reaction::kBackOff, kvc::Reaction::kStale,
        kvc::Reaction::kDown, kvc::Reaction::kCallerBug}) {
    if (kvc::to_string(reaction) == text) return reaction;
  }
  throw nb::value_error("no such reaction");
}

kvc::StoreOp to_op(std::string_view text) {
  for (const kvc::StoreOp op :
       {kvc::StoreOp::kExists, kvc::StoreOp::kPut, kvc::StoreOp::kGet, kvc::StoreOp::kRemove}) {
    if (kvc::to_string(op) == text) return op;
  }
  throw nb::value_error("no such operation");
}

struct FaultyStoreObject : StoreObject {
  explicit FaultyStoreObject(std::shared_ptr<kvc::FaultStore> store)
      : StoreObject(store), faulty(std::move(store)) {}

  std::shared_ptr<kvc::FaultStore> faulty;
};

FaultyStoreObject faulty_store(const StoreObject& inner, std::uint64_t seed, std::string_view op,
                               std::string_view reaction, std::uint32_t chance) {
  kvc::FaultStoreOptions options;
  options.seed = seed;
  options.rules = {{.kind = kvc::FaultKind::kError,
                    .op = to_op(op),
                    .chance = chance,
                    .reaction = to_reaction(reaction)}};
  return FaultyStoreObject(kvc::make_fault_store(inner.shared(), std::move(options)));
}

void bind_faulty_store(nb::module_& m) {
  nb::class_<FaultyStoreObject, StoreObject>(m, "FaultyStore")
      .def(nb::new_(&faulty_store), "inner"_a, nb::kw_only(), "seed"_a, "op"_a, "reaction"_a,
           "chance"_a,
           "Of a million items of an operation so many are answered with a reaction instead.")
      .def(
          "fired", [](const FaultyStoreObject& store) { return store.faulty->fired().front(); },
          "How many were.");
}

bool wait_for_waiting(const GatedStoreObject& store, std::size_t count) {
  const GilRelease release;
  return store.gated->wait_for_waiting(count);
}

void bind_gated_store(nb::module_& m) {
  nb::class_<GatedStoreObject, StoreObject>(m, "GatedStore")
      .def(nb::new_([](const StoreObject& inner) {
             return GatedStoreObject(std::make_shared<GatedStore>(inner.shared()));
           }),
           "inner"_a)
      .def(
          "close_gate",
          [](GatedStoreObject& store, bool before_reply) {
            store.gated->close_gate(before_reply ? GatePoint::kBeforeReply
                                                 : GatePoint::kBeforeCall);
          },
          nb::kw_only(), "before_reply"_a = false, "Calls wait from now on.")
      .def("open_gate", [](GatedStoreObject& store) { store.gated->open_gate(); })
      .def(
          "let_pass",
          [](GatedStoreObject& store, std::size_t count) { store.gated->let_pass(count); },
          "count"_a, "Lets so many calls go that wait, or come next.")
      .def("wait_for_waiting", &wait_for_waiting, "count"_a)
      .def("waiting", [](const GatedStoreObject& store) { return store.gated->waiting(); })
      .def(
          "count",
          [](const GatedStoreObject& store, std::string_view op) {
            return store.gated->count(to_op(op));
          },
          "op"_a, "Calls so far of exists, put, get or remove.")
      .def(
          "answer_with",
          [](GatedStoreObject& store, std::string_view reaction) {
            store.gated->answer_with(to_reaction(reaction));
          },
          "reaction"_a, "Answers instead of the inner store; ok ends it.")
      .def("registered", [](const GatedStoreObject& store) { return store.gated->registered(); });
}

/// Takes its time for each batched call, like a store that is far away.
class SlowStore final : public kvc::testlib::PassingStore {
 public:
  struct Times {
    kvc::Duration exists{0};
    kvc::Duration put{0};
    kvc::Duration get{0};
  };

  SlowStore(std::shared_ptr<kvc::Store> inner, Times times)
      : PassingStore(std::move(inner)), times_(times) {}

  std::vector<kvc::Reaction> exists(std::vector<std::string> keys,
                                    kvc::CallContext context) override {
    pause(times_.exists);
    return inner_->exists(std::move(keys), std::move(context));
  }

  std::vector<kvc::PutResult> put(std::vector<kvc::PutItem> items,
                                  kvc::CallContext context) override {
    pause(times_.put);
    return inner_->put(std::move(items), std::move(context));
  }

  std::vector<kvc::GetResult> get(std::vector<kvc::GetItem> items,
                                  kvc::CallContext context) override {
    pause(times_.get);
    return inner_->get(std::move(items), std::move(context));
  }

 private:
  void pause(kvc::Duration time) {
    const kvc::Instant until = kvc::system_clock()->now() + time;
    const kvc::MutexLock lock(mutex_);
    while (never_.wait_until(mutex_, until)) {
    }
  }

  const Times times_;
  kvc::Mutex mutex_;
  kvc::CondVar never_;
};

StoreObject slow_store(const StoreObject& inner, double exists_s, double put_s, double get_s) {
  const auto to_duration = [](double seconds) {
    return kvc::Duration(static_cast<kvc::Duration::rep>(seconds * 1e9));
  };
  return StoreObject(std::make_shared<SlowStore>(
      inner.shared(),
      SlowStore::Times{
          .exists = to_duration(exists_s), .put = to_duration(put_s), .get = to_duration(get_s)}));
}

std::string_view to_string(kvc::FileStep step) {
  switch (step) {
    case kvc::FileStep::kReserved:
      return "reserved";
    case kvc::FileStep::kCreated:
      return "created";
    case kvc::FileStep::kHalfWritten:
      return "half written";
    case kvc::FileStep::kWritten:
      return "written";
    case kvc::FileStep::kPublished:
      return "published";
    case kvc::FileStep::kRemoved:
      return "removed";
  }
  return "unknown";
}

/// A file store that tells where each of its changes is. `at_step` must not raise.
StoreObject stepped_file_store(std::string path, std::uint64_t max_bytes, bool unnamed_files,
                               const nb::callable& at_step) {
  kvc::FileStoreOptions options;
  options.path = std::move(path);
  options.max_bytes = max_bytes;
  options.unnamed_files = unnamed_files;
  options.at_step = [at_step](kvc::FileStep step) {
    const nb::gil_scoped_acquire acquire;
    at_step(std::string(to_string(step)));
    return std::errc{};
  };
  auto store = kvc::open_file_store(
      std::move(options), kvc::make_stderr_logger(kvc::LogLevel::kWarning), kvc::system_clock());
  if (!store.ok()) throw nb::value_error(store.status().message().c_str());
  return StoreObject(*store);
}

}  // namespace

NB_MODULE(_testing, m) {
  m.doc() = "Stores that a test holds up, slows down or lets fail.";
  nb::module_::import_("mooncake_trtllm._native");
  bind_faulty_store(m);
  bind_gated_store(m);
  m.def("slow_store", &slow_store, "inner"_a, nb::kw_only(), "exists_s"_a = 0.0, "put_s"_a = 0.0,
        "get_s"_a = 0.0, "Each batched call takes so much longer.");
  m.def("stepped_file_store", &stepped_file_store, "path"_a, "max_bytes"_a, nb::kw_only(),
        "unnamed_files"_a, "at_step"_a);
}
