#include "store/memory/memory_store.h"

#include <algorithm>
#include <cstring>
#include <list>
#include <map>
#include <new>
#include <unordered_map>
#include <utility>

#include "base/mutex.h"
#include "store/registered_ranges.h"

namespace kvc {
namespace {

/// Immutable once it is in the table, so that readers copy from it without a lock while it is
/// evicted or removed.
using Payload = std::shared_ptr<const std::byte[]>;

struct Object {
  std::string key;
  Payload payload;
  std::size_t bytes = 0;          // what was reserved
  std::size_t visible_bytes = 0;  // smaller between the two steps of a non-atomic put
  std::uint64_t id = 0;           // tells this object from a later one of the same key
};

/// Most recently used first. The index refers to the keys in the list.
using ObjectList = std::list<Object>;

class MemoryStoreImpl final : public MemoryStore {
 public:
  explicit MemoryStoreImpl(MemoryStoreOptions options) : options_(std::move(options)) {}

  StoreCapabilities capabilities() const override {
    StoreCapabilities capabilities;
    capabilities.atomic_publish = options_.atomic_publish;
    capabilities.put_tells_existing = true;
    capabilities.max_object_bytes = options_.capacity_bytes;
    return capabilities;
  }

  std::vector<Reaction> exists(std::vector<std::string> keys, CallContext /*context*/) override {
    std::vector<Reaction> results(keys.size(), Reaction::kDown);
    const MutexLock lock(mutex_);
    if (closed_) return results;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (keys[i].empty()) {
        results[i] = Reaction::kCallerBug;
      } else {
        results[i] = use(keys[i]) != nullptr ? Reaction::kOk : Reaction::kMiss;
      }
    }
    return results;
  }

  std::vector<PutResult> put(std::vector<PutItem> items, CallContext /*context*/) override {
    std::vector<PutResult> results;
    results.reserve(items.size());
    for (PutItem& item : items) results.push_back(put_one(std::move(item)));
    return results;
  }

  std::vector<GetResult> get(std::vector<GetItem> items, CallContext /*context*/) override {
    std::vector<GetResult> results;
    results.reserve(items.size());
    for (const GetItem& item : items) results.push_back(get_one(item));
    return results;
  }

  std::vector<Reaction> remove(std::vector<std::string> keys, CallContext /*context*/) override {
    std::vector<Reaction> results(keys.size(), Reaction::kDown);
    ObjectList removed;  // freed after the lock
    const MutexLock lock(mutex_);
    if (closed_) return results;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (keys[i].empty()) {
        results[i] = Reaction::kCallerBug;
        continue;
      }
      const auto found = index_.find(keys[i]);
      results[i] = found == index_.end() ? Reaction::kMiss : Reaction::kOk;
      if (found != index_.end()) take_out(found->second, removed);
    }
    return results;
  }

  Status register_memory(std::span<std::byte> memory) override {
    const MutexLock lock(mutex_);
    return closed_ ? closed_status() : registered_.add(memory);
  }

  Status unregister_memory(std::span<std::byte> memory) override {
    const MutexLock lock(mutex_);
    return closed_ ? closed_status() : registered_.remove(memory);
  }

  void close(Deadline /*deadline*/) override {
    ObjectList dropped;
    const MutexLock lock(mutex_);
    closed_ = true;
    index_.clear();
    dropped.swap(objects_);
    bytes_used_ = 0;
  }

  std::vector<std::string> keys() const override {
    std::vector<std::string> keys;
    {
      const MutexLock lock(mutex_);
      keys.reserve(objects_.size());
      for (const Object& object : objects_) keys.push_back(object.key);
    }
    std::sort(keys.begin(), keys.end());
    return keys;
  }

  std::size_t bytes_used() const override {
    const MutexLock lock(mutex_);
    return bytes_used_;
  }

  std::size_t evicted() const override {
    const MutexLock lock(mutex_);
    return evicted_;
  }

 private:
  static Status closed_status() {
    return {Code::kUnavailable, "the memory store is closed; open a new one"};
  }

  PutResult put_one(PutItem item) {
    if (item.key.empty() || item.data == nullptr || item.bytes == 0 ||
        item.bytes > options_.capacity_bytes) {
      return {Reaction::kCallerBug, PutEffect::kNone};
    }
    {
      const MutexLock lock(mutex_);
      if (closed_) return {Reaction::kDown, PutEffect::kNone};
      if (use(item.key) != nullptr) return {Reaction::kOk, PutEffect::kExisted};
    }
    auto* const copy = new (std::nothrow) std::byte[item.bytes];
    if (copy == nullptr) return {Reaction::kBackOff, PutEffect::kNone};
    std::memcpy(copy, item.data, item.bytes);

    Object object;
    object.key = std::move(item.key);
    object.payload = Payload(copy);
    object.bytes = item.bytes;
    const bool in_steps = !options_.atomic_publish && item.bytes > 1;
    object.visible_bytes = in_steps ? item.bytes / 2 : item.bytes;
    const std::string key = in_steps ? object.key : std::string();
    std::uint64_t id = 0;
    const PutResult result = insert(std::move(object), id);
    if (!in_steps || result.effect != PutEffect::kStored) return result;
    if (options_.between_steps && !options_.between_steps(key)) {
      return {Reaction::kDown, PutEffect::kUnknown};
    }
    complete(key, id);
    return result;
  }

  PutResult insert(Object object, std::uint64_t& id) {
    ObjectList evicted;  // freed after the lock
    const MutexLock lock(mutex_);
    if (closed_) return {Reaction::kDown, PutEffect::kNone};
    if (use(object.key) != nullptr) return {Reaction::kOk, PutEffect::kExisted};
    while (!objects_.empty() && (bytes_used_ + object.bytes > options_.capacity_bytes ||
                                 objects_.size() >= options_.max_objects)) {
      take_out(std::prev(objects_.end()), evicted);
      ++evicted_;
    }
    id = object.id = ++last_id_;
    const std::size_t bytes = object.bytes;
    ObjectList fresh;
    fresh.push_front(std::move(object));
    index_.emplace(fresh.front().key, fresh.begin());
    objects_.splice(objects_.begin(), fresh);
    bytes_used_ += bytes;
    return {Reaction::kOk, PutEffect::kStored};
  }

  /// The second step. Nothing happens if the object was evicted or removed in between.
  void complete(const std::string& key, std::uint64_t id) {
    const MutexLock lock(mutex_);
    Object* const object = use(key);
    if (object != nullptr && object->id == id) object->visible_bytes = object->bytes;
  }

  GetResult get_one(const GetItem& item) {
    if (item.key.empty() || item.data == nullptr) return {Reaction::kCallerBug, 0};
    Payload payload;
    std::size_t bytes = 0;
    {
      const MutexLock lock(mutex_);
      if (closed_) return {Reaction::kDown, 0};
      const Object* const object = use(item.key);
      if (object == nullptr) return {Reaction::kMiss, 0};
      payload = object->payload;
      bytes = object->visible_bytes;
    }
    if (bytes > item.capacity) return {Reaction::kCallerBug, 0};
    std::memcpy(item.data, payload.get(), bytes);
    return {Reaction::kOk, bytes};
  }

  /// The object of a key, now the most recently used; null if there is none.
  Object* use(const std::string& key) KVC_REQUIRES(mutex_) {
    const auto found = index_.find(key);
    if (found == index_.end()) return nullptr;
    objects_.splice(objects_.begin(), objects_, found->second);
    return &objects_.front();
  }

  void take_out(ObjectList::iterator object, ObjectList& into) KVC_REQUIRES(mutex_) {
    bytes_used_ -= object->bytes;
    index_.erase(object->key);
    into.splice(into.end(), objects_, object);
  }

  const MemoryStoreOptions options_;
  mutable Mutex mutex_;
  ObjectList objects_ KVC_GUARDED_BY(mutex_);
  std::unordered_map<std::string_view, ObjectList::iterator> index_ KVC_GUARDED_BY(mutex_);
  RegisteredRanges registered_ KVC_GUARDED_BY(mutex_);
  std::size_t bytes_used_ KVC_GUARDED_BY(mutex_) = 0;
  std::size_t evicted_ KVC_GUARDED_BY(mutex_) = 0;
  std::uint64_t last_id_ KVC_GUARDED_BY(mutex_) = 0;
  bool closed_ KVC_GUARDED_BY(mutex_) = false;
};

}  // namespace

std::shared_ptr<MemoryStore> make_memory_store(MemoryStoreOptions options) {
  return std::make_shared<MemoryStoreImpl>(std::move(options));
}

}  // namespace kvc
