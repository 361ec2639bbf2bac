// A thread that does something every so often.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/mutex.h"
#include "kvc/clock.h"
#include "kvc/result.h"
#include "os/thread.h"

namespace kvc {

/// The destructor waits for a call that is under way; none begins after it.
class Ticker {
 public:
  /// Calls `tick`, which must not throw, one `interval` after the start and one after each call.
  static Result<std::unique_ptr<Ticker>> start(const std::string& name, Duration interval,
                                               std::function<void()> tick);
  ~Ticker();
  Ticker(const Ticker&) = delete;
  Ticker& operator=(const Ticker&) = delete;

 private:
  Ticker() = default;
  void run(Duration interval, const std::function<void()>& tick);
  /// False once it is time to end.
  bool wait(Duration interval) KVC_EXCLUDES(mutex_);

  const std::shared_ptr<const Clock> clock_ = system_clock();
  Mutex mutex_;
  CondVar changed_;
  bool ending_ KVC_GUARDED_BY(mutex_) = false;
  Thread thread_;
};

}  // namespace kvc
