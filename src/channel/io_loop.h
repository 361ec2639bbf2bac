// One thread that runs the input and output of a server or client.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>

#include "kvc/log.h"
#include "kvc/result.h"
#include "os/thread.h"

namespace kvc {

/// Threads: run() from any; the rest from the owner's.
class IoLoop {
 public:
  /// Starts the thread. kExhausted if the system gives none, or no descriptor for it.
  static Result<std::unique_ptr<IoLoop>> start(const std::string& name,
                                               std::shared_ptr<Logger> logger);
  /// Without finish(), what was to be run may not have been. REQUIRES: another thread than the
  /// loop's.
  ~IoLoop();
  IoLoop(const IoLoop&) = delete;
  IoLoop& operator=(const IoLoop&) = delete;

  /// Whoever has a socket or timer of it keeps it.
  const std::shared_ptr<asio::io_context>& context() const { return context_; }

  /// Runs `task` on the thread, in order. REQUIRES: before finish().
  void run(std::function<void()> task);

  /// Runs `last` on the thread and joins it once nothing is left to do. `last` must cancel whatever
  /// would not end by itself. REQUIRES: another thread than the loop's. Idempotent.
  void finish(std::function<void()> last);

 private:
  explicit IoLoop(std::shared_ptr<asio::io_context> context);

  const std::shared_ptr<asio::io_context> context_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  Thread thread_;
};

/// Log lines of one channel: at most a hundred, so that a rank that comes and goes all day does not
/// fill a disk. One thread at a time.
class LineLimit {
 public:
  explicit LineLimit(std::shared_ptr<Logger> logger) : logger_(std::move(logger)) {}

  void log(LogLevel level, const std::string& message);

 private:
  static constexpr int kLines = 100;
  const std::shared_ptr<Logger> logger_;
  int left_ = kLines;
};

}  // namespace kvc
