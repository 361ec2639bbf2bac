#include "connector/load_pipeline.h"

#include <algorithm>
#include <chrono>

namespace kvc {
namespace {

/// Of the load deadline, the part that promises may use. The rest is for a store that slows down.
constexpr int kBudgetShare = 2;

}  // namespace

std::shared_ptr<LoadRun> LoadPipeline::begin(std::vector<PageTask> tasks, StreamHandle stream) {
  end();
  auto run =
      std::make_shared<LoadRun>(parts_, speed_, std::move(tasks), stream, batch_blocks_, budget_);
  (void)replace(run);
  return run;
}

void LoadPipeline::end() noexcept {
  if (const std::shared_ptr<LoadRun> before = replace(nullptr)) before->cancel();
}

std::shared_ptr<LoadRun> LoadPipeline::replace(std::shared_ptr<LoadRun> with) noexcept {
  const std::shared_ptr<LoadRun> begun = with;
  bool closed = false;
  {
    const MutexLock lock(mutex_);
    std::swap(run_, with);
    closed = closed_;
  }
  if (closed && begun != nullptr) begun->cancel();
  return with;
}

bool LoadPipeline::close(Deadline deadline) {
  std::shared_ptr<LoadRun> run;
  {
    const MutexLock lock(mutex_);
    closed_ = true;
    run = run_;
  }
  if (run == nullptr) return true;
  run->cancel();
  return run->wait_until_idle(deadline);
}

std::size_t LoadPipeline::budget_blocks() const {
  const double seconds = std::chrono::duration<double>(budget_ / kBudgetShare).count();
  const double bytes = seconds * static_cast<double>(speed_->bytes_per_second());
  const double blocks = bytes / static_cast<double>(parts_.shards.page_bytes);
  return std::max<std::size_t>(static_cast<std::size_t>(blocks), 1);
}

}  // namespace kvc
