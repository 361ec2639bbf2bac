#include "store/call_gate.h"

#include "base/check.h"

namespace kvc {

bool CallGate::enter() {
  const MutexLock lock(mutex_);
  if (shut_) return false;
  ++inside_;
  return true;
}

bool CallGate::leave() {
  const MutexLock lock(mutex_);
  KVC_CHECK(inside_ > 0, "a call left the gate without having entered");
  if (--inside_ > 0 || !shut_) return false;
  if (waiting_ > 0) {
    emptied_.notify_all();
    return false;
  }
  if (told_) return false;
  told_ = true;
  return true;
}

bool CallGate::shut(Deadline deadline, const Clock& clock) {
  const MutexLock lock(mutex_);
  shut_ = true;
  ++waiting_;
  while (inside_ > 0 && !deadline.passed(clock)) emptied_.wait_until(mutex_, deadline.at);
  --waiting_;
  if (inside_ > 0 || told_) return false;
  told_ = true;
  return true;
}

bool CallGate::is_shut() const {
  const MutexLock lock(mutex_);
  return shut_;
}

}  // namespace kvc
