#include "store/mooncake/mooncake_codes.h"

#include <algorithm>
#include <iterator>
#include <string_view>

namespace kvc {
namespace {

struct CodeRow {
  std::int64_t code;
  std::string_view name;
  Reaction reaction;
};

// Every code of the store's protocol. What is not one of the five named classes is a failed read.
constexpr CodeRow kCodes[] = {
    {-1, "INTERNAL_ERROR", Reaction::kStale},
    {-10, "BUFFER_OVERFLOW", Reaction::kCallerBug},
    {-100, "SHARD_INDEX_OUT_OF_RANGE", Reaction::kStale},
    {-101, "SEGMENT_NOT_FOUND", Reaction::kStale},
    {-102, "SEGMENT_ALREADY_EXISTS", Reaction::kStale},
    {-103, "CLIENT_NOT_FOUND", Reaction::kStale},
    {-200, "NO_AVAILABLE_HANDLE", Reaction::kBackOff},
    {-300, "INVALID_VERSION", Reaction::kStale},
    {-400, "INVALID_KEY", Reaction::kStale},
    {-500, "WRITE_FAIL", Reaction::kStale},
    {-600, "INVALID_PARAMS", Reaction::kCallerBug},
    {-601, "ILLEGAL_CLIENT", Reaction::kCallerBug},
    {-700, "INVALID_WRITE", Reaction::kStale},
    {-701, "INVALID_READ", Reaction::kStale},
    {-702, "INVALID_REPLICA", Reaction::kStale},
    {-703, "REPLICA_IS_NOT_READY", Reaction::kMiss},
    {-704, "OBJECT_NOT_FOUND", Reaction::kMiss},
    {-705, "OBJECT_ALREADY_EXISTS", Reaction::kStale},
    {-706, "OBJECT_HAS_LEASE", Reaction::kBackOff},
    {-707, "LEASE_EXPIRED", Reaction::kStale},
    {-800, "TRANSFER_FAIL", Reaction::kStale},
    {-801, "CHECKSUM_MISMATCH", Reaction::kStale},
    {-900, "RPC_FAIL", Reaction::kDown},
    {-901, "RPC_TIMEOUT", Reaction::kDown},
    {-1010, "UNAVAILABLE_IN_CURRENT_STATUS", Reaction::kDown},
    {-1011, "UNAVAILABLE_IN_CURRENT_MODE", Reaction::kStale},
    {-1012, "NOT_SUPPORTED", Reaction::kStale},
    {-1700, "TENANT_QUOTA_EXCEEDED", Reaction::kBackOff},
    {-1701, "TENANT_NOT_REGISTERED", Reaction::kStale},
    {-1702, "TENANT_NOT_EMPTY", Reaction::kStale},
};

const CodeRow* find_row(std::int64_t code) {
  const auto* const row = std::find_if(std::begin(kCodes), std::end(kCodes),
                                       [code](const CodeRow& one) { return one.code == code; });
  return row == std::end(kCodes) ? nullptr : row;
}

struct Advice {
  std::int64_t code;
  Code status;
  std::string_view text;
};

constexpr Advice kAdvice[] = {
    {-200, Code::kExhausted,
     "no storage process with free memory is registered at this master, or everything in it is "
     "leased. Remedy: start one (mooncake_client --global_segment_size=...) and look at the "
     "master's /get_all_segments; a store full of leased objects has room again after the lease "
     "time (10 s)"},
    {-600, Code::kInvalid,
     "the client refused the parameters. Remedy: check protocol, device names and that the "
     "buffers could be registered for them"},
    {-800, Code::kUnavailable,
     "the master answers but the data did not get through. A storage process died in the last "
     "10 s and is still listed, its address cannot be reached from here, or a firewall is in "
     "between. Remedy: start storage processes with an explicit --host that this machine can "
     "reach, and open their ports"},
    {-900, Code::kUnavailable,
     "the remote call failed. The master is not reachable, or it is of another Mooncake release "
     "than the wheel that is installed here. Remedy: compare `mooncake_master --version` with the "
     "version of the wheel, which must be the same, and check the address"},
    {-901, Code::kUnavailable,
     "the master does not answer in time. Remedy: check that it is not stopped or overloaded, and "
     "the network between"},
    {-1700, Code::kExhausted,
     "the tenant's quota is used up. Remedy: raise it at the master or use another "
     "MOONCAKE_TENANT_ID"},
    {-1701, Code::kInvalid,
     "the master does not know this tenant. Remedy: register it there or set MOONCAKE_TENANT_ID"},
};

}  // namespace

std::string describe_mooncake_code(std::int64_t code) {
  const CodeRow* const row = find_row(code);
  std::string text = std::to_string(code);
  if (row != nullptr) text.append(" (").append(row->name).append(")");
  return text;
}

bool is_known_mooncake_code(std::int64_t code) { return find_row(code) != nullptr; }

Reaction mooncake_read_reaction(std::int64_t code) {
  const CodeRow* const row = find_row(code);
  return row == nullptr ? Reaction::kStale : row->reaction;
}

PutResult mooncake_put_result(std::int64_t code) {
  if (code == 0) return {Reaction::kOk, PutEffect::kUnknown};
  const CodeRow* const row = find_row(code);
  // A put that "misses" lost its half-written object on the way.
  const bool failed = row == nullptr || row->reaction == Reaction::kMiss;
  const Reaction reaction = failed ? Reaction::kStale : row->reaction;
  const bool refused = reaction == Reaction::kBackOff || reaction == Reaction::kCallerBug;
  return {reaction, refused ? PutEffect::kNone : PutEffect::kUnknown};
}

Status mooncake_failure(const std::string& attempt, const std::string& store, std::int64_t code) {
  const auto* const advice = std::find_if(std::begin(kAdvice), std::end(kAdvice),
                                          [code](const Advice& one) { return one.code == code; });
  std::string message = "Mooncake Store (" + store + "): " + attempt + " failed with " +
                        describe_mooncake_code(code) + ": ";
  if (advice == std::end(kAdvice)) {
    return {Code::kUnavailable, message + "see the log of the master and of the storage processes"};
  }
  return {advice->status, message.append(advice->text)};
}

}  // namespace kvc
