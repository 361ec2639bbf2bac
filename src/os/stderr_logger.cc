#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <string>

#include "kvc/log.h"

namespace kvc {
namespace {

spdlog::level::level_enum level_of(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

/// A logger of its own, outside spdlog's process-wide registry, which belongs to the host program.
class StderrLogger final : public Logger {
 public:
  explicit StderrLogger(LogLevel level)
      : logger_("kvc", std::make_shared<spdlog::sinks::stderr_sink_mt>()) {
    logger_.set_level(level_of(level));
    logger_.set_pattern("%Y-%m-%d %H:%M:%S.%e %P %L %n: %v");
    logger_.set_error_handler([](const std::string&) {});
  }

  void log(LogLevel level, std::string_view message) override {
    // One line per message, whatever the message holds: lines are what log collectors count.
    const spdlog::level::level_enum at = level_of(level);
    if (!logger_.should_log(at)) return;
    try {
      std::string line(message);
      for (char& letter : line) {
        if (letter == '\n' || letter == '\r') letter = ' ';
      }
      logger_.log(at, spdlog::string_view_t(line.data(), line.size()));
    } catch (...) {  // NOLINT(bugprone-empty-catch): a log line is never worth a failure.
    }
  }

 private:
  spdlog::logger logger_;
};

class NullLogger final : public Logger {
 public:
  void log(LogLevel, std::string_view) override {}
};

}  // namespace

std::shared_ptr<Logger> make_stderr_logger(LogLevel level) {
  return std::make_shared<StderrLogger>(level);
}

std::shared_ptr<Logger> make_null_logger() { return std::make_shared<NullLogger>(); }

}  // namespace kvc
