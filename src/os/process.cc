#include "os/process.h"

#include <pthread.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>

#include "os/thread.h"

namespace kvc {

std::int64_t process_id() { return ::getpid(); }

void park_threads_that_are_unwound() {
  static const pthread_t ending = ::pthread_self();
  static const std::terminate_handler before = std::get_terminate();
  std::set_terminate([] {
    // A thread that is unwound from outside has no exception.
    const bool unwound = std::current_exception() == nullptr;
    if (unwound && ::pthread_equal(::pthread_self(), ending) == 0) wait_for_end_of_process();
    before();
  });
}

void skip_registered_exit_handlers() {
  // Handlers run in reverse order, and this kind is told the status.
  ::on_exit(
      [](int status, void* /*unused*/) {
        std::fflush(nullptr);
        ::_exit(status);
      },
      nullptr);
}

void wait_for_end_of_process() {
  Thread::the_current_never_ends();
  while (true) ::pause();
}

}  // namespace kvc
