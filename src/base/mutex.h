// The mutex of this project: std::mutex with clang's thread-safety annotations, so that a member
// touched without its lock does not compile under clang.
#pragma once

#include <condition_variable>
#include <mutex>

#include "base/thread_annotations.h"
#include "kvc/clock.h"

namespace kvc {

class KVC_CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void lock() KVC_ACQUIRE() { mutex_.lock(); }
  void unlock() KVC_RELEASE() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

/// Holds a mutex for the rest of a scope.
class KVC_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) KVC_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() KVC_RELEASE() { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

/// A condition variable on a kvc::Mutex. Wakes up without reason too: wait in a loop.
class CondVar {
 public:
  CondVar() = default;
  CondVar(const CondVar&) = delete;
  CondVar& operator=(const CondVar&) = delete;

  void wait(Mutex& mutex) KVC_REQUIRES(mutex) KVC_NO_THREAD_SAFETY_ANALYSIS {
    std::unique_lock<std::mutex> held(mutex.mutex_, std::adopt_lock);
    condition_.wait(held);
    held.release();
  }

  /// False if `until` passed without a notification. Instant::max() waits for ever.
  bool wait_until(Mutex& mutex, Instant until) KVC_REQUIRES(mutex) KVC_NO_THREAD_SAFETY_ANALYSIS {
    std::unique_lock<std::mutex> held(mutex.mutex_, std::adopt_lock);
    bool notified = true;
    if (until == Instant::max()) {
      condition_.wait(held);
    } else {
      notified = condition_.wait_until(held, until) == std::cv_status::no_timeout;
    }
    held.release();
    return notified;
  }

  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace kvc
