// The only place where a Status becomes an exception.
//
//   kInvalid, kUnsupported              KvConnectorConfigError
//   kUnavailable, kTimedOut, kExhausted KvConnectorStoreError
//   kMissing, kRejected                 KvConnectorLoadError
#pragma once

#include <utility>

#include "kvc/result.h"
#include "kvc/status.h"

namespace kvc::bindings {

/// Throws the Python exception of a failed status. REQUIRES: the GIL is held.
void throw_if_failed(const Status& status);

template <typename T>
T value_or_throw(Result<T> result) {
  if (!result.ok()) throw_if_failed(result.status());
  return std::move(result).value();
}

}  // namespace kvc::bindings
