#include "os/ticker.h"

#include <utility>

namespace kvc {

Result<std::unique_ptr<Ticker>> Ticker::start(const std::string& name, Duration interval,
                                              std::function<void()> tick) {
  std::unique_ptr<Ticker> ticker(new Ticker);
  Result<Thread> thread = Thread::start(
      name, [self = ticker.get(), interval, tick = std::move(tick)] { self->run(interval, tick); });
  if (!thread.ok()) return thread.status();
  ticker->thread_ = std::move(thread).value();
  return ticker;
}

Ticker::~Ticker() {
  {
    const MutexLock lock(mutex_);
    ending_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void Ticker::run(Duration interval, const std::function<void()>& tick) {
  while (wait(interval)) tick();
}

bool Ticker::wait(Duration interval) {
  const Instant until = clock_->now() + interval;
  const MutexLock lock(mutex_);
  while (!ending_ && clock_->now() < until) changed_.wait_until(mutex_, until);
  return !ending_;
}

}  // namespace kvc
