// Staging memory: one piece, registered with the store once, cut into pages that are lent out.
//
// A lent page comes back when its last holder lets go. A store that has given up a call keeps the
// call's hold, so the pages of that call are in quarantine until the transfer is provably over.
// A page that a save has filled may be shared with others, who keep it beyond the save.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "kvc/device.h"
#include "kvc/store.h"

namespace kvc {

/// The memory and its registration. REQUIRES: close() before the store is closed.
class StagingArea {
 public:
  /// kExhausted without memory; kUnavailable if the store does not take it.
  static Result<std::shared_ptr<StagingArea>> create(std::size_t bytes, PageCopier& copier,
                                                     Store& store);

  explicit StagingArea(std::unique_ptr<StagingMemory> memory) : memory_(std::move(memory)) {}

  std::span<std::byte> bytes() const { return memory_->bytes(); }

  /// Ends the registration if the memory is `idle`; it is freed with the last page. Memory
  /// that a call may still use, or that the store does not let go of, stays allocated for good: its
  /// address must not be given to anybody else. Once.
  Status close(Store& store, bool idle) noexcept;

 private:
  std::unique_ptr<StagingMemory> memory_;
};

class StagingPool;
class StagingPage;

using StagingLease = std::shared_ptr<StagingPage>;

/// A page on loan.
class StagingPage {
 public:
  StagingPage() = default;
  StagingPage(const StagingPage&) = delete;
  StagingPage& operator=(const StagingPage&) = delete;
  ~StagingPage();

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  friend class StagingPool;
  friend StagingLease without_claim(const StagingLease& lease);
  std::shared_ptr<StagingPool> pool_;
  std::span<std::byte> bytes_;
  StagingLease page_;  // Of a loan to a save: the page, this object being the save's claim to it.
};

/// The same page, without counting as lent to a save.
inline StagingLease without_claim(const StagingLease& lease) {
  return lease->page_ == nullptr ? lease : lease->page_;
}

/// Safe to use from any thread.
class StagingPool : public std::enable_shared_from_this<StagingPool> {
 public:
  /// Who borrows. Saves have a limit of their own, so that pages are left for loads.
  enum class Use { kLoad, kSave };

  /// Cuts `memory`, a part of `area`, into pages of `page_bytes`. At most `save_limit` of them are
  /// lent to saves at a time.
  StagingPool(std::shared_ptr<StagingArea> area, std::span<std::byte> memory,
              std::size_t page_bytes, std::size_t save_limit);

  /// Null if no page is free for this use.
  StagingLease borrow(Use use);
  /// Pages that borrow() would give now.
  std::size_t available(Use use) const;
  /// Whether borrow() would give a page if enough of them were free.
  bool may_borrow(Use use) const;
  std::size_t capacity() const { return capacity_; }
  /// Loans to saves: those that there are, and those that have ended, each with its page let go of
  /// before it is counted.
  struct Claims {
    std::size_t open = 0;
    std::uint64_t ended = 0;
  };
  Claims claims() const;
  /// Pages on loan, those in quarantine included.
  std::size_t lent() const;

 private:
  friend class StagingPage;
  std::size_t available_locked(Use use) const KVC_REQUIRES(mutex_);
  void give_back(std::span<std::byte> page);
  void end_claim();

  const std::shared_ptr<StagingArea> area_;
  const std::size_t capacity_;
  const std::size_t save_limit_;
  mutable Mutex mutex_;
  std::vector<std::span<std::byte>> free_ KVC_GUARDED_BY(mutex_);  // Never grows past capacity_.
  std::size_t lent_to_saves_ KVC_GUARDED_BY(mutex_) = 0;
  std::uint64_t claims_ended_ KVC_GUARDED_BY(mutex_) = 0;
};

/// A hold for one store call on the pages that it uses.
inline BufferHold hold_pages(std::vector<StagingLease> pages) {
  return std::make_shared<const std::vector<StagingLease>>(std::move(pages));
}

}  // namespace kvc
