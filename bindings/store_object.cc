#include "bindings/store_object.h"

#include "kvc/result.h"
#include "os/thread.h"

namespace kvc::bindings {

GuardedStoreObject::~GuardedStoreObject() {
  if (executors.empty()) return;  // moved from
  if (counters->abandoned_now.load() > 0 && shared() != nullptr) {
    // A thread of its own waits for them and then ends the others.
    Result<Thread> reaper =
        Thread::start("kvc-reaper", [store = shared(), calls = executors]() mutable {
          store.reset();
          calls.clear();
        });
    if (reaper.ok()) {
      reaper->detach();
    } else {
      disown();
    }
  }
  const GilRelease release;
  executors.clear();
}

}  // namespace kvc::bindings
