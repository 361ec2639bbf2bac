// A thread that is joined, with a name. The only way to make threads in this project.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "kvc/result.h"

namespace kvc {

/// Movable, not thread-safe. Joins in its destructor, so `body` must end on its own or have been
/// told to.
class Thread {
 public:
  /// Starts a thread that runs `body` once; `body` must not throw. At most 15 characters of `name`
  /// are shown by the system. kExhausted if the system gives no thread: then `body` never runs.
  static Result<Thread> start(const std::string& name, std::function<void()> body);

  Thread() = default;
  Thread(Thread&&) noexcept = default;
  Thread& operator=(Thread&& other) noexcept;
  ~Thread();

  /// Waits until the body has ended, or never will (the_current_never_ends()). Nothing happens if
  /// it was joined, moved from or detached.
  void join();
  /// Lets the thread run on alone. Whoever calls this answers for everything that `body` uses.
  void detach();
  /// Whether the caller runs on this thread.
  bool is_current() const;

  /// The calling thread, and no other, yields to others by so many steps more of nice(2). Without
  /// effect where the system refuses.
  static void yield_to_others(int niceness);

  /// The calling thread, if it is one of these, will do nothing any more: whoever joins it goes on
  /// without it, as if it were detached.
  static void the_current_never_ends();

 private:
  struct Ending;
  Thread(std::thread thread, std::shared_ptr<Ending> ending)
      : thread_(std::move(thread)), ending_(std::move(ending)) {}

  static thread_local Ending* current_;  // Of the calling thread; null if it is none of these.

  std::thread thread_;
  std::shared_ptr<Ending> ending_;
};

}  // namespace kvc
