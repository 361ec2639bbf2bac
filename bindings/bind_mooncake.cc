#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "bindings/bind.h"
#include "bindings/gil.h"
#include "bindings/mooncake_binding_client.h"
#include "bindings/status_error.h"
#include "bindings/store_object.h"
#include "kvc/log.h"
#include "store/mooncake/mooncake_store.h"

namespace kvc::bindings {
namespace {

namespace nb = nanobind;
using nb::literals::operator""_a;

// The limit on what is in flight holds for the process, so the budget does.
std::shared_ptr<TransferBudget> process_budget() {
  static const auto budget = std::make_shared<TransferBudget>();
  return budget;
}

Result<std::shared_ptr<Store>> connect(const MooncakeClientConfig& config,
                                       MooncakeStoreOptions options) {
  const std::shared_ptr<Logger> logger = make_stderr_logger(LogLevel::kInfo);
  Result<MooncakeConnection> connection = connect_mooncake(config, *logger);
  if (!connection.ok()) return connection.status();
  options.instance = connection->instance;
  options.budget = process_budget();
  return open_mooncake_store(connection->client, std::move(options), logger, system_clock());
}

StoreObject mooncake_store(std::string master, std::string metadata_server, std::string protocol,
                           std::string devices, std::string local_hostname, std::string tenant,
                           std::uint64_t global_segment_bytes, std::size_t max_object_bytes,
                           std::string admin) {
  MooncakeClientConfig config;
  config.master = std::move(master);
  config.metadata_server = std::move(metadata_server);
  config.protocol = std::move(protocol);
  config.devices = std::move(devices);
  config.local_hostname = std::move(local_hostname);
  config.tenant = std::move(tenant);
  config.global_segment_bytes = global_segment_bytes;
  config.admin = std::move(admin);
  MooncakeStoreOptions options;
  options.max_object_bytes = max_object_bytes;
  Result<std::shared_ptr<Store>> store = Status();
  {
    const GilRelease release;
    store = connect(config, std::move(options));
  }
  return StoreObject(value_or_throw(std::move(store)));
}

}  // namespace

void bind_mooncake(nb::module_& m) {
  const MooncakeClientConfig client;
  const MooncakeStoreOptions store;
  m.def("open_mooncake_store", &mooncake_store, "master"_a, nb::kw_only(),
        "metadata_server"_a = client.metadata_server, "protocol"_a = client.protocol,
        "devices"_a = client.devices, "local_hostname"_a = client.local_hostname,
        "tenant"_a = client.tenant, "global_segment_bytes"_a = client.global_segment_bytes,
        "max_object_bytes"_a = store.max_object_bytes, "admin"_a = client.admin,
        "A client of a Mooncake Store that took and returned a canary object. Blocks without the\n"
        "GIL but for Mooncake's own setup(); call it where a second of waiting does no harm.");
}

}  // namespace kvc::bindings
