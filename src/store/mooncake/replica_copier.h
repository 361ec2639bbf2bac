// More copies of objects that are stored, by the store's own copy tasks.
//
// Why not by putting the object once more: a put of a taken key changes nothing, an upsert of the
// same size writes over the copies that there are (unreadable meanwhile, and no more of them than
// before), and removing first breaks what other engines have been promised. A copy task leaves the
// object readable, passes no bytes through this process, and adds its copy when it is complete.
//
//   1. ask how many copies each object has; those with enough are done
//   2. ask the master's admin pages for the storage processes (remembered for a while)
//   3. per object that needs more: a task for the process with the most room that has no copy yet
//   4. ask again, ever more seldom, until the copies are there or the time is over
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "kvc/clock.h"
#include "kvc/log.h"
#include "kvc/store.h"
#include "store/mooncake/mooncake_client.h"

namespace kvc {

/// Safe to use from any thread.
class ReplicaCopier {
 public:
  ReplicaCopier(std::shared_ptr<MooncakeClient> client, std::shared_ptr<const Clock> clock,
                std::shared_ptr<Logger> logger);

  /// As Store::replicate. Keys are not empty and distinct.
  std::vector<Reaction> replicate(const std::vector<ReplicaItem>& items, Deadline deadline);

  /// Calls inside return soon, later ones at once.
  void stop();

 private:
  struct Wanted {
    std::size_t item = 0;
    std::vector<MooncakeReplica> replicas;
  };

  /// Notes the items that are done; gives those that need more copies. False: no answer.
  bool ask(const std::vector<ReplicaItem>& items, const std::vector<std::size_t>& which,
           std::vector<Reaction>* reactions, std::vector<Wanted>* needy);
  void ask_whether_missing(const std::vector<ReplicaItem>& items,
                           const std::vector<std::size_t>& which, std::vector<Reaction>* reactions);
  std::vector<MooncakeSegment> segments() KVC_EXCLUDES(mutex_);
  void forget_segments() KVC_EXCLUDES(mutex_);
  void begin_tasks(const std::vector<ReplicaItem>& items, const std::vector<Wanted>& needy,
                   Deadline until, std::vector<std::size_t>* had, std::vector<Reaction>* reactions,
                   std::vector<std::size_t>* open);
  Reaction begin_task(const std::string& key, const std::vector<MooncakeReplica>& replicas,
                      std::vector<MooncakeSegment>* segments);
  bool pause(Duration length, Deadline deadline) KVC_EXCLUDES(mutex_);
  void tell(const std::string& why) KVC_EXCLUDES(mutex_);

  const std::shared_ptr<MooncakeClient> client_;
  const std::shared_ptr<const Clock> clock_;
  const std::shared_ptr<Logger> logger_;
  Mutex mutex_;
  CondVar stopping_;
  bool stopped_ KVC_GUARDED_BY(mutex_) = false;
  bool told_ KVC_GUARDED_BY(mutex_) = false;
  std::vector<MooncakeSegment> segments_ KVC_GUARDED_BY(mutex_);
  Instant segments_until_ KVC_GUARDED_BY(mutex_) = Instant::min();
};

}  // namespace kvc
