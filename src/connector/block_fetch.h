// One batched get into staging pages, which an executor may run ahead of the thread that wants it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "connector/staging.h"
#include "kvc/clock.h"
#include "kvc/store.h"

namespace kvc {

/// run() and finish() may meet on two threads; everything else belongs to the thread that finishes,
/// or that runs where nobody else does.
class BlockFetch {
 public:
  struct Item {
    std::size_t wanted = 0;  ///< Whatever the caller counts by, as is `part`.
    std::uint32_t part = 0;
    std::string key;
    StagingLease page;
    std::size_t object_bytes = 0;
  };

  /// `store` is kept until the call is over.
  BlockFetch(std::shared_ptr<Store> store, std::vector<Item> items, Deadline deadline);

  /// Does the get unless somebody else has begun it. Does not throw.
  void run();

  /// Runs the get here if nobody has begun it, else waits for it until the deadline. True: run() is
  /// over. False: given up; the pages stay lent until the call ends.
  bool finish(const Clock& clock);

  /// Not after release_pages().
  const std::vector<Item>& items() const { return items_; }
  /// One per item. A store that answered in another number counts as down. REQUIRES: run()
  /// is over.
  const std::vector<GetResult>& results() const { return results_; }

  /// Gets some items once more, on this thread. REQUIRES: run() is over.
  void fetch_again(const std::vector<std::size_t>& which);

  /// Gives the pages back, although the executor may hold on to this object for a while. REQUIRES:
  /// run() is over.
  void release_pages() { items_.clear(); }

 private:
  enum class Phase { kIdle, kRunning, kDone };

  std::vector<GetResult> get(const std::vector<std::size_t>& which) const;

  const std::shared_ptr<Store> store_;
  std::vector<Item> items_;
  const Deadline deadline_;
  std::vector<GetResult> results_;  // Written by run(), then by the finishing thread alone.
  Mutex mutex_;
  CondVar done_;
  Phase phase_ KVC_GUARDED_BY(mutex_) = Phase::kIdle;
};

}  // namespace kvc
