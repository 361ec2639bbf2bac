#include "connector/staging.h"

#include <algorithm>
#include <exception>
#include <string>

namespace kvc {

namespace {

/// So short that its string takes no memory.
constexpr const char* kStillUsed = "still in use";

/// A call that broke off may have done its work, as one that was not answered.
Status register_with(Store& store, std::span<std::byte> memory) {
  try {
    return store.register_memory(memory);
  } catch (const std::exception&) {
    return {Code::kTimedOut, "it broke off"};
  }
}

}  // namespace

Result<std::shared_ptr<StagingArea>> StagingArea::create(std::size_t bytes, PageCopier& copier,
                                                         Store& store) {
  Result<std::unique_ptr<StagingMemory>> allocated = copier.allocate_staging(bytes);
  if (!allocated.ok()) return allocated.status();
  // Before it is registered: from then on the memory must not be lost sight of.
  auto area = std::make_shared<StagingArea>(std::move(allocated).value());
  const Status status = register_with(store, area->bytes());
  if (status.ok()) return area;
  // An unanswered registration may still come about.
  if (status.code() == Code::kTimedOut) area->memory_->abandon();
  return Status(Code::kUnavailable, "the store did not take " + std::to_string(bytes) +
                                        " bytes of staging memory: " + status.message());
}

Status StagingArea::close(Store& store, bool idle) noexcept {
  if (!idle) {
    memory_->abandon();
    return {Code::kTimedOut, kStillUsed};
  }
  try {
    Status status = store.unregister_memory(memory_->bytes());
    if (!status.ok()) memory_->abandon();
    return status;
  } catch (const std::exception&) {
    memory_->abandon();
    return {Code::kTimedOut, kStillUsed};
  }
}

StagingPage::~StagingPage() {
  if (pool_ == nullptr) return;
  if (page_ == nullptr) {
    pool_->give_back(bytes_);
  } else {
    page_.reset();
    pool_->end_claim();
  }
}

StagingPool::StagingPool(std::shared_ptr<StagingArea> area, std::span<std::byte> memory,
                         std::size_t page_bytes, std::size_t save_limit)
    : area_(std::move(area)),
      capacity_(page_bytes == 0 ? 0 : memory.size() / page_bytes),
      save_limit_(save_limit) {
  const MutexLock lock(mutex_);
  free_.reserve(capacity_);
  // The first page is lent first, and again as soon as it is back: few pages stay warm.
  for (std::size_t i = capacity_; i > 0; --i) {
    free_.push_back(memory.subspan((i - 1) * page_bytes, page_bytes));
  }
}

StagingLease StagingPool::borrow(Use use) {
  auto page = std::make_shared<StagingPage>();
  auto claim = use == Use::kSave ? std::make_shared<StagingPage>() : nullptr;
  std::shared_ptr<StagingPool> self = shared_from_this();
  const MutexLock lock(mutex_);
  if (available_locked(use) == 0) return nullptr;
  page->bytes_ = free_.back();
  free_.pop_back();
  page->pool_ = self;
  if (claim == nullptr) return page;
  claim->bytes_ = page->bytes_;
  claim->page_ = std::move(page);
  claim->pool_ = std::move(self);
  ++lent_to_saves_;
  return claim;
}

std::size_t StagingPool::available_locked(Use use) const {
  if (use == Use::kLoad) return free_.size();
  return std::min(free_.size(), save_limit_ - std::min(save_limit_, lent_to_saves_));
}

std::size_t StagingPool::available(Use use) const {
  const MutexLock lock(mutex_);
  return available_locked(use);
}

bool StagingPool::may_borrow(Use use) const {
  const MutexLock lock(mutex_);
  return use == Use::kLoad || lent_to_saves_ < save_limit_;
}

StagingPool::Claims StagingPool::claims() const {
  const MutexLock lock(mutex_);
  return {.open = lent_to_saves_, .ended = claims_ended_};
}

std::size_t StagingPool::lent() const {
  const MutexLock lock(mutex_);
  return capacity_ - free_.size();
}

void StagingPool::give_back(std::span<std::byte> page) {
  const MutexLock lock(mutex_);
  free_.push_back(page);
}

void StagingPool::end_claim() {
  const MutexLock lock(mutex_);
  --lent_to_saves_;
  ++claims_ended_;
}

}  // namespace kvc
