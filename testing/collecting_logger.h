// A logger that keeps what was said.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "kvc/log.h"

namespace kvc::testlib {

class CollectingLogger final : public Logger {
 public:
  void log(LogLevel level, std::string_view message) override {
    const MutexLock lock(mutex_);
    lines_.emplace_back(level, message);
  }

  std::vector<std::string> lines(LogLevel from = LogLevel::kDebug) const {
    const MutexLock lock(mutex_);
    std::vector<std::string> found;
    for (const auto& [level, message] : lines_) {
      if (level >= from) found.push_back(message);
    }
    return found;
  }

  /// How many messages contain `part`.
  std::size_t count(std::string_view part) const {
    const std::vector<std::string> all = lines();
    return static_cast<std::size_t>(std::count_if(
        all.begin(), all.end(),
        [part](const std::string& line) { return line.find(part) != std::string::npos; }));
  }

 private:
  mutable Mutex mutex_;
  std::vector<std::pair<LogLevel, std::string>> lines_ KVC_GUARDED_BY(mutex_);
};

}  // namespace kvc::testlib
