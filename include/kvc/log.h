// What the core has to say to an operator. Implementations must not throw and must not block for
// long: they are called from the callbacks of an engine and from background threads.
#pragma once

#include <memory>
#include <string_view>

namespace kvc {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

/// Safe to call from any thread.
class Logger {
 public:
  virtual ~Logger() = default;
  virtual void log(LogLevel level, std::string_view message) = 0;
};

/// One line per message on standard error, from `level` upwards.
std::shared_ptr<Logger> make_stderr_logger(LogLevel level);

/// Drops everything.
std::shared_ptr<Logger> make_null_logger();

}  // namespace kvc
