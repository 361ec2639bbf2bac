#include "store/mooncake/canary.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <utility>

#include "base/mutex.h"
#include "base/random.h"
#include "store/mooncake/mooncake_codes.h"

namespace kvc {
namespace {

constexpr Duration kRetryPause = std::chrono::milliseconds(100);

void pause_until(Deadline deadline, const Clock& clock) {
  Mutex mutex;
  CondVar nobody_notifies;
  const MutexLock lock(mutex);
  while (!deadline.passed(clock)) nobody_notifies.wait_until(mutex, deadline.at);
}

/// The only code of a reply for one key; empty if the call failed as a whole, then `failure` says
/// how.
bool single_code(const MooncakeReply& reply, const std::string& attempt, const std::string& store,
                 std::int64_t& code, Status& failure) {
  if (reply.codes.size() == 1 && reply.error.empty()) {
    code = reply.codes[0];
    return true;
  }
  const std::string reason = reply.error.empty()
                                 ? "an answer for " + std::to_string(reply.codes.size()) +
                                       " keys instead of one; is the installed Mooncake supported?"
                                 : reply.error;
  failure = {Code::kUnavailable,
             "Mooncake Store (" + store + "): " + attempt + " failed: " + reason};
  return false;
}

class Canary {
 public:
  Canary(MooncakeClient& client, std::string key, std::span<std::byte> sent,
         std::span<std::byte> received)
      : client_(client),
        store_(client.description()),
        key_(std::move(key)),
        sent_(sent),
        received_(received) {}

  /// `may_pass`: whether a failure can be over a little later.
  Status fly(bool& may_pass) {
    may_pass = false;
    Random(mix_text(1, key_)).fill(sent_);
    std::fill(received_.begin(), received_.end(), std::byte{0});
    std::int64_t code = 0;
    Status failure;
    if (!single_code(client_.batch_put_from({key_}, {sent_.data()}, {sent_.size()}, 1),
                     "putting the canary object", store_, code, failure)) {
      return failure;
    }
    if (code != 0) {
      const Reaction reaction = mooncake_put_result(code).reaction;
      may_pass = reaction == Reaction::kBackOff || reaction == Reaction::kStale;
      return mooncake_failure("putting the canary object", store_, code);
    }
    Status status = read_back(may_pass);
    const MooncakeReply removed = client_.batch_remove({key_});
    if (!status.ok()) return status;
    if (!single_code(removed, "removing the canary object", store_, code, failure)) return failure;
    return code == 0 ? Status() : mooncake_failure("removing the canary object", store_, code);
  }

 private:
  Status read_back(bool& may_pass) {
    std::int64_t code = 0;
    Status failure;
    if (!single_code(client_.batch_is_exist({key_}), "probing the canary object", store_, code,
                     failure)) {
      return failure;
    }
    if (code < 0) return mooncake_failure("probing the canary object", store_, code);
    if (code != 1) return rejected("it says that the object it just took is not there");
    if (!single_code(client_.batch_get_into({key_}, {received_.data()}, {received_.size()}),
                     "getting the canary object", store_, code, failure)) {
      return failure;
    }
    if (code < 0) {
      may_pass = mooncake_read_reaction(code) == Reaction::kStale;
      return mooncake_failure("getting the canary object", store_, code);
    }
    if (code != static_cast<std::int64_t>(sent_.size())) {
      return rejected("it returned " + std::to_string(code) + " bytes of " +
                      std::to_string(sent_.size()));
    }
    if (!std::equal(sent_.begin(), sent_.end(), received_.begin())) {
      return rejected("it returned other bytes than were put");
    }
    return {};
  }

  Status rejected(const std::string& what) const {
    return {Code::kUnavailable,
            "Mooncake Store (" + store_ + "): the canary object failed: " + what +
                ". Remedy: do not use this store; compare the releases of master, "
                "storage processes and the wheel installed here"};
  }

  MooncakeClient& client_;
  const std::string store_;
  const std::string key_;
  const std::span<std::byte> sent_;
  const std::span<std::byte> received_;
};

}  // namespace

Status send_canary(MooncakeClient& client, const CanaryOptions& options, const Clock& clock) {
  const Deadline deadline = Deadline::after(clock, options.budget);
  // Two halves of one registration: what is read must not be what was sent.
  const std::unique_ptr<std::byte[]> memory(new (std::nothrow) std::byte[2 * options.bytes]);
  if (memory == nullptr) {
    return {Code::kExhausted, "no memory for two canary buffers of " +
                                  std::to_string(options.bytes) + " bytes; lower canary_bytes"};
  }
  std::int64_t code = 0;
  Status status;
  if (!single_code(client.register_buffer(memory.get(), 2 * options.bytes),
                   "registering the canary buffers", client.description(), code, status)) {
    return status;
  }
  if (code != 0) {
    return mooncake_failure("registering the canary buffers", client.description(), code);
  }
  bool may_pass = true;
  for (int attempt = 0; may_pass; ++attempt) {
    // A failed put can block its key for half a minute.
    Canary canary(client, "kvc-canary/" + options.instance + "/" + std::to_string(attempt),
                  {memory.get(), options.bytes}, {memory.get() + options.bytes, options.bytes});
    status = canary.fly(may_pass);
    if (status.ok() || deadline.passed(clock)) break;
    if (may_pass) pause_until(Deadline::after(clock, kRetryPause).earlier_of(deadline), clock);
  }
  client.unregister_buffer(memory.get());
  return status;
}

}  // namespace kvc
