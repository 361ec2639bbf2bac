#include "os/ticker.h"

#include <utility>

namespace kvc {

Result<std::unique_ptr<Ticker>> Ticker::start(const std::string& name, Duration interval,
                                              Tick tick) {
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
    ending_.request_stop();
    changed_.notify_all();
  }
  thread_.join();
}

void Ticker::run(Duration interval, const Tick& tick) {
  const std::stop_token stop = ending_.get_token();
  while (wait(interval)) tick(stop);
}

bool Ticker::wait(Duration interval) {
  const Instant until = clock_->now() + interval;
  const MutexLock lock(mutex_);
  while (!ending_.stop_requested() && clock_->now() < until) changed_.wait_until(mutex_, until);
  return !ending_.stop_requested();
}

}  // namespace kvc
