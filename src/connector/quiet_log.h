// Logging where nothing may be thrown: a logger never decides what is served or saved.
#pragma once

#include <string>
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

/// ... `why` after `what`, as one line if there is memory for that.
inline void log_quietly(Logger& logger, LogLevel level, std::string_view what,
                        std::string_view why) noexcept {
  try {
    std::string line(what);
    line += why;
    logger.log(level, line);
  } catch (...) {
    log_quietly(logger, level, what);
  }
}

}  // namespace kvc
