#include "os/thread.h"

#include <pthread.h>
#include <sys/resource.h>

#include <system_error>
#include <utility>

#include "base/mutex.h"

namespace kvc {

/// How a thread stands to whoever joins it.
struct Thread::Ending {
  enum class State { kRunning, kEnded, kNeverEnds };

  void become(State next) {
    const MutexLock lock(mutex);
    state = next;
    changed.notify_all();
  }
  State wait() {
    const MutexLock lock(mutex);
    while (state == State::kRunning) changed.wait(mutex);
    return state;
  }

  Mutex mutex;
  CondVar changed;
  State state KVC_GUARDED_BY(mutex) = State::kRunning;
};

thread_local Thread::Ending* Thread::current_ = nullptr;

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
    auto ending = std::make_shared<Ending>();
    std::thread thread([shown = name.substr(0, kShownNameLength), held = std::move(body),
                        ending]() mutable noexcept {
      current_ = ending.get();
      run(shown, held);
      held = nullptr;  // What the body captured ends before the thread counts as over.
      ending->become(Ending::State::kEnded);
    });
    return Thread(std::move(thread), std::move(ending));
  } catch (const std::system_error& error) {
    return Status(Code::kExhausted, "cannot start thread '" + name + "': " + error.what());
  }
}

void Thread::yield_to_others(int niceness) {
  // On Linux 0 is the calling thread, not its process. An answer of -1 may be an error; then the
  // sum is a priority that any thread may take.
  const int now = ::getpriority(PRIO_PROCESS, 0);
  static_cast<void>(::setpriority(PRIO_PROCESS, 0, now + niceness));
}

void Thread::the_current_never_ends() {
  if (current_ != nullptr) current_->become(Ending::State::kNeverEnds);
}

Thread& Thread::operator=(Thread&& other) noexcept {
  if (this != &other) {
    join();
    thread_ = std::move(other.thread_);
    ending_ = std::move(other.ending_);
  }
  return *this;
}

Thread::~Thread() { join(); }

void Thread::join() {
  if (!thread_.joinable()) return;
  if (ending_->wait() == Ending::State::kEnded) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

void Thread::detach() {
  if (thread_.joinable()) thread_.detach();
}

bool Thread::is_current() const {
  return thread_.joinable() && thread_.get_id() == std::this_thread::get_id();
}

}  // namespace kvc
