#include "connector/block_fetch.h"

#include <numeric>
#include <utility>

namespace kvc {

BlockFetch::BlockFetch(std::shared_ptr<Store> store, std::vector<Item> items, Deadline deadline)
    : store_(std::move(store)),
      items_(std::move(items)),
      deadline_(deadline),
      results_(items_.size()) {}

std::vector<GetResult> BlockFetch::get(const std::vector<std::size_t>& which) const {
  std::vector<GetItem> wanted;
  std::vector<StagingLease> pages;
  wanted.reserve(which.size());
  pages.reserve(which.size());
  for (const std::size_t i : which) {
    const Item& item = items_[i];
    wanted.push_back({item.key, item.page->bytes().data(), item.object_bytes});
    pages.push_back(item.page);
  }
  std::vector<GetResult> results =
      store_->get(std::move(wanted), {.deadline = deadline_, .hold = hold_pages(std::move(pages))});
  // Answers that cannot be told apart are no answers.
  if (results.size() != which.size()) return std::vector<GetResult>(which.size());
  return results;
}

void BlockFetch::run() {
  {
    const MutexLock lock(mutex_);
    if (phase_ != Phase::kIdle) return;
    phase_ = Phase::kRunning;
  }
  try {
    std::vector<std::size_t> all(items_.size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    results_ = get(all);
  } catch (...) {  // results_ still says "down" for every item.
  }
  const MutexLock lock(mutex_);
  phase_ = Phase::kDone;
  done_.notify_all();
}

bool BlockFetch::finish(const Clock& clock) {
  run();
  const MutexLock lock(mutex_);
  while (phase_ != Phase::kDone && !deadline_.passed(clock)) {
    done_.wait_until(mutex_, deadline_.at);
  }
  return phase_ == Phase::kDone;
}

void BlockFetch::fetch_again(const std::vector<std::size_t>& which) {
  const std::vector<GetResult> again = get(which);
  for (std::size_t i = 0; i < which.size(); ++i) results_[which[i]] = again[i];
}

}  // namespace kvc
