// A worker together with its way to the leader of staged promises: what a process that runs one
// rank needs for both kinds of promises.
//
//   auto worker = LinkedWorker::create(options, parts);
//   (*worker)->register_layout(keyspace, layout);
//   each step: (*worker)->bind(plan), then core().load(), the forward pass, core().save()
//
// Rank 0 lives in the process of its scheduler, which is given this object
// (LinkedSchedulerParts::worker). Any other rank connects to the leader that its plans name, in the
// background, and again after a lost connection; until then nothing is promised. Without
// WorkerOptions::staged this is a Worker and nothing else.
//
// Threads: as of Worker. register_layout() and bind() come from one thread at a time, stats and
// close() from any; a rank that connects has one thread of its own (kvc/channel.h). After a fork
// the child must leave the object alone, its destructor included.
// Lifetime: what the parts name lives as long as this object needs it. The pages of the layout must
// outlive it. The way to the leader ends before the worker does.
// Claims and their tests: docs/contract/channel.md.
#pragma once

#include <cstdint>
#include <memory>

#include "kvc/channel.h"
#include "kvc/worker.h"

namespace kvc {

class LinkedWorker {
 public:
  /// Fails as Worker::create() does. `heartbeat`: that of the scheduler.
  static Result<std::shared_ptr<LinkedWorker>> create(const WorkerOptions& options,
                                                      WorkerParts parts,
                                                      ChannelHeartbeat heartbeat = {});
  /// Like close() with the worker's own deadline.
  ~LinkedWorker();
  LinkedWorker(const LinkedWorker&) = delete;
  LinkedWorker& operator=(const LinkedWorker&) = delete;

  /// For all that is not below. Its register_layout(), bind() and close() are not to be called:
  /// they know nothing of the leader.
  Worker& core() { return *worker_; }
  const Worker& core() const { return *worker_; }

  /// As Worker::register_layout(). kInvalid too for a rank or world size that no channel has.
  Status register_layout(const Fingerprint& keyspace, const PagedLayout& layout);
  /// As Worker::bind(), and connects to the leader that the plan names. Waits for no connection. A
  /// leader that cannot be met is logged once, and costs promises alone.
  void bind(StepPlan plan);
  /// Leaves the leader, then as Worker::close().
  void close(Deadline deadline);

  /// Zeros on rank 0, unless `staged`, and before register_layout().
  ChannelClientStats channel_stats() const;

 private:
  class Link;
  LinkedWorker(std::unique_ptr<Worker> worker, std::unique_ptr<Link> link);

  // The link ends first.
  const std::unique_ptr<Worker> worker_;
  const std::unique_ptr<Link> link_;
};

}  // namespace kvc
