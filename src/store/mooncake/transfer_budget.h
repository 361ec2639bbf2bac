// How much one process may have in flight to a Mooncake Store.
//
// A Mooncake client loses transfers, or stalls a minute, once more than about 2048 buffers are
// under way to one peer, counted over all threads and clients of the process. So all stores of a
// process share one budget.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "base/mutex.h"
#include "kvc/clock.h"

namespace kvc {

struct TransferBudgetLimits {
  std::size_t buffers = 1000;
  std::size_t bytes = std::size_t{512} << 20;
};

/// Safe to use from any thread. Served in order of arrival, so that a large request is not
/// overtaken for ever by small ones.
class TransferBudget {
 public:
  explicit TransferBudget(TransferBudgetLimits limits = {}) : limits_(limits) {}

  /// What was granted; gives it back when it ends. Empty if the deadline came first.
  class Grant {
   public:
    Grant() = default;
    Grant(Grant&& other) noexcept;
    Grant& operator=(Grant&&) = delete;
    ~Grant();
    explicit operator bool() const { return budget_ != nullptr; }

   private:
    friend class TransferBudget;
    Grant(TransferBudget* budget, std::size_t buffers, std::size_t bytes)
        : budget_(budget), buffers_(buffers), bytes_(bytes) {}

    TransferBudget* budget_ = nullptr;
    std::size_t buffers_ = 0;
    std::size_t bytes_ = 0;
  };

  /// Waits for room until `deadline`. A request above the limits is granted alone.
  [[nodiscard]] Grant acquire(std::size_t buffers, std::size_t bytes, Deadline deadline,
                              const Clock& clock);

  const TransferBudgetLimits& limits() const { return limits_; }
  std::size_t buffers_in_flight() const;

 private:
  bool fits(std::size_t buffers, std::size_t bytes) const KVC_REQUIRES(mutex_);
  void give_back(std::size_t buffers, std::size_t bytes);

  const TransferBudgetLimits limits_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::size_t buffers_ KVC_GUARDED_BY(mutex_) = 0;
  std::size_t bytes_ KVC_GUARDED_BY(mutex_) = 0;
  std::deque<std::uint64_t> queue_ KVC_GUARDED_BY(mutex_);  // tickets of those who wait
  std::uint64_t next_ticket_ KVC_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvc
