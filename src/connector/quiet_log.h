// Logging where nothing may be thrown: a logger never decides what is served or saved.
#pragma once

#include <string_view>

#include "kvc/log.h"

namespace kvc {

inline void log_quietly(Logger& logger, LogLevel level, std::string_view message) noexcept {
  try {
    logger.log(level, message);
  } catch (...) {
    return;
  }
}

}  // namespace kvc
