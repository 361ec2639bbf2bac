#include "testing/fake_mooncake_client.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "base/random.h"

namespace kvc::testlib {
namespace {

// The real store loses transfers from here on.
constexpr std::size_t kBuffersThatBreak = 2048;

MooncakeReply all(std::size_t count, std::int64_t code) {
  return {std::vector<std::int64_t>(count, code), {}};
}

void broken(const std::string& what) {
  ADD_FAILURE() << "the real Mooncake client would have failed badly: " << what;
}

/// What a failed read leaves behind.
void scribble(std::byte* data, std::size_t bytes) { std::fill_n(data, bytes / 2, std::byte{0xdb}); }

}  // namespace

void FakeMooncakeCluster::set_script(Script script) {
  const MutexLock lock(mutex_);
  script_ = script ? std::make_shared<Script>(std::move(script)) : nullptr;
}

void FakeMooncakeCluster::begin_foreign_put(const std::string& key) {
  const MutexLock lock(mutex_);
  open_puts_.emplace(key, 0);
}

void FakeMooncakeCluster::discard_foreign_put(const std::string& key) {
  const MutexLock lock(mutex_);
  open_puts_.erase(key);
}

void FakeMooncakeCluster::kill_storage() {
  const MutexLock lock(mutex_);
  storage_is_dead_ = true;
}

void FakeMooncakeCluster::expire_storage() {
  const MutexLock lock(mutex_);
  objects_.clear();
  open_puts_.clear();
  bytes_used_ = 0;
  has_storage_ = false;
}

void FakeMooncakeCluster::kill_storage(std::size_t storage) {
  const MutexLock lock(mutex_);
  dead_storages_.insert(storage);
}

void FakeMooncakeCluster::expire_storage(std::size_t storage) {
  const MutexLock lock(mutex_);
  expired_storages_.insert(storage);
  for (auto it = objects_.begin(); it != objects_.end();) {
    Object& object = it->second;
    bytes_used_ -= bytes_of(object);
    std::erase(object.storages, storage);
    bytes_used_ += bytes_of(object);
    it = object.storages.empty() ? objects_.erase(it) : std::next(it);
  }
}

std::vector<std::size_t> FakeMooncakeCluster::storages_of(const std::string& key) const {
  const MutexLock lock(mutex_);
  const auto found = objects_.find(key);
  return found == objects_.end() ? std::vector<std::size_t>() : found->second.storages;
}

void FakeMooncakeCluster::set_admin_fails(bool fails) {
  const MutexLock lock(mutex_);
  admin_fails_ = fails;
}

bool FakeMooncakeCluster::is_dead(std::size_t storage) const {
  return storage_is_dead_ || dead_storages_.contains(storage);
}

std::size_t FakeMooncakeCluster::bytes_of(const Object& object) const {
  return object.bytes->size() * object.storages.size();
}

std::vector<std::size_t> FakeMooncakeCluster::choose_storages(std::uint32_t replicas) const {
  std::vector<std::size_t> chosen;
  for (std::size_t i = 0; i < options_.storages && chosen.size() < replicas; ++i) {
    if (!expired_storages_.contains(i)) chosen.push_back(i);
  }
  return chosen;
}

std::vector<MooncakeReplica> FakeMooncakeCluster::replicas_of(const std::string& key) {
  const auto found = objects_.find(key);
  if (found == objects_.end()) return {};
  Object& object = found->second;
  lease(object);
  if (object.copying_to && object.questions++ >= options_.questions_per_copy) {
    if (!is_dead(*object.copying_to)) {
      object.storages.push_back(*object.copying_to);
      bytes_used_ += object.bytes->size();
    }
    object.copying_to.reset();
  }
  std::vector<MooncakeReplica> replicas;
  for (const std::size_t storage : object.storages) {
    replicas.push_back({"storage" + std::to_string(storage) + ":1",
                        reinterpret_cast<std::uintptr_t>(object.bytes->data()),
                        object.bytes->size()});
  }
  return replicas;
}

void FakeMooncakeCluster::start_storage() {
  const MutexLock lock(mutex_);
  has_storage_ = true;
  storage_is_dead_ = false;
}

void FakeMooncakeCluster::fail_master(std::int64_t code) {
  const MutexLock lock(mutex_);
  master_code_ = code;
}

void FakeMooncakeCluster::restore_master() { fail_master(0); }

void FakeMooncakeCluster::corrupt(const std::string& key) {
  const MutexLock lock(mutex_);
  const auto found = objects_.find(key);
  ASSERT_NE(found, objects_.end()) << key;
  auto altered = std::make_shared<std::vector<std::byte>>(*found->second.bytes);
  Random random(mix_text(0, key));
  (*altered)[random.below(altered->size())] ^= std::byte{1} << random.below(8);
  found->second.bytes = std::move(altered);
}

std::vector<std::string> FakeMooncakeCluster::keys() const {
  const MutexLock lock(mutex_);
  std::vector<std::string> keys;
  for (const auto& [key, object] : objects_) keys.push_back(key);
  return keys;
}

std::size_t FakeMooncakeCluster::bytes_used() const {
  const MutexLock lock(mutex_);
  return bytes_used_;
}

std::uint64_t FakeMooncakeCluster::evicted() const {
  const MutexLock lock(mutex_);
  return evicted_;
}

std::size_t FakeMooncakeCluster::calls(std::string_view method) const {
  const MutexLock lock(mutex_);
  const auto found = counts_.find(method);
  return found == counts_.end() ? 0 : found->second.calls;
}

std::size_t FakeMooncakeCluster::largest_call(std::string_view method) const {
  const MutexLock lock(mutex_);
  const auto found = counts_.find(method);
  return found == counts_.end() ? 0 : found->second.largest;
}

std::size_t FakeMooncakeCluster::most_buffers_in_flight() const {
  const MutexLock lock(mutex_);
  return most_in_flight_;
}

std::optional<MooncakeReply> FakeMooncakeCluster::begin(std::string_view method,
                                                        const std::vector<std::string>& keys) {
  std::shared_ptr<Script> script;
  {
    const MutexLock lock(mutex_);
    CallCount& count = counts_[std::string(method)];
    ++count.calls;
    count.largest = std::max(count.largest, keys.size());
    script = script_;
  }
  if (script) {
    if (std::optional<MooncakeReply> reply = (*script)(method, keys)) return reply;
  }
  const MutexLock lock(mutex_);
  if (master_code_ != 0) return all(keys.size(), master_code_);
  return std::nullopt;
}

std::int64_t FakeMooncakeCluster::start_put(const std::string& key, std::size_t bytes,
                                            std::uint32_t replicas) {
  if (objects_.contains(key) || open_puts_.contains(key)) return 1;
  if (!has_storage_) return -200;
  if (bytes > options_.segment_bytes) {
    // Refused, and a twentieth of the others goes for nothing.
    evict(1);
    return -200;
  }
  const std::vector<std::size_t> chosen = choose_storages(replicas);
  const std::size_t needed = bytes * chosen.size();
  if (bytes_used_ + needed > options_.segment_bytes * options_.storages) {
    // Eviction is a loop of its own: this put fails, a later one finds the room.
    evict(needed);
    return -200;
  }
  // All copies must get through, or the put is revoked.
  for (const std::size_t storage : chosen) {
    if (is_dead(storage)) return -800;
  }
  bytes_used_ += needed;
  open_puts_.emplace(key, needed);
  return 0;
}

void FakeMooncakeCluster::evict(std::size_t at_least_bytes) {
  std::vector<std::pair<std::uint64_t, std::string>> by_use;
  for (const auto& [key, object] : objects_) {
    if (!is_leased(object)) by_use.emplace_back(object.used, key);
  }
  std::sort(by_use.begin(), by_use.end());
  const std::size_t at_least = (objects_.size() + 19) / 20;
  std::size_t freed = 0;
  std::size_t count = 0;
  for (const auto& [used, key] : by_use) {
    if (count >= at_least && freed >= at_least_bytes) return;
    freed += bytes_of(objects_[key]);
    bytes_used_ -= bytes_of(objects_[key]);
    objects_.erase(key);
    ++count;
    ++evicted_;
  }
}

void FakeMooncakeCluster::lease(Object& object) {
  object.used = ++uses_;
  object.leased_until = options_.clock ? options_.clock->now() + options_.lease : Instant::max();
}

bool FakeMooncakeCluster::is_leased(const Object& object) const {
  if (object.leased_until == Instant::min()) return false;
  return !options_.clock || options_.clock->now() < object.leased_until;
}

void FakeMooncakeCluster::enter_flight(std::size_t buffers) {
  const MutexLock lock(mutex_);
  in_flight_ += buffers;
  most_in_flight_ = std::max(most_in_flight_, in_flight_);
  if (in_flight_ > options_.max_buffers_in_flight) {
    broken(std::to_string(in_flight_) + " buffers in flight");
  }
}

void FakeMooncakeCluster::leave_flight(std::size_t buffers) {
  const MutexLock lock(mutex_);
  in_flight_ -= buffers;
}

class FakeMooncakeClient::Use {
 public:
  Use(FakeMooncakeClient& client, const char* method, std::size_t buffers)
      : client_(client), buffers_(buffers) {
    {
      const MutexLock lock(client_.mutex_);
      if (client_.closed_) broken(std::string(method) + " after close is a segmentation fault");
      ++client_.inside_;
    }
    client_.cluster_->enter_flight(buffers_);
    if (client_.during_call) client_.during_call();
  }
  ~Use() {
    client_.cluster_->leave_flight(buffers_);
    const MutexLock lock(client_.mutex_);
    --client_.inside_;
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

 private:
  FakeMooncakeClient& client_;
  const std::size_t buffers_;
};

FakeMooncakeClient::~FakeMooncakeClient() {
  const MutexLock lock(mutex_);
  if (inside_ > 0) broken("the client was destroyed under a call");
}

MooncakeReply FakeMooncakeClient::batch_is_exist(const std::vector<std::string>& keys) {
  const Use use(*this, "batch_is_exist", 0);
  if (auto reply = cluster_->begin("batch_is_exist", keys)) return *reply;
  MooncakeReply reply;
  const MutexLock lock(cluster_->mutex_);
  for (const std::string& key : keys) {
    const auto found = cluster_->objects_.find(key);
    reply.codes.push_back(found == cluster_->objects_.end() ? 0 : 1);
    if (found != cluster_->objects_.end()) cluster_->lease(found->second);
  }
  return reply;
}

MooncakeReply FakeMooncakeClient::batch_put_from(const std::vector<std::string>& keys,
                                                 const std::vector<const std::byte*>& data,
                                                 const std::vector<std::size_t>& sizes,
                                                 std::uint32_t replicas) {
  const Use use(*this, "batch_put_from", keys.size());
  if (replicas == 0) return all(keys.size(), -600);
  if (keys.size() != data.size() || keys.size() != sizes.size()) return all(keys.size(), -600);
  if (auto reply = cluster_->begin("batch_put_from", keys)) return *reply;
  // Of a key that occurs twice, the last payload is stored and every occurrence is told 0.
  std::map<std::string, std::size_t> last;
  for (std::size_t i = 0; i < keys.size(); ++i) last[keys[i]] = i;
  MooncakeReply reply = all(keys.size(), 0);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (last[keys[i]] == i) reply.codes[i] = put_one(keys[i], data[i], sizes[i], replicas);
  }
  if (keys.size() > kBuffersThatBreak) reply.codes.back() = -800;
  return reply;
}

std::int64_t FakeMooncakeClient::put_one(const std::string& key, const std::byte* data,
                                         std::size_t bytes, std::uint32_t replicas) {
  if (data == nullptr) broken("a put from a null pointer");
  if (key.empty()) return -600;
  if (bytes == 0) return 0;
  check_registered(data, bytes);
  {
    const MutexLock lock(cluster_->mutex_);
    const std::int64_t code = cluster_->start_put(key, bytes, replicas);
    if (code != 0) return std::min<std::int64_t>(code, 0);
  }
  // The transfer, without a lock: other writers of the key are told 0 meanwhile.
  auto copy = std::make_shared<const std::vector<std::byte>>(data, data + bytes);
  const MutexLock lock(cluster_->mutex_);
  if (cluster_->open_puts_.erase(key) == 0) return -601;  // the segment went in between
  FakeMooncakeCluster::Object object;
  object.bytes = std::move(copy);
  object.storages = cluster_->choose_storages(replicas);
  object.used = ++cluster_->uses_;
  cluster_->objects_.emplace(key, std::move(object));
  return 0;
}

MooncakeReply FakeMooncakeClient::batch_get_into(const std::vector<std::string>& keys,
                                                 const std::vector<std::byte*>& data,
                                                 const std::vector<std::size_t>& sizes) {
  const Use use(*this, "batch_get_into", keys.size());
  if (keys.size() != data.size() || keys.size() != sizes.size()) return all(keys.size(), -600);
  if (auto reply = cluster_->begin("batch_get_into", keys)) return *reply;
  // Of a key that occurs twice only the last buffer is filled, yet each is told the size.
  std::map<std::string, std::size_t> last;
  for (std::size_t i = 0; i < keys.size(); ++i) last[keys[i]] = i;
  MooncakeReply reply;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const std::size_t filled = last[keys[i]];
    std::vector<std::byte> nowhere;
    std::byte* target = data[i];
    if (filled != i && target != nullptr) {
      nowhere.resize(sizes[i]);
      target = nowhere.data();
    }
    reply.codes.push_back(get_one(keys[i], target, sizes[i]));
  }
  if (keys.size() > kBuffersThatBreak) reply.codes.back() = -800;
  return reply;
}

std::int64_t FakeMooncakeClient::get_one(const std::string& key, std::byte* data,
                                         std::size_t bytes) {
  if (data == nullptr) {
    broken("a get into a null pointer");
    return -600;
  }
  check_registered(data, bytes);
  std::shared_ptr<const std::vector<std::byte>> object;
  {
    const MutexLock lock(cluster_->mutex_);
    if (cluster_->open_puts_.contains(key)) return -703;
    const auto found = cluster_->objects_.find(key);
    if (found == cluster_->objects_.end()) return -704;
    cluster_->lease(found->second);
    object = found->second.bytes;
    // The first copy is read, whatever became of it.
    if (cluster_->is_dead(found->second.storages.front())) {
      scribble(data, bytes);
      return -800;
    }
  }
  if (object->size() > bytes) {
    scribble(data, bytes);
    return -600;
  }
  std::memcpy(data, object->data(), object->size());
  return static_cast<std::int64_t>(object->size());
}

MooncakeReply FakeMooncakeClient::batch_remove(const std::vector<std::string>& keys) {
  const Use use(*this, "batch_remove", 0);
  if (auto reply = cluster_->begin("batch_remove", keys)) return *reply;
  MooncakeReply reply;
  const MutexLock lock(cluster_->mutex_);
  for (const std::string& key : keys) {
    const auto found = cluster_->objects_.find(key);
    if (cluster_->open_puts_.contains(key)) {
      reply.codes.push_back(-703);
    } else if (found == cluster_->objects_.end()) {
      reply.codes.push_back(-704);
    } else {
      cluster_->bytes_used_ -= cluster_->bytes_of(found->second);
      cluster_->objects_.erase(found);
      reply.codes.push_back(0);
    }
  }
  return reply;
}

MooncakeReplicas FakeMooncakeClient::batch_replicas(const std::vector<std::string>& keys) {
  const Use use(*this, "batch_replicas", 0);
  MooncakeReplicas replicas;
  if (cluster_->begin("batch_replicas", keys)) {
    replicas.of_key.resize(keys.size());  // A failure looks like absence.
    return replicas;
  }
  const MutexLock lock(cluster_->mutex_);
  for (const std::string& key : keys) replicas.of_key.push_back(cluster_->replicas_of(key));
  return replicas;
}

MooncakeSegments FakeMooncakeClient::segments() {
  const Use use(*this, "segments", 0);
  (void)cluster_->begin("segments", {});
  const MutexLock lock(cluster_->mutex_);
  if (cluster_->admin_fails_) return {{}, "URLError: connection refused"};
  MooncakeSegments segments;
  const std::size_t capacity = cluster_->options_.segment_bytes;
  for (const std::size_t i : cluster_->choose_storages(~std::uint32_t{0})) {
    const std::size_t used =
        std::min(capacity, cluster_->bytes_used_ / cluster_->options_.storages);
    segments.usable.push_back(
        {"segment" + std::to_string(i), "storage" + std::to_string(i) + ":1", capacity - used});
  }
  return segments;
}

MooncakeReply FakeMooncakeClient::create_copy_task(const std::string& key,
                                                   const std::string& segment) {
  const Use use(*this, "create_copy_task", 0);
  if (auto reply = cluster_->begin("create_copy_task", {key})) return *reply;
  const MutexLock lock(cluster_->mutex_);
  const auto found = cluster_->objects_.find(key);
  if (found == cluster_->objects_.end()) return all(1, -704);
  for (const std::size_t i : cluster_->choose_storages(~std::uint32_t{0})) {
    if (segment != "segment" + std::to_string(i)) continue;
    FakeMooncakeCluster::Object& object = found->second;
    // A second task is taken, and comes to nothing.
    if (!object.copying_to) {
      object.copying_to = i;
      object.questions = 0;
    }
    return all(1, 0);
  }
  return all(1, -600);
}

MooncakeReply FakeMooncakeClient::read_replica(const MooncakeReplica& replica, std::byte* data) {
  const Use use(*this, "read_replica", 1);
  if (auto reply = cluster_->begin("read_replica", {replica.endpoint})) return *reply;
  if (data == nullptr) broken("a read into a null pointer");
  check_registered(data, replica.bytes);
  const MutexLock lock(cluster_->mutex_);
  for (std::size_t i = 0; i < cluster_->options_.storages; ++i) {
    if (replica.endpoint == "storage" + std::to_string(i) + ":1" && cluster_->is_dead(i)) {
      scribble(data, replica.bytes);
      return all(1, -800);
    }
  }
  for (const auto& [key, object] : cluster_->objects_) {
    if (reinterpret_cast<std::uintptr_t>(object.bytes->data()) != replica.address) continue;
    std::memcpy(data, object.bytes->data(), replica.bytes);
    return all(1, static_cast<std::int64_t>(replica.bytes));
  }
  scribble(data, replica.bytes);  // Whatever lies there by now.
  return all(1, static_cast<std::int64_t>(replica.bytes));
}

MooncakeReply FakeMooncakeClient::register_buffer(std::byte* data, std::size_t bytes) {
  const Use use(*this, "register_buffer", 0);
  if (auto reply = cluster_->begin("register_buffer", {"buffer"})) return *reply;
  if (data == nullptr || bytes == 0) return all(1, -600);
  const MutexLock lock(mutex_);
  const auto next = registered_.upper_bound(data);
  if (next != registered_.end() && next->first < data + bytes) return all(1, -600);
  if (next != registered_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second > data) return all(1, -600);
  }
  registered_.emplace(data, bytes);
  return all(1, 0);
}

MooncakeReply FakeMooncakeClient::unregister_buffer(std::byte* data) {
  const Use use(*this, "unregister_buffer", 0);
  if (auto reply = cluster_->begin("unregister_buffer", {"buffer"})) return *reply;
  const MutexLock lock(mutex_);
  return all(1, registered_.erase(data) > 0 ? 0 : -600);
}

void FakeMooncakeClient::check_registered(const std::byte* data, std::size_t bytes) {
  if (!cluster_->options_.requires_registration) return;
  const MutexLock lock(mutex_);
  auto found = registered_.upper_bound(data);
  const bool known = found != registered_.begin() && std::prev(found)->first <= data &&
                     data + bytes <= std::prev(found)->first + std::prev(found)->second;
  if (!known) broken("a transfer of unregistered memory");
}

void FakeMooncakeClient::close() {
  const MutexLock lock(mutex_);
  if (inside_ > 0) broken("close beside a call is a use after free");
  if (closed_) broken("close was called twice");
  closed_ = true;
}

bool FakeMooncakeClient::is_closed() const {
  const MutexLock lock(mutex_);
  return closed_;
}

}  // namespace kvc::testlib
