#include "store/mooncake/mooncake_store.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/mutex.h"
#include "store/call_gate.h"
#include "store/item_traits.h"
#include "store/mooncake/canary.h"
#include "store/mooncake/mooncake_codes.h"
#include "store/mooncake/replica_copier.h"
#include "store/mooncake/replica_reader.h"
#include "store/registered_ranges.h"

namespace kvc {
namespace {

// The client cuts an object into pieces of this size for the wire; each counts as a buffer.
constexpr std::size_t kSliceBytes = (std::size_t{16} << 20) - 16;
// Unexpected codes that are logged, each once.
constexpr std::size_t kMaxReportedCodes = 32;

/// The client waits a minute for a transfer, answers -800 and does not cancel it: what it still
/// does to the buffers after that, nobody can tell.
constexpr Duration kTransferGivenUpAfter = std::chrono::seconds(55);

std::size_t buffers_of(std::size_t bytes) { return (bytes + kSliceBytes - 1) / kSliceBytes; }

/// Places of items in the caller's batch.
using Places = std::vector<std::size_t>;

class MooncakeStore final : public Store {
 public:
  MooncakeStore(std::shared_ptr<MooncakeClient> client, MooncakeStoreOptions options,
                std::shared_ptr<Logger> logger, std::shared_ptr<const Clock> clock)
      : client_(std::move(client)),
        options_(std::move(options)),
        logger_(std::move(logger)),
        clock_(std::move(clock)),
        budget_(options_.budget ? options_.budget : std::make_shared<TransferBudget>()),
        max_replicas_(client_->knows_replicas() ? options_.max_replicas : 1),
        pause_(options_.put_pause),
        copier_(client_, clock_, logger_),
        reader_(client_, clock_, {.lease = options_.lease}) {}
  // No call is inside: whoever destroys the store has the last reference to it.
  ~MooncakeStore() override { close(Deadline::never()); }

  StoreCapabilities capabilities() const override {
    StoreCapabilities capabilities;
    capabilities.atomic_publish = true;
    capabilities.put_tells_existing = false;
    capabilities.lease = options_.lease;
    capabilities.max_object_bytes = options_.max_object_bytes;
    capabilities.shared_between_processes = true;
    capabilities.max_replicas = max_replicas_;
    return capabilities;
  }

  std::vector<Reaction> exists(std::vector<std::string> keys, CallContext context) override {
    return guarded<Reaction>(keys.size(), [&](std::vector<Reaction>& results) {
      ask_about_keys(keys, context.deadline, results, &MooncakeClient::batch_is_exist,
                     [](std::int64_t code) {
                       if (code < 0) return mooncake_read_reaction(code);
                       return code == 0 ? Reaction::kMiss : Reaction::kOk;
                     });
    });
  }

  std::vector<Reaction> remove(std::vector<std::string> keys, CallContext context) override {
    return guarded<Reaction>(keys.size(), [&](std::vector<Reaction>& results) {
      ask_about_keys(keys, context.deadline, results, &MooncakeClient::batch_remove,
                     [](std::int64_t code) {
                       return code < 0 ? mooncake_read_reaction(code) : Reaction::kOk;
                     });
    });
  }

  std::vector<Reaction> replicate(std::vector<ReplicaItem> items, CallContext context) override {
    if (max_replicas_ <= 1) return Store::replicate(std::move(items), std::move(context));
    return guarded<Reaction>(items.size(), [&](std::vector<Reaction>& results) {
      std::unordered_map<std::string_view, std::size_t> place_of;
      std::vector<ReplicaItem> distinct;
      for (const ReplicaItem& item : items) {
        if (item.key.empty()) continue;
        const auto [found, is_new] = place_of.try_emplace(item.key, distinct.size());
        if (is_new) distinct.push_back({item.key, 1});
        std::uint32_t& wanted = distinct[found->second].replicas;
        wanted = std::max(wanted, std::min(item.replicas, max_replicas_));
      }
      const std::vector<Reaction> reactions = copier_.replicate(distinct, context.deadline);
      for (std::size_t i = 0; i < items.size(); ++i) {
        const auto found = place_of.find(items[i].key);
        results[i] = found == place_of.end() ? Reaction::kCallerBug : reactions[found->second];
      }
    });
  }

  std::vector<PutResult> put(std::vector<PutItem> items, CallContext context) override {
    return guarded<PutResult>(items.size(), [&](std::vector<PutResult>& results) {
      const Instant begin = clock_->now();
      Places todo;
      for (std::size_t i = 0; i < items.size(); ++i) {
        const PutItem& item = items[i];
        if (item.key.empty() || item.data == nullptr || item.bytes == 0 ||
            item.bytes > options_.max_object_bytes) {
          results[i] = {Reaction::kCallerBug, PutEffect::kNone};
        } else {
          todo.push_back(i);
        }
      }
      // One key occurs once in a call, or the store would keep the last of its payloads. Each round
      // answers at least one occurrence of every key that is left.
      while (!todo.empty()) todo = put_round(items, todo, context.deadline, results);
      keep_if_given_up(begin, context.hold);
    });
  }

  std::vector<GetResult> get(std::vector<GetItem> items, CallContext context) override {
    return guarded<GetResult>(items.size(), [&](std::vector<GetResult>& results) {
      const Instant begin = clock_->now();
      // One key occurs once in a call, or only the last of its buffers would be filled. The largest
      // buffer is read into, the others are copied from it.
      std::unordered_map<std::string_view, std::size_t> leader_of;
      for (std::size_t i = 0; i < items.size(); ++i) {
        if (items[i].key.empty() || items[i].data == nullptr || items[i].capacity == 0) {
          results[i] = {Reaction::kCallerBug, 0};
          continue;
        }
        const auto [found, is_new] = leader_of.try_emplace(items[i].key, i);
        if (!is_new && items[i].capacity > items[found->second].capacity) found->second = i;
      }
      const auto is_valid = [&](std::size_t i) {
        return results[i].reaction != Reaction::kCallerBug;
      };
      Places leaders;
      Places followers;
      for (std::size_t i = 0; i < items.size(); ++i) {
        if (!is_valid(i)) continue;
        (leader_of.find(items[i].key)->second == i ? leaders : followers).push_back(i);
      }
      const bool given_up = get_parts(items, leaders, context.deadline, results);
      for (const std::size_t i : followers) {
        const std::size_t leader = leader_of.find(items[i].key)->second;
        results[i] = copy_from(items[leader], results[leader], items[i]);
      }
      keep_if_given_up(begin, context.hold, given_up);
    });
  }

  Status register_memory(std::span<std::byte> memory) override {
    return control([&] {
      const MutexLock lock(memory_mutex_);
      if (Status status = registered_.add(memory); !status.ok()) return status;
      Status status = control_status("registering " + std::to_string(memory.size()) + " bytes",
                                     client_->register_buffer(memory.data(), memory.size()));
      if (!status.ok()) (void)registered_.remove(memory);
      return status;
    });
  }

  Status unregister_memory(std::span<std::byte> memory) override {
    return control([&] {
      const MutexLock lock(memory_mutex_);
      if (Status status = registered_.remove(memory); !status.ok()) return status;
      return control_status("unregistering " + std::to_string(memory.size()) + " bytes",
                            client_->unregister_buffer(memory.data()));
    });
  }

  void close(Deadline deadline) override {
    copier_.stop();
    // If calls are still inside at the deadline, the last of them closes the client.
    if (gate_.shut(deadline, *clock_)) client_->close();
  }

 private:
  /// Buffers of a transfer that the client may have given up are never used again.
  void keep_if_given_up(Instant begin, const BufferHold& hold, bool given_up = false) {
    given_up = given_up || clock_->now() - begin >= kTransferGivenUpAfter;
    if (hold == nullptr || !given_up) return;
    logger_->log(LogLevel::kWarning,
                 "Mooncake Store (" + client_->description() +
                     ") gave up a transfer that may go on; its staging memory stays out of use");
    const MutexLock lock(memory_mutex_);
    never_released_.push_back(hold);
  }

  template <typename Answer, typename Work>
  std::vector<Answer> guarded(std::size_t count, Work work) {
    std::vector<Answer> results = all_not_done<Answer>(count, Reaction::kDown);
    if (count == 0 || !gate_.enter()) return results;
    work(results);
    if (gate_.leave()) client_->close();
    return results;
  }

  template <typename Work>
  Status control(Work work) {
    if (!gate_.enter()) {
      return {Code::kUnavailable,
              "Mooncake Store (" + client_->description() + "): this client is closed"};
    }
    Status status = work();
    if (gate_.leave()) client_->close();
    return status;
  }

  Status control_status(const std::string& attempt, const MooncakeReply& reply) {
    if (reply.codes.size() != 1 || !reply.error.empty()) {
      return {Code::kUnavailable, "Mooncake Store (" + client_->description() + "): " + attempt +
                                      " failed: " + reason_of(reply, 1)};
    }
    return reply.codes[0] == 0 ? Status()
                               : mooncake_failure(attempt, client_->description(), reply.codes[0]);
  }

  /// exists and remove: calls of at most max_call_keys. Items that are not reached stay kDown.
  template <typename Judge>
  void ask_about_keys(const std::vector<std::string>& keys, Deadline deadline,
                      std::vector<Reaction>& results,
                      MooncakeReply (MooncakeClient::*method)(const std::vector<std::string>&),
                      Judge judge) {
    Places todo;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (keys[i].empty()) {
        results[i] = Reaction::kCallerBug;
      } else {
        todo.push_back(i);
      }
    }
    for (std::size_t from = 0; from < todo.size(); from += options_.max_call_keys) {
      if (deadline.passed(*clock_)) return;
      const std::size_t to = std::min(from + options_.max_call_keys, todo.size());
      std::vector<std::string> part;
      part.reserve(to - from);
      for (std::size_t i = from; i < to; ++i) part.push_back(keys[todo[i]]);
      const MooncakeReply reply = (client_.get()->*method)(part);
      if (!is_complete(reply, to - from)) return;
      bool all_down = true;
      for (std::size_t i = from; i < to; ++i) {
        const std::int64_t code = note(reply.codes[i - from]);
        results[todo[i]] = judge(code);
        all_down = all_down && results[todo[i]] == Reaction::kDown;
      }
      if (all_down) return;
    }
  }

  /// Puts the first occurrence of each key; returns what is to be put in the next round.
  Places put_round(const std::vector<PutItem>& items, const Places& todo, Deadline deadline,
                   std::vector<PutResult>& results) {
    std::unordered_map<std::string_view, std::size_t> first_of;
    Places firsts;
    Places repeats;
    for (const std::size_t i : todo) {
      const bool is_first = first_of.try_emplace(items[i].key, i).second;
      (is_first ? firsts : repeats).push_back(i);
    }
    std::stable_sort(firsts.begin(), firsts.end(), [&items](std::size_t a, std::size_t b) {
      return items[a].replicas < items[b].replicas;
    });
    put_parts(items, firsts, deadline, results);
    Places left;
    for (const std::size_t i : repeats) {
      const PutResult& first = results[first_of.find(items[i].key)->second];
      if (first.reaction == Reaction::kOk) {
        results[i] = {Reaction::kOk, PutEffect::kExisted};
      } else if (first.reaction == Reaction::kDown || first.reaction == Reaction::kStale) {
        results[i] = not_done<PutResult>(first.reaction);  // another call would fare no better
      } else {
        left.push_back(i);
      }
    }
    return left;
  }

  void put_parts(const std::vector<PutItem>& items, const Places& todo, Deadline deadline,
                 std::vector<PutResult>& results) {
    std::size_t from = 0;
    while (from < todo.size()) {
      if (pause_.active(clock_->now())) {
        for (; from < todo.size(); ++from) {
          results[todo[from]] = {Reaction::kBackOff, PutEffect::kNone};
        }
        return;
      }
      Part part = next_part(todo, from, [&](std::size_t i) { return items[i].bytes; });
      // One call has one number of replicas.
      const std::uint32_t replicas = replicas_of(items[todo[from]]);
      const auto differs = [&](std::size_t i) { return replicas_of(items[i]) != replicas; };
      part.end = static_cast<std::size_t>(
          std::find_if(todo.begin() + static_cast<std::ptrdiff_t>(from),
                       todo.begin() + static_cast<std::ptrdiff_t>(part.end), differs) -
          todo.begin());
      const TransferBudget::Grant grant = take_budget(part, deadline);
      if (!grant) return;
      std::vector<std::string> keys;
      std::vector<const std::byte*> data;
      std::vector<std::size_t> sizes;
      for (std::size_t i = from; i < part.end; ++i) {
        keys.push_back(items[todo[i]].key);
        data.push_back(items[todo[i]].data);
        sizes.push_back(items[todo[i]].bytes);
      }
      const MooncakeReply reply = client_->batch_put_from(keys, data, sizes, replicas);
      if (!is_complete(reply, keys.size())) {
        for (; from < part.end; ++from) {
          results[todo[from]] = {Reaction::kDown, PutEffect::kUnknown};
        }
        return;
      }
      bool all_down = true;
      for (std::size_t i = from; i < part.end; ++i) {
        results[todo[i]] = mooncake_put_result(note(reply.codes[i - from]));
        all_down = all_down && results[todo[i]].reaction == Reaction::kDown;
      }
      learn_from_puts(todo, from, part.end, results);
      if (all_down) return;
      from = part.end;
    }
  }

  void learn_from_puts(const Places& todo, std::size_t from, std::size_t to,
                       const std::vector<PutResult>& results) {
    bool refused = false;
    bool accepted = false;
    for (std::size_t i = from; i < to; ++i) {
      refused = refused || results[todo[i]].reaction == Reaction::kBackOff;
      accepted = accepted || results[todo[i]].reaction == Reaction::kOk;
    }
    if (refused && pause_.refused(clock_->now())) {
      logger_->log(LogLevel::kWarning,
                   "Mooncake Store (" + client_->description() +
                       ") has no room for new objects; saving pauses and is tried again");
    }
    if (!refused && accepted && pause_.accepted(clock_->now())) {
      logger_->log(LogLevel::kInfo,
                   "Mooncake Store (" + client_->description() + ") has room again");
    }
  }

  /// True: a transfer was given up, and may go on into its buffer.
  bool get_parts(const std::vector<GetItem>& items, const Places& todo, Deadline deadline,
                 std::vector<GetResult>& results) {
    std::size_t from = 0;
    bool given_up = false;
    while (from < todo.size()) {
      const Part part = next_part(todo, from, [&](std::size_t i) { return items[i].capacity; });
      const TransferBudget::Grant grant = take_budget(part, deadline);
      if (!grant) return given_up;
      std::vector<ReplicaRead> reads;
      reads.reserve(part.end - from);
      for (std::size_t i = from; i < part.end; ++i) {
        const GetItem& item = items[todo[i]];
        reads.push_back({item.key, item.data, item.capacity});
      }
      if (max_replicas_ > 1) {
        given_up = reader_.read_around_suspects(reads, deadline) || given_up;
      }
      if (!get_first_copies(reads)) return given_up;
      if (max_replicas_ > 1) {
        given_up = reader_.read_failed_elsewhere(reads, deadline) || given_up;
      }
      bool all_down = true;
      for (std::size_t i = from; i < part.end; ++i) {
        results[todo[i]] = read_result(note(reads[i - from].code), items[todo[i]].capacity);
        all_down = all_down && results[todo[i]].reaction == Reaction::kDown;
      }
      if (all_down) return given_up;
      from = part.end;
    }
    return given_up;
  }

  /// Reads what was not read yet. False: the call failed as a whole.
  bool get_first_copies(std::vector<ReplicaRead>& reads) {
    std::vector<std::string> keys;
    std::vector<std::byte*> data;
    std::vector<std::size_t> sizes;
    Places asked;
    for (std::size_t i = 0; i < reads.size(); ++i) {
      if (reads[i].code != ReplicaRead::kNotRead) continue;
      asked.push_back(i);
      keys.push_back(reads[i].key);
      data.push_back(reads[i].data);
      sizes.push_back(reads[i].capacity);
    }
    if (asked.empty()) return true;
    const MooncakeReply reply = client_->batch_get_into(keys, data, sizes);
    if (!is_complete(reply, keys.size())) return false;
    for (std::size_t n = 0; n < asked.size(); ++n) reads[asked[n]].code = reply.codes[n];
    return true;
  }

  std::uint32_t replicas_of(const PutItem& item) const {
    return std::clamp<std::uint32_t>(item.replicas, 1, max_replicas_);
  }

  /// An object has at least one byte, and no more than the buffer took.
  static GetResult read_result(std::int64_t code, std::size_t capacity) {
    if (code < 0) return {mooncake_read_reaction(code), 0};
    const auto bytes = static_cast<std::size_t>(code);
    if (bytes == 0 || bytes > capacity) return {Reaction::kStale, 0};
    return {Reaction::kOk, bytes};
  }

  static GetResult copy_from(const GetItem& leader, const GetResult& result, const GetItem& item) {
    if (result.reaction != Reaction::kOk) return result;
    if (result.bytes > item.capacity) return {Reaction::kCallerBug, 0};
    std::memmove(item.data, leader.data, result.bytes);
    return result;
  }

  /// The next call: items [from, end) of a list of places.
  struct Part {
    std::size_t end = 0;
    std::size_t buffers = 0;
    std::size_t bytes = 0;
  };

  template <typename BytesOf>
  Part next_part(const Places& todo, std::size_t from, BytesOf bytes_of) const {
    const std::size_t max_buffers = std::min(options_.max_call_buffers, budget_->limits().buffers);
    Part part{from, 0, 0};
    while (part.end < todo.size()) {
      const std::size_t bytes = bytes_of(todo[part.end]);
      const bool is_first = part.end == from;
      if (!is_first && (part.buffers + buffers_of(bytes) > max_buffers ||
                        part.bytes + bytes > options_.max_call_bytes)) {
        break;
      }
      part.buffers += buffers_of(bytes);
      part.bytes += bytes;
      ++part.end;
    }
    return part;
  }

  /// Empty if the deadline passed.
  TransferBudget::Grant take_budget(const Part& part, Deadline deadline) {
    if (deadline.passed(*clock_)) return {};
    return budget_->acquire(part.buffers, part.bytes, deadline, *clock_);
  }

  static std::string reason_of(const MooncakeReply& reply, std::size_t expected) {
    if (!reply.error.empty()) return reply.error;
    return "an answer for " + std::to_string(reply.codes.size()) + " items instead of " +
           std::to_string(expected);
  }

  /// Whether each item has its code; says so in the log, once per reason, if not.
  bool is_complete(const MooncakeReply& reply, std::size_t expected) {
    if (reply.error.empty() && reply.codes.size() == expected) return true;
    report("a call failed as a whole: " + reason_of(reply, expected));
    return false;
  }

  /// Passes a code through; says so in the log, once per code, if it is not a documented one.
  std::int64_t note(std::int64_t code) {
    if (code < 0 && !is_known_mooncake_code(code)) {
      report("unknown code " + std::to_string(code) + ", counted as a failed transfer");
    }
    return code;
  }

  void report(const std::string& what) {
    {
      const MutexLock lock(report_mutex_);
      if (reported_.size() >= kMaxReportedCodes || !reported_.insert(what).second) return;
    }
    logger_->log(LogLevel::kWarning, "Mooncake Store (" + client_->description() + "): " + what);
  }

  const std::shared_ptr<MooncakeClient> client_;
  const MooncakeStoreOptions options_;
  const std::shared_ptr<Logger> logger_;
  const std::shared_ptr<const Clock> clock_;
  const std::shared_ptr<TransferBudget> budget_;
  const std::uint32_t max_replicas_;
  PutPause pause_;
  ReplicaCopier copier_;
  ReplicaReader reader_;
  CallGate gate_;

  Mutex memory_mutex_;  // also keeps registrations of the client in the order of registered_
  RegisteredRanges registered_ KVC_GUARDED_BY(memory_mutex_);
  std::vector<BufferHold> never_released_ KVC_GUARDED_BY(memory_mutex_);
  Mutex report_mutex_;
  std::set<std::string> reported_ KVC_GUARDED_BY(report_mutex_);
};

}  // namespace

Result<std::shared_ptr<Store>> open_mooncake_store(std::shared_ptr<MooncakeClient> client,
                                                   MooncakeStoreOptions options,
                                                   std::shared_ptr<Logger> logger,
                                                   std::shared_ptr<const Clock> clock) {
  if (options.instance.empty()) {
    return invalid("MooncakeStoreOptions::instance is empty: name this client uniquely");
  }
  if (options.canary_bytes == 0 || options.max_call_buffers == 0 || options.max_call_bytes == 0 ||
      options.max_call_keys == 0) {
    return invalid(
        "MooncakeStoreOptions: canary_bytes, max_call_buffers, max_call_bytes and max_call_keys "
        "must be above zero");
  }
  CanaryOptions canary;
  canary.instance = options.instance;
  canary.bytes = options.canary_bytes;
  canary.budget = options.canary_budget;
  if (Status status = send_canary(*client, canary, *clock); !status.ok()) {
    client->close();
    return status;
  }
  return std::shared_ptr<Store>(std::make_shared<MooncakeStore>(
      std::move(client), std::move(options), std::move(logger), std::move(clock)));
}

}  // namespace kvc
