#include "connector/fetched_object.h"

#include <cstddef>
#include <span>

#include "base/planted.h"

namespace kvc {
namespace {

Rejection check(const PipelineParts& parts, const BlockHash& block, const BlockFetch::Item& item,
                const GetResult& result) {
  // Larger than any object of this keyspace can be. Were it left there, it would be promised again
  // and again, and no put could replace it.
  if (result.reaction == Reaction::kCallerBug) return Rejection::kSize;
  if (result.bytes > item.object_bytes) return Rejection::kSize;
  if (KVC_PLANTED("skip_verification")) return Rejection::kNone;
  return verify_block(parts.shards.describe_part(block, item.part),
                      item.page->bytes().first(result.bytes));
}

template <typename Which>
std::size_t retry(BlockFetch& fetch, Which which) {
  std::vector<std::size_t> again;
  for (std::size_t i = 0; i < fetch.results().size(); ++i) {
    if (which(fetch.results()[i].reaction)) again.push_back(i);
  }
  if (!again.empty()) fetch.fetch_again(again);
  return again.size();
}

}  // namespace

void retry_stale(BlockFetch& fetch) {
  (void)retry(fetch, [](Reaction reaction) { return reaction == Reaction::kStale; });
}

std::size_t retry_missing(BlockFetch& fetch) {
  return retry(fetch, [](Reaction reaction) {
    return reaction == Reaction::kStale || reaction == Reaction::kMiss;
  });
}

Verdict judge(const PipelineParts& parts, const BlockHash& block, const BlockFetch::Item& item,
              const GetResult& result, WorkerStats& gained) {
  switch (result.reaction) {
    case Reaction::kOk:
    case Reaction::kCallerBug:
      break;
    case Reaction::kMiss:
    case Reaction::kStale:
      parts.recent->forget(block);
      return {.end = FetchEnd::kMissing};
    case Reaction::kDown:
    case Reaction::kBackOff:
      parts.recent->clear();
      return {.end = FetchEnd::kUnavailable};
  }
  const Rejection rejection = check(parts, block, item, result);
  if (rejection == Rejection::kNone) return {.end = FetchEnd::kVerified};
  parts.recent->forget(block);
  count_rejection(gained, rejection);
  return {.end = FetchEnd::kRejected, .rejection = rejection};
}

void remove_rejected(const PipelineParts& parts, const std::vector<std::string>& keys,
                     Deadline deadline) {
  if (keys.empty()) return;
  for (const std::string& key : keys) parts.broken->add(key);
  if (deadline.passed(*parts.worker.clock)) return;
  const std::vector<Reaction> reactions =
      parts.worker.store->remove(keys, {.deadline = deadline, .hold = nullptr});
  for (std::size_t i = 0; i < keys.size() && i < reactions.size(); ++i) {
    const bool gone = reactions[i] == Reaction::kOk || reactions[i] == Reaction::kMiss;
    if (gone) parts.broken->remove(keys[i]);
  }
}

}  // namespace kvc
