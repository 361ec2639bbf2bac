// Lets calls in until it is shut, and knows when the last of them has left.
#pragma once

#include <cstddef>

#include "base/mutex.h"
#include "kvc/clock.h"

namespace kvc {

/// Safe to use from any thread. After shut(), exactly one party learns that the gate is empty:
/// shut() itself if that happens in time, else the call that leaves last. That party may tear down
/// what the calls were using.
class CallGate {
 public:
  CallGate() = default;
  CallGate(const CallGate&) = delete;
  CallGate& operator=(const CallGate&) = delete;

  /// False once shut. Every true needs one leave().
  [[nodiscard]] bool enter();
  /// True if the gate was shut, shut() gave up waiting, and this was the last call inside.
  [[nodiscard]] bool leave();

  /// Refuses calls from now on and waits for those inside, at most until `deadline`. True if the
  /// gate is empty now and nobody was told so before. REQUIRES: the caller is not inside.
  [[nodiscard]] bool shut(Deadline deadline, const Clock& clock);

  bool is_shut() const;

 private:
  mutable Mutex mutex_;
  CondVar emptied_;
  std::size_t inside_ KVC_GUARDED_BY(mutex_) = 0;
  std::size_t waiting_ KVC_GUARDED_BY(mutex_) = 0;  // calls of shut() that have not given up
  bool shut_ KVC_GUARDED_BY(mutex_) = false;
  bool told_ KVC_GUARDED_BY(mutex_) = false;
};

}  // namespace kvc
