// A thread that does something every so often.
#pragma once

#include <functional>
#include <memory>
#include <stop_token>
#include <string>

#include "base/mutex.h"
#include "kvc/clock.h"
#include "kvc/result.h"
#include "os/thread.h"

namespace kvc {

/// The destructor waits for a call that is under way, which is asked to stop; none begins after it.
class Ticker {
 public:
  using Tick = std::function<void(const std::stop_token& stop)>;

  /// Calls `tick`, which must not throw, one `interval` after the start and one after each call.
  static Result<std::unique_ptr<Ticker>> start(const std::string& name, Duration interval,
                                               Tick tick);
  ~Ticker();
  Ticker(const Ticker&) = delete;
  Ticker& operator=(const Ticker&) = delete;

 private:
  Ticker() = default;
  void run(Duration interval, const Tick& tick);
  /// False once it is time to end.
  bool wait(Duration interval) KVC_EXCLUDES(mutex_);

  const std::shared_ptr<const Clock> clock_ = system_clock();
  Mutex mutex_;
  CondVar changed_;
  std::stop_source ending_;
  Thread thread_;
};

}  // namespace kvc
