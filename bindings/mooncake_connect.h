// Steps of connecting that run Python, for mooncake_binding_client.cc.
#pragma once

#include <string>

#include "bindings/mooncake_binding_client.h"
#include "bindings/python_api.h"

namespace kvc::bindings {

/// Sets what mooncake_wheel.py lists, in os.environ and so in the process, where it is unset.
/// Returns what was set, as "NAME=value NAME=value". REQUIRES: the GIL is held.
Result<std::string> set_missing_environment();

/// The class mooncake.store.MooncakeDistributedStore. REQUIRES: the GIL is held.
Result<PyRef> import_mooncake_class();

/// "mooncake-transfer-engine-non-cuda 0.3.13.post1", or "unknown release". REQUIRES: the GIL is
/// held.
std::string installed_release();

/// Makes a store object and sets it up, once. REQUIRES: the GIL is held.
Result<PyRef> set_up_store(PyObject* store_class, const MooncakeClientConfig& config,
                           const std::string& own_address);

}  // namespace kvc::bindings
