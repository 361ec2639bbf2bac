#include "store/mooncake/replica_copier.h"

#include <algorithm>
#include <utility>

#include "store/mooncake/mooncake_codes.h"

namespace kvc {
namespace {

constexpr Duration kSegmentsLifetime = std::chrono::seconds(10);
/// A storage process looks for tasks about once a second.
constexpr Duration kFirstPause = std::chrono::milliseconds(50);
constexpr Duration kLongestPause = std::chrono::milliseconds(400);
/// Questions after copies of one call; with the pauses above, well past any deadline of ours.
constexpr int kMaxQuestions = 100;
/// Left for the answer to arrive before whoever bounds the call gives it up.
constexpr Duration kMargin = std::chrono::milliseconds(200);

bool has_copy(const std::vector<MooncakeReplica>& replicas, const MooncakeSegment& segment) {
  return std::ranges::any_of(replicas, [&segment](const MooncakeReplica& replica) {
    return replica.endpoint == segment.endpoint;
  });
}

}  // namespace

ReplicaCopier::ReplicaCopier(std::shared_ptr<MooncakeClient> client,
                             std::shared_ptr<const Clock> clock, std::shared_ptr<Logger> logger)
    : client_(std::move(client)), clock_(std::move(clock)), logger_(std::move(logger)) {}

std::vector<Reaction> ReplicaCopier::replicate(const std::vector<ReplicaItem>& items,
                                               Deadline deadline) {
  // Of what there was no time to find out, which says nothing about the store.
  std::vector<Reaction> reactions(items.size(), Reaction::kBackOff);
  const Deadline until{deadline.at == Instant::max() ? deadline.at : deadline.at - kMargin};
  std::vector<std::size_t> open(items.size());
  for (std::size_t i = 0; i < open.size(); ++i) open[i] = i;
  std::vector<Wanted> needy;
  if (until.passed(*clock_) || !ask(items, open, &reactions, &needy) || needy.empty()) {
    return reactions;
  }
  open.clear();
  // Copies that each item had when its task was begun.
  std::vector<std::size_t> had(items.size(), 0);
  begin_tasks(items, needy, until, &had, &reactions, &open);
  Duration length = kFirstPause;
  for (int n = 0; n < kMaxQuestions && !open.empty() && pause(length, until); ++n) {
    needy.clear();
    if (!ask(items, open, &reactions, &needy)) break;
    open.clear();
    std::vector<Wanted> needs_more;
    for (Wanted& one : needy) {
      if (one.replicas.size() > had[one.item]) {
        needs_more.push_back(std::move(one));
      } else {
        open.push_back(one.item);
      }
    }
    begin_tasks(items, needs_more, until, &had, &reactions, &open);
    length = std::min(2 * length, kLongestPause);
  }
  return reactions;
}

/// One more copy for each of `needy`; appends to `open` those that got a task.
void ReplicaCopier::begin_tasks(const std::vector<ReplicaItem>& items,
                                const std::vector<Wanted>& needy, Deadline until,
                                std::vector<std::size_t>* had, std::vector<Reaction>* reactions,
                                std::vector<std::size_t>* open) {
  if (needy.empty()) return;
  std::vector<MooncakeSegment> places = segments();
  for (const Wanted& one : needy) {
    (*had)[one.item] = one.replicas.size();
    const Reaction begun = until.passed(*clock_)
                               ? Reaction::kBackOff
                               : begin_task(items[one.item].key, one.replicas, &places);
    // Under way is not done.
    (*reactions)[one.item] = begun == Reaction::kOk ? Reaction::kBackOff : begun;
    if (begun == Reaction::kOk) open->push_back(one.item);
  }
}

bool ReplicaCopier::ask(const std::vector<ReplicaItem>& items,
                        const std::vector<std::size_t>& which, std::vector<Reaction>* reactions,
                        std::vector<Wanted>* needy) {
  std::vector<std::string> keys;
  keys.reserve(which.size());
  for (const std::size_t i : which) keys.push_back(items[i].key);
  MooncakeReplicas found = client_->batch_replicas(keys);
  if (!found.error.empty() || found.of_key.size() != which.size()) {
    for (const std::size_t i : which) (*reactions)[i] = Reaction::kBackOff;
    return false;
  }
  std::vector<std::size_t> missing;
  for (std::size_t n = 0; n < which.size(); ++n) {
    const std::size_t i = which[n];
    std::vector<MooncakeReplica>& replicas = found.of_key[n];
    if (replicas.empty()) {
      missing.push_back(i);
    } else if (replicas.size() >= items[i].replicas) {
      (*reactions)[i] = Reaction::kOk;
    } else {
      needy->push_back({i, std::move(replicas)});
    }
  }
  ask_whether_missing(items, missing, reactions);
  return true;
}

/// A master that does not answer has no copies of anything either; a probe tells the two apart.
void ReplicaCopier::ask_whether_missing(const std::vector<ReplicaItem>& items,
                                        const std::vector<std::size_t>& which,
                                        std::vector<Reaction>* reactions) {
  if (which.empty()) return;
  std::vector<std::string> keys;
  keys.reserve(which.size());
  for (const std::size_t i : which) keys.push_back(items[i].key);
  const MooncakeReply reply = client_->batch_is_exist(keys);
  const bool is_answer = reply.error.empty() && reply.codes.size() == which.size();
  for (std::size_t n = 0; n < which.size(); ++n) {
    const std::int64_t code = is_answer ? reply.codes[n] : 1;
    Reaction& reaction = (*reactions)[which[n]];
    if (code < 0) {
      reaction = mooncake_read_reaction(code);
    } else {
      reaction = code == 0 ? Reaction::kMiss : Reaction::kBackOff;  // There, but not complete.
    }
  }
}

/// kOk: the store took a task for one more copy.
Reaction ReplicaCopier::begin_task(const std::string& key,
                                   const std::vector<MooncakeReplica>& replicas,
                                   std::vector<MooncakeSegment>* segments) {
  const std::uint64_t bytes = replicas.front().bytes;
  MooncakeSegment* best = nullptr;
  for (MooncakeSegment& segment : *segments) {
    if (segment.free_bytes < bytes || has_copy(replicas, segment)) continue;
    if (best == nullptr || segment.free_bytes > best->free_bytes) best = &segment;
  }
  if (best == nullptr) return Reaction::kBackOff;
  const MooncakeReply reply = client_->create_copy_task(key, best->name);
  if (!reply.error.empty() || reply.codes.size() != 1) return Reaction::kBackOff;
  const std::int64_t code = reply.codes[0];
  if (code == 0) {
    best->free_bytes -= bytes;
    return Reaction::kOk;
  }
  forget_segments();  // Most likely this one has gone.
  const Reaction reaction = mooncake_read_reaction(code);
  const bool is_known = reaction == Reaction::kMiss || reaction == Reaction::kDown;
  return is_known ? reaction : Reaction::kBackOff;
}

std::vector<MooncakeSegment> ReplicaCopier::segments() {
  const Instant now = clock_->now();
  {
    const MutexLock lock(mutex_);
    if (now < segments_until_) return segments_;
  }
  MooncakeSegments found = client_->segments();
  if (!found.error.empty()) tell(found.error);
  const MutexLock lock(mutex_);
  segments_ = std::move(found.usable);
  segments_until_ = now + kSegmentsLifetime;
  return segments_;
}

void ReplicaCopier::forget_segments() {
  const MutexLock lock(mutex_);
  segments_until_ = Instant::min();
}

void ReplicaCopier::stop() {
  const MutexLock lock(mutex_);
  stopped_ = true;
  stopping_.notify_all();
}

/// False if there is no time for another question, or the store closes.
bool ReplicaCopier::pause(Duration length, Deadline deadline) {
  const Instant end = clock_->now() + length;
  if (end >= deadline.at) return false;
  const MutexLock lock(mutex_);
  // Waits by the machine's clock; one that a test steps does not move meanwhile.
  if (!stopped_) stopping_.wait_until(mutex_, end);
  return !stopped_;
}

void ReplicaCopier::tell(const std::string& why) {
  {
    const MutexLock lock(mutex_);
    if (told_) return;
    told_ = true;
  }
  logger_->log(LogLevel::kWarning,
               "Mooncake Store (" + client_->description() +
                   "): blocks that are stored get no more copies, since the master's admin pages "
                   "cannot be read: " +
                   why + ". Remedy: set MC_REPLICATION_ADMIN to their host:port");
}

}  // namespace kvc
