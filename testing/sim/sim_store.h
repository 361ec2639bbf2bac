// A store in simulated time. It answers late, twice, wrongly or never, loses and damages objects,
// and goes on with a transfer that its caller has given up, as real ones do; what it may not do is
// written in include/kvc/store.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "kvc/store.h"
#include "testing/sim/event_loop.h"
#include "testing/sim/fault_plan.h"
#include "testing/sim/oracle.h"

namespace kvc::sim {

struct SimStoreOptions {
  bool tells_existing = true;
  Tick lease = 0;              ///< That exists() grants; evictions respect it.
  std::size_t capacity = 0;    ///< Objects; 0: no limit.
  Tick latency = 20;           ///< Of a request, a reply and an object, each at most.
  Tick deadline = 200;         ///< After which a caller is answered "down".
  bool whole_batches = false;  ///< A call is one step, for worlds that are tried in full.
};

/// Which memory a transfer may touch now. A caller asks before it uses a page for something else.
class TransferWatch {
 public:
  void begin(const void* page) { ++count_[page]; }
  void end(const void* page);
  bool in_transfer(const void* page) const { return count_.contains(page); }
  std::size_t size() const { return count_.size(); }

 private:
  std::unordered_map<const void*, int> count_;  // Never iterated.
};

class SimStore {
 public:
  struct Put {
    std::string key;
    Tag tag;
    std::span<const std::byte> data;
  };
  struct Get {
    std::string key;
    std::span<std::byte> into;
  };
  template <typename Answer>
  using Reply = std::function<void(std::vector<Answer>)>;

  SimStore(EventLoop& loop, Choice& choice, Faults& faults, Oracle& oracle, Journal& journal,
           const SimStoreOptions& options, bool atomic_publish)
      : loop_(loop),
        choice_(choice),
        faults_(faults),
        oracle_(oracle),
        journal_(journal),
        options_(options),
        atomic_(atomic_publish) {}

  /// Each call answers once, at its deadline at the latest, unless the caller has crashed. `hold`
  /// is released when no transfer of the call can touch its memory any more.
  void exists(Process& caller, std::vector<std::string> keys, Reply<Reaction> reply);
  void put(Process& caller, std::vector<Put> items, BufferHold hold, Reply<PutResult> reply);
  void get(Process& caller, std::vector<Get> items, BufferHold hold, Reply<GetResult> reply);
  void remove(Process& caller, std::vector<std::string> keys, Reply<Reaction> reply);

  /// Puts an object there at once, before the world begins.
  void preload(std::string key, const Tag& tag, std::span<const std::byte> object);

  // The nemesis. False: there was nothing to do.
  bool evict_one();
  bool damage_one();
  bool truncate_one();
  bool wipe();
  void outage(Tick ticks) { down_until_ = loop_.now() + ticks; }
  /// Faults have stopped: it is up, and has room for everything.
  void recover() {
    down_until_ = 0;
    options_.capacity = 0;
  }

  const TransferWatch& transfers() const { return watch_; }
  std::size_t size() const { return objects_.size(); }
  /// Objects that became visible, and those that became whole later.
  std::uint64_t writes() const { return writes_; }
  /// Takes away the object at this place, oldest first. REQUIRES: at < size().
  void evict(std::size_t at) { erase(at); }
  /// Takes away one object. False: it is not there.
  bool evict(const Tag& tag);
  /// Changes a bit of one object's payload. False: it is not there.
  bool damage(const Tag& tag);
  /// Equal if the same objects are there in the same states.
  std::uint64_t state() const;

 private:
  struct Object {
    std::string key;
    Tag tag;
    std::vector<std::byte> bytes;
    std::size_t visible = 0;  // Bytes that a reader gets.
    bool whole = true;
    bool spoiled = false;
    Tick leased_until = 0;
    std::uint64_t id = 0;
  };
  template <typename Answer>
  struct Call;
  template <typename Answer>
  using CallPtr = std::shared_ptr<Call<Answer>>;

  template <typename Answer>
  void begin(CallPtr<Answer> call, Tick delay);
  template <typename Answer>
  void carry_on(CallPtr<Answer> call);
  template <typename Answer>
  void finish(CallPtr<Answer> call);
  template <typename Answer>
  void answer(Call<Answer>& call, std::vector<Answer> answers);

  bool put_step(Call<PutResult>& call, const Put& item, std::uint64_t* began, PutResult* result);
  bool make_room();
  PutResult add(const Put& item, std::uint64_t* began);
  bool complete(const Put& item, std::uint64_t began);
  void repeat(const std::vector<Put>& items);
  GetResult read(const Get& item);
  void damage_read(std::span<std::byte> bytes);

  Object* find(const std::string& key);
  Object* find(const Tag& tag);
  void erase(std::size_t at);
  Object* some_object();
  Object* other_object(const std::string& key);
  bool down() const { return loop_.now() < down_until_; }

  EventLoop& loop_;
  Choice& choice_;
  Faults& faults_;
  Oracle& oracle_;
  Journal& journal_;
  SimStoreOptions options_;
  const bool atomic_;
  std::vector<Object> objects_;  // Oldest first.
  std::unordered_map<std::string, std::size_t> index_;
  TransferWatch watch_;
  Tick down_until_ = 0;
  std::uint64_t next_id_ = 1;
  std::uint64_t writes_ = 0;
};

}  // namespace kvc::sim
