// Two kinds of check. KVC_CHECK is always on: it guards what would otherwise deliver wrong bytes or
// corrupt memory, and ends the process. KVC_DCHECK is on in debug and sanitizer builds only, for
// what is too costly or harmless in production; there its condition is not evaluated.
#pragma once

#include "base/location.h"

namespace kvc {

/// Says on standard error what did not hold, and aborts.
[[noreturn]] void check_failed(const char* condition, const char* message, Location where);

}  // namespace kvc

#define KVC_CHECK(condition, message) \
  (static_cast<bool>(condition)       \
       ? static_cast<void>(0)         \
       : ::kvc::check_failed(#condition, message, ::kvc::Location::current()))

#if defined(KVC_DCHECKS) || !defined(NDEBUG)
#define KVC_DCHECK(condition, message) KVC_CHECK(condition, message)
#else
#define KVC_DCHECK(condition, message) static_cast<void>(sizeof(static_cast<bool>(condition)))
#endif
