// One object through the whole store and back, before anybody relies on it.
//
//   1. put a block of bytes that nobody else has under a key that nobody else has
//   2. probe it, read it into another buffer, compare
//   3. remove it
// A store of another release, without storage, with an unreachable storage process or with a wrong
// protocol takes the connection and fails here, and not as a hit rate of nought for ever.
#pragma once

#include <cstddef>
#include <string>

#include "kvc/clock.h"
#include "kvc/status.h"
#include "store/mooncake/mooncake_client.h"

namespace kvc {

struct CanaryOptions {
  std::string instance;  ///< Makes key and bytes unique.
  std::size_t bytes = 0;
  /// Failures that may pass (no room, a storage process that just died) are tried again, with a new
  /// key, for so long.
  Duration budget{0};
};

Status send_canary(MooncakeClient& client, const CanaryOptions& options, const Clock& clock);

}  // namespace kvc
