#include "kvc/linked_worker.h"

#include <exception>
#include <string>
#include <utility>

#include "base/mutex.h"

namespace kvc {

/// The way to the leader, of a rank that takes orders from elsewhere.
class LinkedWorker::Link {
 public:
  Link(const ChannelClientOptions& options, std::shared_ptr<Logger> logger)
      : options_(options), logger_(std::move(logger)) {}

  Status open(const Fingerprint& keyspace, std::shared_ptr<StageRank> rank) {
    // Rank 0 shares the process of its leader.
    if (rank == nullptr || options_.rank == 0) return {};
    Result<std::unique_ptr<ChannelClient>> made =
        ChannelClient::create(options_, keyspace, std::move(rank), logger_);
    if (!made.ok()) return made.status();
    const MutexLock lock(mutex_);
    client_ = std::move(made).value();
    return {};
  }
  /// Never throws: the plan that names the leader is to be bound whatever becomes of this.
  void meet(const std::string& rendezvous) noexcept {
    const std::shared_ptr<ChannelClient> linked = rendezvous.empty() ? nullptr : client();
    if (linked == nullptr) return;
    try {
      const Status status = linked->meet(rendezvous);
      if (!status.ok() && !std::exchange(told_, true)) {
        logger_->log(LogLevel::kWarning,
                     "this rank cannot take orders of its leader, nothing will be promised: " +
                         status.to_string());
      }
    } catch (const std::exception&) {
      return;  // The next plan names it again, as long as this rank is not connected.
    }
  }
  void close() const {
    if (const std::shared_ptr<ChannelClient> linked = client()) linked->close();
  }
  ChannelClientStats stats() const {
    const std::shared_ptr<ChannelClient> linked = client();
    return linked == nullptr ? ChannelClientStats{} : linked->stats();
  }

 private:
  std::shared_ptr<ChannelClient> client() const KVC_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    return client_;
  }

  const ChannelClientOptions options_;
  const std::shared_ptr<Logger> logger_;
  bool told_ = false;  // The engine's thread only.
  mutable Mutex mutex_;
  std::shared_ptr<ChannelClient> client_ KVC_GUARDED_BY(mutex_);
};

Result<std::shared_ptr<LinkedWorker>> LinkedWorker::create(const WorkerOptions& options,
                                                           WorkerParts parts,
                                                           ChannelHeartbeat heartbeat) {
  auto link = std::make_unique<Link>(
      ChannelClientOptions{
          .rank = options.rank, .world_size = options.world_size, .heartbeat = heartbeat},
      parts.logger);
  Result<std::unique_ptr<Worker>> made = Worker::create(options, std::move(parts));
  if (!made.ok()) return made.status();
  return std::shared_ptr<LinkedWorker>(new LinkedWorker(std::move(made).value(), std::move(link)));
}

LinkedWorker::LinkedWorker(std::unique_ptr<Worker> worker, std::unique_ptr<Link> link)
    : worker_(std::move(worker)), link_(std::move(link)) {}

LinkedWorker::~LinkedWorker() { link_->close(); }

Status LinkedWorker::register_layout(const Fingerprint& keyspace, const PagedLayout& layout) {
  Status status = worker_->register_layout(keyspace, layout);
  return status.ok() ? link_->open(keyspace, worker_->stage_rank()) : status;
}

void LinkedWorker::bind(StepPlan plan) {
  link_->meet(plan.rendezvous);
  worker_->bind(std::move(plan));
}

void LinkedWorker::close(Deadline deadline) {
  link_->close();
  worker_->close(deadline);
}

ChannelClientStats LinkedWorker::channel_stats() const { return link_->stats(); }

}  // namespace kvc
