// This process.
#pragma once

#include <cstdint>

namespace kvc {

/// The system's number of this process. Changes in a forked child.
std::int64_t process_id();

/// When this process exits, it skips the exit handlers that are registered by now (destructors of
/// static objects among them), and keeps its exit status. For the case that a library's own handler
/// would pull memory from under a thread that is stuck in it.
void skip_registered_exit_handlers();

/// From now on a thread that is ended from outside while it is inside C++ that cannot be unwound
/// waits for the end of the process, where it would abort it. An interpreter that is being torn
/// down ends its daemon threads so. Called by the thread that ends the process, which is exempt.
void park_threads_that_are_unwound();

/// The calling thread waits for the end of the process, and does nothing else any more. Nobody who
/// joins it (os/thread.h) waits for it.
[[noreturn]] void wait_for_end_of_process();

}  // namespace kvc
