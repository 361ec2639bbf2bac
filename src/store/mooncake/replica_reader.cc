#include "store/mooncake/replica_reader.h"

#include <utility>

namespace kvc {
namespace {

constexpr std::int64_t kTransferFail = -800;
constexpr std::int64_t kLeaseExpired = -707;
constexpr std::int64_t kTooLarge = -600;
/// Storage processes of one store; more names than this are not kept apart.
constexpr std::size_t kMaxSuspects = 256;

}  // namespace

ReplicaReader::ReplicaReader(std::shared_ptr<MooncakeClient> client,
                             std::shared_ptr<const Clock> clock, Options options)
    : client_(std::move(client)), clock_(std::move(clock)), options_(options) {}

ReplicaReader::Endpoints ReplicaReader::suspects_now() {
  const Instant now = clock_->now();
  const MutexLock lock(mutex_);
  std::erase_if(suspect_until_, [now](const auto& entry) { return now >= entry.second; });
  Endpoints suspects;
  for (const auto& [endpoint, until] : suspect_until_) suspects.insert(endpoint);
  return suspects;
}

void ReplicaReader::suspect(const Endpoints& endpoints) {
  const Instant until = clock_->now() + options_.suspect_for;
  const MutexLock lock(mutex_);
  for (const std::string& endpoint : endpoints) {
    if (suspect_until_.size() < kMaxSuspects) suspect_until_.try_emplace(endpoint, until);
  }
}

bool ReplicaReader::read_around_suspects(std::span<ReplicaRead> reads, Deadline deadline) {
  const Endpoints suspects = suspects_now();
  if (suspects.empty() || deadline.passed(*clock_)) return false;
  std::vector<std::string> keys;
  keys.reserve(reads.size());
  for (const ReplicaRead& one : reads) keys.push_back(one.key);
  const Instant asked_at = clock_->now();
  const MooncakeReplicas found = client_->batch_replicas(keys);
  if (!found.error.empty() || found.of_key.size() != reads.size()) return false;
  bool given_up = false;
  for (std::size_t i = 0; i < reads.size(); ++i) {
    const std::vector<MooncakeReplica>& replicas = found.of_key[i];
    if (replicas.empty() || !suspects.contains(replicas.front().endpoint)) continue;
    given_up = read(reads[i], replicas, suspects, asked_at, deadline) || given_up;
  }
  return given_up;
}

bool ReplicaReader::read_failed_elsewhere(std::span<ReplicaRead> reads, Deadline deadline) {
  std::vector<std::size_t> failed;
  std::vector<std::string> keys;
  for (std::size_t i = 0; i < reads.size(); ++i) {
    if (reads[i].code != kTransferFail) continue;
    failed.push_back(i);
    keys.push_back(reads[i].key);
  }
  if (failed.empty() || deadline.passed(*clock_)) return false;
  const Instant asked_at = clock_->now();
  const MooncakeReplicas found = client_->batch_replicas(keys);
  if (!found.error.empty() || found.of_key.size() != keys.size()) return false;
  Endpoints new_suspects;
  for (const std::vector<MooncakeReplica>& replicas : found.of_key) {
    if (!replicas.empty()) new_suspects.insert(replicas.front().endpoint);
  }
  suspect(new_suspects);
  Endpoints avoided = suspects_now();
  avoided.merge(new_suspects);
  bool given_up = false;
  for (std::size_t n = 0; n < failed.size(); ++n) {
    given_up = read(reads[failed[n]], found.of_key[n], avoided, asked_at, deadline) || given_up;
  }
  return given_up;
}

/// From the first copy that is not to be avoided. Without one, nothing changes.
bool ReplicaReader::read(ReplicaRead& one, const std::vector<MooncakeReplica>& replicas,
                         const Endpoints& avoided, Instant asked_at, Deadline deadline) {
  for (const MooncakeReplica& replica : replicas) {
    if (avoided.contains(replica.endpoint)) continue;
    if (deadline.passed(*clock_)) return false;
    if (replica.bytes > one.capacity) {
      one.code = kTooLarge;
      return false;
    }
    const Instant begin = clock_->now();
    const MooncakeReply reply = client_->read_replica(replica, one.data);
    const Instant end = clock_->now();
    const bool is_answer = reply.error.empty() && reply.codes.size() == 1;
    one.code = is_answer ? reply.codes[0] : kTransferFail;
    // The bytes may have been another object's by then.
    if (one.code >= 0 && end - asked_at >= options_.lease) one.code = kLeaseExpired;
    if (end - begin >= kGivenUpAfter) return true;
    if (one.code >= 0 || one.code == kLeaseExpired) return false;
  }
  return false;
}

}  // namespace kvc
