// One user's handle on a store that several share: close() ends the handle, not the store.
#pragma once

#include <memory>

#include "kvc/clock.h"
#include "kvc/store.h"

namespace kvc {

/// Safe to use from any thread. close() refuses further calls, waits for the handle's calls in
/// flight and unregisters the memory that was registered through the handle and is still so; if it
/// cannot wait that long, the last of those calls unregisters. `shared` itself stays open.
std::shared_ptr<Store> make_store_handle(std::shared_ptr<Store> shared,
                                         std::shared_ptr<const Clock> clock);

}  // namespace kvc
