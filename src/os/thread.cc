#include "os/thread.h"

#include <pthread.h>

#include <system_error>
#include <utility>

namespace kvc {
namespace {

constexpr std::size_t kShownNameLength = 15;

void run(const std::string& name, const std::function<void()>& body) noexcept {
  // Names are for people who look at the process; failing to set one is not worth a word.
  static_cast<void>(pthread_setname_np(pthread_self(), name.c_str()));
  body();
}

}  // namespace

Result<Thread> Thread::start(const std::string& name, std::function<void()> body) {
  try {
    return Thread(std::thread(
        [shown = name.substr(0, kShownNameLength), held = std::move(body)]() mutable noexcept {
          run(shown, held);
          held = nullptr;  // What the body captured ends before the thread counts as over.
        }));
  } catch (const std::system_error& error) {
    return Status(Code::kExhausted, "cannot start thread '" + name + "': " + error.what());
  }
}

Thread& Thread::operator=(Thread&& other) noexcept {
  if (this != &other) {
    join();
    thread_ = std::move(other.thread_);
  }
  return *this;
}

Thread::~Thread() { join(); }

void Thread::join() {
  if (thread_.joinable()) thread_.join();
}

void Thread::detach() {
  if (thread_.joinable()) thread_.detach();
}

bool Thread::is_current() const {
  return thread_.joinable() && thread_.get_id() == std::this_thread::get_id();
}

}  // namespace kvc
