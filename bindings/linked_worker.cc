#include "bindings/linked_worker.h"

#include <string>
#include <utility>

namespace kvc::bindings {

LinkedWorker::LinkedWorker(std::unique_ptr<Worker> worker, const WorkerOptions& options,
                           std::shared_ptr<Logger> logger)
    : worker_(std::move(worker)),
      options_{.rank = options.rank, .world_size = options.world_size},
      logger_(std::move(logger)) {}

LinkedWorker::~LinkedWorker() {
  if (const std::shared_ptr<ChannelClient> linked = client()) linked->close();
}

std::shared_ptr<ChannelClient> LinkedWorker::client() const {
  const MutexLock lock(mutex_);
  return client_;
}

Status LinkedWorker::register_layout(const Fingerprint& keyspace, const PagedLayout& layout) {
  Status status = worker_->register_layout(keyspace, layout);
  std::shared_ptr<StageRank> rank = status.ok() ? worker_->stage_rank() : nullptr;
  // Rank 0 shares the process of its leader.
  if (rank == nullptr || options_.rank == 0) return status;
  Result<std::unique_ptr<ChannelClient>> made =
      ChannelClient::create(options_, keyspace, std::move(rank), logger_);
  if (!made.ok()) return made.status();
  const MutexLock lock(mutex_);
  client_ = std::move(made).value();
  return status;
}

void LinkedWorker::bind(StepPlan plan) {
  const std::shared_ptr<ChannelClient> linked = plan.rendezvous.empty() ? nullptr : client();
  if (linked != nullptr) {
    const Status status = linked->meet(plan.rendezvous);
    if (!status.ok() && !std::exchange(told_, true)) {
      logger_->log(LogLevel::kWarning,
                   "this rank cannot take orders of its leader, nothing will be promised: " +
                       status.to_string());
    }
  }
  worker_->bind(std::move(plan));
}

void LinkedWorker::close(Deadline deadline) {
  if (const std::shared_ptr<ChannelClient> linked = client()) linked->close();
  worker_->close(deadline);
}

ChannelClientStats LinkedWorker::channel_stats() const {
  const std::shared_ptr<ChannelClient> linked = client();
  return linked == nullptr ? ChannelClientStats{} : linked->stats();
}

}  // namespace kvc::bindings
