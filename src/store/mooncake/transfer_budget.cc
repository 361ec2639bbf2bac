#include "store/mooncake/transfer_budget.h"

#include <algorithm>
#include <utility>

namespace kvc {

TransferBudget::Grant::Grant(Grant&& other) noexcept
    : budget_(std::exchange(other.budget_, nullptr)),
      buffers_(other.buffers_),
      bytes_(other.bytes_) {}

TransferBudget::Grant::~Grant() {
  if (budget_ != nullptr) budget_->give_back(buffers_, bytes_);
}

bool TransferBudget::fits(std::size_t buffers, std::size_t bytes) const {
  return buffers_ + buffers <= limits_.buffers && bytes_ + bytes <= limits_.bytes;
}

TransferBudget::Grant TransferBudget::acquire(std::size_t buffers, std::size_t bytes,
                                              Deadline deadline, const Clock& clock) {
  buffers = std::min(buffers, limits_.buffers);
  bytes = std::min(bytes, limits_.bytes);
  const MutexLock lock(mutex_);
  const std::uint64_t ticket = next_ticket_++;
  queue_.push_back(ticket);
  bool served = queue_.front() == ticket && fits(buffers, bytes);
  while (!served && !deadline.passed(clock)) {
    changed_.wait_until(mutex_, deadline.at);
    served = queue_.front() == ticket && fits(buffers, bytes);
  }
  queue_.erase(std::find(queue_.begin(), queue_.end(), ticket));
  changed_.notify_all();
  if (!served) return {};
  buffers_ += buffers;
  bytes_ += bytes;
  return {this, buffers, bytes};
}

void TransferBudget::give_back(std::size_t buffers, std::size_t bytes) {
  const MutexLock lock(mutex_);
  buffers_ -= buffers;
  bytes_ -= bytes;
  changed_.notify_all();
}

std::size_t TransferBudget::buffers_in_flight() const {
  const MutexLock lock(mutex_);
  return buffers_;
}

}  // namespace kvc
