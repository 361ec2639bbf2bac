// A Mooncake Store in memory, with the traps of the real one and less patience.
//
// FakeMooncakeCluster is master and storage; FakeMooncakeClient is one client of it. Codes and odd
// answers are those of the real store (docs/contract/store.md lists them). What would crash or
// stall the real process, or break a limit that we set ourselves, fails the running test at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "kvc/clock.h"
#include "store/mooncake/mooncake_client.h"

namespace kvc::testlib {

struct FakeMooncakeOptions {
  /// Of each storage segment. 0: no storage process is registered.
  std::size_t segment_bytes = std::size_t{64} << 20;
  /// Storage processes of one segment each. An object's copies go to the first ones.
  std::size_t storages = 1;
  /// Questions after copies until one that was asked for is there.
  std::size_t questions_per_copy = 1;
  /// Whether clients know replicas at all.
  bool knows_replicas = true;
  Duration lease = std::chrono::seconds(10);
  /// Null: leases last for ever.
  std::shared_ptr<const Clock> clock;
  /// Above it a call fails the test. The real store breaks above 2048.
  std::size_t max_buffers_in_flight = 1000;
  /// As on RDMA: transfers from or to memory that is not registered fail the test.
  bool requires_registration = false;
};

/// Safe to use from any thread.
class FakeMooncakeCluster {
 public:
  explicit FakeMooncakeCluster(FakeMooncakeOptions options) : options_(std::move(options)) {}

  /// What a call of a client answers instead of being made: called with the name of the client's
  /// method and the keys. Empty: as usual. One script serves all calls, so it may count.
  using Script = std::function<std::optional<MooncakeReply>(std::string_view method,
                                                            const std::vector<std::string>& keys)>;
  void set_script(Script script);

  /// A writer begins to put `key` and never ends: until discard() puts of the key answer 0 and
  /// store nothing, reads and removals answer -703.
  void begin_foreign_put(const std::string& key);
  void discard_foreign_put(const std::string& key);

  /// The storage process dies; until expire() the master believes in its objects.
  void kill_storage();
  void expire_storage();
  /// One of several storage processes dies, and is forgotten with the copies that it held.
  void kill_storage(std::size_t storage);
  void expire_storage(std::size_t storage);
  /// The storage processes that hold a copy of an object.
  std::vector<std::size_t> storages_of(const std::string& key) const;
  /// The admin pages answer or do not.
  void set_admin_fails(bool fails);
  /// A storage process registers, empty.
  void start_storage();
  /// The master is gone (-900), or stands still (-901).
  void fail_master(std::int64_t code);
  void restore_master();
  /// Flips a bit of a stored object.
  void corrupt(const std::string& key);

  std::vector<std::string> keys() const;
  std::size_t bytes_used() const;
  std::uint64_t evicted() const;
  /// Calls of one method so far, and the most items that one of them had.
  std::size_t calls(std::string_view method) const;
  std::size_t largest_call(std::string_view method) const;
  std::size_t most_buffers_in_flight() const;

 private:
  friend class FakeMooncakeClient;

  struct Object {
    std::shared_ptr<const std::vector<std::byte>> bytes;
    std::vector<std::size_t> storages;      // that hold a copy, in the order of reading
    std::optional<std::size_t> copying_to;  // by a task
    std::size_t questions = 0;              // since the task began
    Instant leased_until = Instant::min();
    std::uint64_t used = 0;  // order of use
  };
  struct CallCount {
    std::size_t calls = 0;
    std::size_t largest = 0;
  };

  /// The scripted answer, if there is one, and the statistics.
  std::optional<MooncakeReply> begin(std::string_view method, const std::vector<std::string>& keys);
  /// Reserves space for a put: 0 go on, 1 answer 0 without storing, negative: the error.
  std::int64_t start_put(const std::string& key, std::size_t bytes, std::uint32_t replicas)
      KVC_REQUIRES(mutex_);
  /// Where a put of so many copies goes.
  std::vector<std::size_t> choose_storages(std::uint32_t replicas) const KVC_REQUIRES(mutex_);
  void evict(std::size_t at_least_bytes) KVC_REQUIRES(mutex_);
  void lease(Object& object) KVC_REQUIRES(mutex_);
  bool is_leased(const Object& object) const KVC_REQUIRES(mutex_);
  bool is_dead(std::size_t storage) const KVC_REQUIRES(mutex_);
  std::size_t bytes_of(const Object& object) const KVC_REQUIRES(mutex_);
  std::vector<MooncakeReplica> replicas_of(const std::string& key) KVC_REQUIRES(mutex_);
  void enter_flight(std::size_t buffers);
  void leave_flight(std::size_t buffers);

  const FakeMooncakeOptions options_;
  mutable Mutex mutex_;
  std::shared_ptr<Script> script_ KVC_GUARDED_BY(mutex_);
  std::map<std::string, Object> objects_ KVC_GUARDED_BY(mutex_);
  std::map<std::string, std::size_t> open_puts_ KVC_GUARDED_BY(mutex_);  // bytes reserved
  std::size_t bytes_used_ KVC_GUARDED_BY(mutex_) = 0;
  std::uint64_t uses_ KVC_GUARDED_BY(mutex_) = 0;
  std::uint64_t evicted_ KVC_GUARDED_BY(mutex_) = 0;
  bool has_storage_ KVC_GUARDED_BY(mutex_) = true;  // as the master sees it
  bool storage_is_dead_ KVC_GUARDED_BY(mutex_) = false;
  std::set<std::size_t> dead_storages_ KVC_GUARDED_BY(mutex_);     // one by one
  std::set<std::size_t> expired_storages_ KVC_GUARDED_BY(mutex_);  // of those, forgotten
  bool admin_fails_ KVC_GUARDED_BY(mutex_) = false;
  std::int64_t master_code_ KVC_GUARDED_BY(mutex_) = 0;
  std::size_t in_flight_ KVC_GUARDED_BY(mutex_) = 0;
  std::size_t most_in_flight_ KVC_GUARDED_BY(mutex_) = 0;
  std::map<std::string, CallCount, std::less<>> counts_ KVC_GUARDED_BY(mutex_);
};

/// Fails the test on what crashes the real client: any call after close(), a close() beside a call,
/// a null pointer, lists of unequal length.
class FakeMooncakeClient final : public MooncakeClient {
 public:
  explicit FakeMooncakeClient(std::shared_ptr<FakeMooncakeCluster> cluster)
      : cluster_(std::move(cluster)) {}
  ~FakeMooncakeClient() override;

  MooncakeReply batch_is_exist(const std::vector<std::string>& keys) override;
  MooncakeReply batch_put_from(const std::vector<std::string>& keys,
                               const std::vector<const std::byte*>& data,
                               const std::vector<std::size_t>& sizes,
                               std::uint32_t replicas) override;
  MooncakeReply batch_get_into(const std::vector<std::string>& keys,
                               const std::vector<std::byte*>& data,
                               const std::vector<std::size_t>& sizes) override;
  MooncakeReply batch_remove(const std::vector<std::string>& keys) override;
  bool knows_replicas() const override { return cluster_->options_.knows_replicas; }
  MooncakeReplicas batch_replicas(const std::vector<std::string>& keys) override;
  MooncakeSegments segments() override;
  MooncakeReply create_copy_task(const std::string& key, const std::string& segment) override;
  MooncakeReply read_replica(const MooncakeReplica& replica, std::byte* data) override;
  MooncakeReply register_buffer(std::byte* data, std::size_t bytes) override;
  MooncakeReply unregister_buffer(std::byte* data) override;
  void close() override;
  std::string description() const override { return "master fake:50051"; }

  bool is_closed() const;

  /// Called inside every data call, without a lock: the place to let something happen beside it.
  std::function<void()> during_call;

 private:
  /// Notes that a call is inside for as long as it lives.
  class Use;

  std::int64_t put_one(const std::string& key, const std::byte* data, std::size_t bytes,
                       std::uint32_t replicas);
  std::int64_t get_one(const std::string& key, std::byte* data, std::size_t bytes);
  void check_registered(const std::byte* data, std::size_t bytes);

  const std::shared_ptr<FakeMooncakeCluster> cluster_;
  mutable Mutex mutex_;
  int inside_ KVC_GUARDED_BY(mutex_) = 0;
  bool closed_ KVC_GUARDED_BY(mutex_) = false;
  std::map<const std::byte*, std::size_t> registered_ KVC_GUARDED_BY(mutex_);
};

}  // namespace kvc::testlib
