#include "channel/io_loop.h"

#include <exception>
#include <new>
#include <system_error>
#include <utility>

#include <asio/post.hpp>
#include <asio/steady_timer.hpp>

namespace kvc {
namespace {

/// Throws nothing: it may be that there is no memory.
void log_failure(Logger& logger, const std::exception& error) noexcept {
  try {
    logger.log(LogLevel::kError, std::string("channel: ") + error.what());
  } catch (...) {
    return;
  }
}

void run_to_the_end(asio::io_context& context, Logger& logger) {
  for (;;) {
    try {
      context.run();
      return;
    } catch (const std::exception& error) {
      // Out of memory, or a callback that broke its word. Whatever was begun then is given up by
      // the heartbeat of its connection.
      log_failure(logger, error);
    }
  }
}

}  // namespace

IoLoop::IoLoop(std::shared_ptr<asio::io_context> context)
    : context_(std::move(context)), work_(asio::make_work_guard(*context_)) {}

Result<std::unique_ptr<IoLoop>> IoLoop::start(const std::string& name,
                                              std::shared_ptr<Logger> logger) {
  std::unique_ptr<IoLoop> loop;
  try {
    const auto context = std::make_shared<asio::io_context>(1);
    loop.reset(new IoLoop(context));
    // A context opens its descriptors with the first timer or socket: now, where it can be told.
    const asio::steady_timer first(*context);
  } catch (const std::system_error& error) {
    return Status(Code::kExhausted, std::string("cannot set up a channel: ") + error.what());
  }
  Result<Thread> thread =
      Thread::start(name, [context = loop->context_, logger = std::move(logger)] {
        run_to_the_end(*context, *logger);
      });
  if (!thread.ok()) return thread.status();
  loop->thread_ = std::move(*thread);
  return loop;
}

IoLoop::~IoLoop() {
  if (!work_.owns_work()) return;
  context_->stop();
  work_.reset();
  thread_.join();
}

void IoLoop::run(std::function<void()> task) { asio::post(*context_, std::move(task)); }

void IoLoop::finish(std::function<void()> last) {
  if (!work_.owns_work()) return;
  try {
    run(std::move(last));
  } catch (const std::bad_alloc&) {
    context_->stop();  // Nobody else cancels what would not end by itself.
  }
  work_.reset();
  thread_.join();
}

void LineLimit::log(LogLevel level, const std::string& message) {
  if (left_ == 0) return;
  --left_;
  logger_->log(level, left_ > 0 ? "channel: " + message
                                : "channel: " + message + " (the last line about this channel)");
}

}  // namespace kvc
