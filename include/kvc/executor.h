// Where background work runs. Production uses a pool of threads; tests use an executor that they
// step by hand, so that interleavings are made and not waited for.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

namespace kvc {

/// Runs tasks later, possibly in parallel. Safe to call from any thread.
class Executor {
 public:
  virtual ~Executor() = default;

  /// Takes `task` to run it once. False if the executor is full or stopping: then `task` was not
  /// taken and never runs. A task must not throw.
  [[nodiscard]] virtual bool submit(std::function<void()> task) = 0;
};

struct ThreadPoolOptions {
  std::string name = "kvc";        ///< Prefix of the thread names, at most 11 characters are kept.
  std::size_t threads = 1;         ///< Started on first need, never more than this.
  std::size_t queue_limit = 1024;  ///< Tasks that may wait; one more is refused.
  /// How far the threads yield to those of the process that compete with them for a core, in steps
  /// of nice(2). Where the system sets priorities for whole processes only, or refuses: 0.
  int niceness = 0;
};

/// A pool of threads. Its destructor refuses new tasks, lets queued ones run and joins.
std::unique_ptr<Executor> make_thread_pool(ThreadPoolOptions options);

}  // namespace kvc
