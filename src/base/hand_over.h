// Tasks for an executor, where nothing may be thrown: what cannot be handed over is not taken.
#pragma once

#include <utility>

#include "kvc/executor.h"

namespace kvc {

/// False if `task` was not taken and never runs, whatever the reason: the executor is full, stops,
/// or there is no memory to write the task down.
template <typename Task>
[[nodiscard]] bool hand_over(Executor& executor, Task task) noexcept {
  try {
    return executor.submit(std::move(task));
  } catch (...) {
    return false;
  }
}

}  // namespace kvc
