// A MooncakeClient on the Python binding of Mooncake's wheel, which is all that the wheel offers.
//
// Connecting, in this order, because the binding's setup() holds the GIL while it waits, up to 90
// s:
//   1. the master's port is reached by a plain TCP connection, without the GIL, within
//      2 s. A master that takes connections and stays silent gets through here;
//      setup() then fails after MC_RPC_TIMEOUT_MS (2 s as we set it), with the GIL held.
//   2. an explicit own address "ip:port" is chosen: with one, setup() tries once instead of 20
//   times
//   3. the client's environment variables are set where the user has not (see
//      set_missing_environment()), before the binding is imported
//   4. import mooncake.store, setup()
//
// Calls take the GIL to convert arguments and results; the binding lets go of it during transfers,
// but not in close(), which takes about a second.
// They may come from any thread, which must not hold the GIL while it waits for another one that
// calls. No call enters Python once the interpreter's exit handlers have run: a handler that is
// registered with each connection (so handlers that are registered later run before it) refuses
// further calls and waits for those inside, at most 5 s. A forked child's calls fail
// without touching the store.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kvc/clock.h"
#include "kvc/log.h"
#include "kvc/result.h"
#include "store/mooncake/mooncake_client.h"

namespace kvc::bindings {

struct MooncakeClientConfig {
  /// host:port, or the scheme://... form of a master that is found through etcd or redis, which is
  /// not reached beforehand.
  std::string master;
  std::string metadata_server = "P2PHANDSHAKE";
  std::string protocol = "tcp";
  std::string devices;
  /// host:port of the master's admin pages, which name the storage processes. Empty: the master's
  /// host, port 9003.
  std::string admin;
  /// Address of this machine for other nodes, with or without port. Empty or "localhost": the one
  /// from which the master was reached.
  std::string local_hostname;
  std::string tenant = "default";
  std::uint64_t global_segment_bytes = 0;  ///< Given to the store; it ends with this process.
};

struct MooncakeConnection {
  std::shared_ptr<MooncakeClient> client;
  /// Names this client among all of the store: own address, process, time.
  std::string instance;
};

/// The Status names the master and the remedy: kInvalid for a malformed address, kUnsupported if
/// the wheel is missing, hidden or too old, kUnavailable if the store cannot be reached.
Result<MooncakeConnection> connect_mooncake(const MooncakeClientConfig& config, Logger& logger);

}  // namespace kvc::bindings
