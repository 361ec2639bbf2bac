// mooncake_trtllm._conformance: the conformance suite of stores, in a Python process: on a real
// Mooncake Store, which only such a process can reach, and on a store in a folder. Not part of the
// product.
#include <gtest/gtest.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/gil.h"
#include "bindings/mooncake_binding_client.h"
#include "kvc/executor.h"
#include "store/file/file_store.h"
#include "store/mooncake/mooncake_store.h"
#include "store/wrap/breaker_store.h"
#include "store/wrap/deadline_store.h"
#include "testing/store_conformance.h"

namespace {

namespace nb = nanobind;
using nb::literals::operator""_a;
using kvc::bindings::connect_mooncake;
using kvc::bindings::MooncakeClientConfig;
using kvc::testlib::StoreConformance;

std::shared_ptr<kvc::Store> open_store(const MooncakeClientConfig& config,
                                       const std::shared_ptr<kvc::TransferBudget>& budget) {
  const auto logger = kvc::make_stderr_logger(kvc::LogLevel::kWarning);
  auto connection = connect_mooncake(config, *logger);
  if (!connection.ok()) {
    ADD_FAILURE() << connection.status().to_string();
    return nullptr;
  }
  kvc::MooncakeStoreOptions options;
  options.instance = connection->instance;
  options.budget = budget;
  auto store = kvc::open_mooncake_store(connection->client, options, logger, kvc::system_clock());
  if (!store.ok()) {
    ADD_FAILURE() << store.status().to_string();
    return nullptr;
  }
  return *store;
}

std::shared_ptr<kvc::Store> as_production_does(std::shared_ptr<kvc::Store> inner) {
  if (inner == nullptr) return nullptr;
  kvc::ThreadPoolOptions pool;
  pool.threads = 8;
  const auto counters = std::make_shared<kvc::StoreCallCounters>();
  return kvc::make_breaker_store(
      kvc::make_deadline_store(std::move(inner), kvc::make_thread_pool(pool), kvc::system_clock(),
                               counters),
      kvc::system_clock(), kvc::make_null_logger(), counters);
}

/// Runs what is registered as GoogleTest's main() would, once per process. 0: every test passed.
int run_registered(std::vector<std::string> arguments) {
  std::vector<char*> raw;
  raw.reserve(arguments.size() + 1);
  for (std::string& argument : arguments) raw.push_back(argument.data());
  int count = static_cast<int>(raw.size());
  raw.push_back(nullptr);
  ::testing::InitGoogleTest(&count, raw.data());
  return RUN_ALL_TESTS();
}

std::shared_ptr<kvc::Store> open_folder(const std::string& path, std::size_t capacity_bytes) {
  kvc::FileStoreOptions options;
  options.path = path;
  options.max_bytes = capacity_bytes;
  auto store = kvc::open_file_store(
      std::move(options), kvc::make_stderr_logger(kvc::LogLevel::kWarning), kvc::system_clock());
  if (!store.ok()) {
    ADD_FAILURE() << store.status().to_string();
    return nullptr;
  }
  return *store;
}

/// Every test opens the same folder anew.
int run_file(std::vector<std::string> arguments, const std::string& path,
             std::size_t capacity_bytes) {
  const kvc::bindings::GilRelease release;
  StoreConformance parameters;
  parameters.expected.atomic_publish = true;
  parameters.expected.put_tells_existing = true;
  parameters.expected.max_object_bytes = capacity_bytes;
  parameters.expected.shared_between_processes = true;
  parameters.looks_at_deadlines = true;
  parameters.capacity_bytes = capacity_bytes;
  parameters.name = "File";
  parameters.open = [=] { return open_folder(path, capacity_bytes); };
  register_store_conformance(parameters);
  parameters.name = "BreakerOverDeadlineOverFile";
  parameters.open = [=] { return as_production_does(open_folder(path, capacity_bytes)); };
  register_store_conformance(parameters);
  return run_registered(std::move(arguments));
}

/// Both suites, with and without what production puts around the store.
int run(std::vector<std::string> arguments, std::string master, std::size_t capacity_bytes) {
  const kvc::bindings::GilRelease release;
  MooncakeClientConfig config;
  config.master = std::move(master);
  const auto budget = std::make_shared<kvc::TransferBudget>();

  StoreConformance parameters;
  parameters.expected.atomic_publish = true;
  parameters.expected.put_tells_existing = false;
  parameters.expected.lease = std::chrono::seconds(10);
  parameters.expected.max_object_bytes = kvc::MooncakeStoreOptions{}.max_object_bytes;
  parameters.expected.shared_between_processes = true;
  parameters.expected.max_replicas = kvc::MooncakeStoreOptions{}.max_replicas;
  parameters.looks_at_deadlines = true;
  parameters.capacity_bytes = capacity_bytes;
  parameters.calls_per_thread = 100;
  parameters.name = "Mooncake";
  parameters.key_prefix = "conformance/plain/";
  parameters.open = [=] { return open_store(config, budget); };
  register_store_conformance(parameters);
  parameters.name = "BreakerOverDeadlineOverMooncake";
  parameters.key_prefix = "conformance/guarded/";
  parameters.open = [=] { return as_production_does(open_store(config, budget)); };
  register_store_conformance(parameters);
  return run_registered(std::move(arguments));
}

}  // namespace

NB_MODULE(_conformance, m) {
  m.doc() = "The conformance suite of stores in a Python process.";
  m.def("run", &run, "arguments"_a, nb::kw_only(), "master"_a, "capacity_bytes"_a);
  m.def("run_file", &run_file, "arguments"_a, nb::kw_only(), "path"_a, "capacity_bytes"_a);
}
