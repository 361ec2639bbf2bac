#include "testing/steppable_executor.h"

#include <utility>

namespace kvc::testlib {

bool SteppableExecutor::submit(std::function<void()> task) {
  const MutexLock lock(mutex_);
  if (refusing_ || tasks_.size() >= queue_limit_) return false;
  tasks_.push_back(std::move(task));
  return true;
}

std::size_t SteppableExecutor::pending() const {
  const MutexLock lock(mutex_);
  return tasks_.size();
}

bool SteppableExecutor::step_at(std::size_t ahead) {
  std::function<void()> task;
  {
    const MutexLock lock(mutex_);
    if (ahead >= tasks_.size()) return false;
    const auto at = tasks_.begin() + static_cast<std::ptrdiff_t>(ahead);
    task = std::move(*at);
    tasks_.erase(at);
  }
  task();
  return true;
}

std::size_t SteppableExecutor::run_all(std::size_t limit) {
  std::size_t ran = 0;
  while (ran < limit && step()) ++ran;
  return ran;
}

void SteppableExecutor::refuse() {
  const MutexLock lock(mutex_);
  refusing_ = true;
}

}  // namespace kvc::testlib
