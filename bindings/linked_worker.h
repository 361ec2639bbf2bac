// A worker together with its way to the leader, where that is in another process or thread.
#pragma once

#include <cstdint>
#include <memory>

#include "base/mutex.h"
#include "kvc/channel.h"
#include "kvc/log.h"
#include "kvc/worker.h"

namespace kvc::bindings {

class LinkedWorker {
 public:
  LinkedWorker(std::unique_ptr<Worker> worker, const WorkerOptions& options,
               std::shared_ptr<Logger> logger);
  ~LinkedWorker();

  Worker& core() { return *worker_; }

  Status register_layout(const Fingerprint& keyspace, const PagedLayout& layout);
  /// Connects to the leader that the plan names, in the background, and binds the plan.
  void bind(StepPlan plan);
  void close(Deadline deadline);
  ChannelClientStats channel_stats() const;

 private:
  std::shared_ptr<ChannelClient> client() const KVC_EXCLUDES(mutex_);

  const std::unique_ptr<Worker> worker_;
  const ChannelClientOptions options_;
  const std::shared_ptr<Logger> logger_;
  bool told_ = false;  // The engine's thread only.
  mutable Mutex mutex_;
  // Of ranks that take orders from elsewhere.
  std::shared_ptr<ChannelClient> client_ KVC_GUARDED_BY(mutex_);
};

}  // namespace kvc::bindings
