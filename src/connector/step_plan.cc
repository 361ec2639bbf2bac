// magic and version (4) | keyspace (16) | flags (1) | loads | saves | absent | hot | released |
// done holds | live holds | rendezvous | XXH3-64 of all before (8)
//
// Numbers are little-endian base-128 varints in their shortest form. A list is its length and the
// tasks; a task is request and slot as signed differences to the task before, and the block's hash.
// Requests come in runs and slots often too, so that a task mostly costs two bytes over its hash.
// Holds are written as differences too. `absent` are the places in `saves` from which on blocks are
// absent, and are not, in turn, each as the difference to the one before.
#include "kvc/step_plan.h"

#include <xxhash.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/bytes.h"
#include "kvc/replication.h"

namespace kvc {
namespace {

constexpr std::uint32_t kMagicAndVersion = 0x0450564bu;  // "KVP", 4
constexpr std::size_t kChecksumBytes = 8;
constexpr std::size_t kTaskBytesMin = 1 + 1 + sizeof(BlockHash);
constexpr std::size_t kHotBytesMin = 1 + sizeof(BlockHash);
constexpr std::size_t kReleaseBytesMin = 1 + 1;
constexpr std::size_t kHoldBytesMin = 1;
constexpr unsigned kVarintBytesMax = 10;
constexpr std::uint8_t kLoadsInBatch = 1;
constexpr std::uint8_t kLoadsLost = 2;

std::uint64_t checksum_of(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

void write_varint(ByteWriter& out, std::uint64_t value) {
  while (value >= 0x80) {
    out.u8(static_cast<std::uint8_t>(value | 0x80));
    value >>= 7;
  }
  out.u8(static_cast<std::uint8_t>(value));
}

/// Small differences of either sign become small numbers.
std::uint64_t zigzag(std::uint64_t difference) {
  return (difference << 1) ^ (difference >> 63 != 0 ? ~std::uint64_t{0} : 0);
}

std::uint64_t unzigzag(std::uint64_t value) {
  return (value >> 1) ^ ((value & 1) != 0 ? ~std::uint64_t{0} : 0);
}

void write_tasks(ByteWriter& out, const std::vector<PageTask>& tasks) {
  write_varint(out, tasks.size());
  std::uint64_t request = 0;
  std::uint64_t slot = 0;
  for (const PageTask& task : tasks) {
    const auto task_slot = static_cast<std::uint64_t>(task.slot);
    write_varint(out, zigzag(task.request - request));
    write_varint(out, zigzag(task_slot - slot));
    out.raw(task.block.bytes);
    request = task.request;
    slot = task_slot;
  }
}

/// False for a varint that is cut off, longer than need be, or above 64 bits.
bool read_varint(ByteReader& in, std::uint64_t* value) {
  *value = 0;
  for (unsigned i = 0; i < kVarintBytesMax; ++i) {
    const std::uint8_t byte = in.u8();
    if (!in.ok()) return false;
    const bool overflows = i + 1 == kVarintBytesMax && byte > 1;
    const bool padded = i > 0 && byte == 0;
    if (overflows || padded) return false;
    *value |= static_cast<std::uint64_t>(byte & 0x7f) << (7 * i);
    if (byte < 0x80) return true;
  }
  return false;
}

bool read_tasks(ByteReader& in, std::vector<PageTask>* tasks) {
  std::uint64_t count = 0;
  // The bound keeps a forged count from reserving more memory than the input is worth.
  if (!read_varint(in, &count) || count > in.remaining() / kTaskBytesMin) return false;
  tasks->reserve(static_cast<std::size_t>(count));
  std::uint64_t request = 0;
  std::uint64_t slot = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    std::uint64_t request_step = 0;
    std::uint64_t slot_step = 0;
    if (!read_varint(in, &request_step) || !read_varint(in, &slot_step)) return false;
    const std::span<const std::byte> hash = in.raw(sizeof(BlockHash));
    if (!in.ok()) return false;
    request += unzigzag(request_step);
    slot += unzigzag(slot_step);
    PageTask& task = tasks->emplace_back();
    task.request = request;
    task.slot = static_cast<SlotIndex>(slot);
    std::copy(hash.begin(), hash.end(), task.block.bytes.begin());
  }
  return true;
}

void write_absent(ByteWriter& out, const std::vector<PageTask>& saves) {
  std::vector<std::size_t> turns;
  for (std::size_t i = 0; i < saves.size(); ++i) {
    const bool before = turns.size() % 2 == 1;
    if (saves[i].absent != before) turns.push_back(i);
  }
  write_varint(out, turns.size());
  std::size_t last = 0;
  for (const std::size_t turn : turns) write_varint(out, turn - std::exchange(last, turn));
}

bool read_absent(ByteReader& in, std::vector<PageTask>* saves) {
  std::uint64_t turns = 0;
  if (!read_varint(in, &turns) || turns > saves->size()) return false;
  std::size_t at = 0;
  for (std::uint64_t turn = 0; turn < turns; ++turn) {
    std::uint64_t step = 0;
    if (!read_varint(in, &step) || step >= saves->size() - at || (turn > 0 && step == 0)) {
      return false;
    }
    for (const std::size_t end = at + static_cast<std::size_t>(step); at < end; ++at) {
      (*saves)[at].absent = turn % 2 == 1;
    }
  }
  for (; at < saves->size(); ++at) (*saves)[at].absent = turns % 2 == 1;
  return true;
}

void write_hot(ByteWriter& out, const std::vector<HotBlock>& hot) {
  write_varint(out, hot.size());
  for (const HotBlock& one : hot) {
    write_varint(out, one.replicas);
    out.raw(one.block.bytes);
  }
}

bool read_hot(ByteReader& in, std::vector<HotBlock>* hot) {
  std::uint64_t count = 0;
  if (!read_varint(in, &count) || count > in.remaining() / kHotBytesMin) return false;
  hot->reserve(static_cast<std::size_t>(count));
  for (std::uint64_t i = 0; i < count; ++i) {
    std::uint64_t replicas = 0;
    if (!read_varint(in, &replicas) || replicas < 2 || replicas > kReplicasMax) return false;
    const std::span<const std::byte> hash = in.raw(sizeof(BlockHash));
    if (!in.ok()) return false;
    HotBlock& one = hot->emplace_back();
    one.replicas = static_cast<std::uint32_t>(replicas);
    std::copy(hash.begin(), hash.end(), one.block.bytes.begin());
  }
  return true;
}

void write_releases(ByteWriter& out, const std::vector<HoldRelease>& releases) {
  write_varint(out, releases.size());
  HoldId hold = 0;
  for (const HoldRelease& release : releases) {
    write_varint(out, zigzag(release.hold - hold));
    write_varint(out, release.from_block);
    hold = release.hold;
  }
}

bool read_releases(ByteReader& in, std::vector<HoldRelease>* releases) {
  std::uint64_t count = 0;
  if (!read_varint(in, &count) || count > in.remaining() / kReleaseBytesMin) return false;
  releases->reserve(static_cast<std::size_t>(count));
  HoldId hold = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    std::uint64_t step = 0;
    std::uint64_t from_block = 0;
    if (!read_varint(in, &step) || !read_varint(in, &from_block)) return false;
    if (from_block > std::numeric_limits<std::uint32_t>::max()) return false;
    hold += unzigzag(step);
    releases->push_back({hold, static_cast<std::uint32_t>(from_block)});
  }
  return true;
}

void write_holds(ByteWriter& out, const std::vector<HoldId>& holds) {
  write_varint(out, holds.size());
  HoldId before = 0;
  for (const HoldId hold : holds) {
    write_varint(out, zigzag(hold - before));
    before = hold;
  }
}

bool read_holds(ByteReader& in, std::vector<HoldId>* holds) {
  std::uint64_t count = 0;
  if (!read_varint(in, &count) || count > in.remaining() / kHoldBytesMin) return false;
  holds->reserve(static_cast<std::size_t>(count));
  HoldId hold = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    std::uint64_t step = 0;
    if (!read_varint(in, &step)) return false;
    hold += unzigzag(step);
    holds->push_back(hold);
  }
  return true;
}

/// One byte where nothing is said.
void write_live(ByteWriter& out, const LiveHolds& holds) {
  write_varint(out, holds.newest);
  if (holds.newest != 0) write_holds(out, holds.live);
}

bool read_live(ByteReader& in, LiveHolds* holds) {
  if (!read_varint(in, &holds->newest)) return false;
  return holds->newest == 0 || read_holds(in, &holds->live);
}

void write_text(ByteWriter& out, std::string_view text) {
  write_varint(out, text.size());
  out.raw(as_bytes(text));
}

bool read_text(ByteReader& in, std::string* text) {
  std::uint64_t size = 0;
  if (!read_varint(in, &size) || size > in.remaining()) return false;
  *text = as_text(in.raw(static_cast<std::size_t>(size)));
  return in.ok();
}

Status malformed(std::size_t size) {
  return invalid("step plan of " + std::to_string(size) +
                 " bytes is malformed: it was cut off or altered on its way");
}

}  // namespace

std::string encode_step_plan(const StepPlan& plan) {
  std::vector<std::byte> bytes;
  bytes.reserve(64 + (plan.loads.size() + plan.saves.size()) * (kTaskBytesMin + 4) +
                plan.hot.size() * (kHotBytesMin + 1) +
                (plan.released.size() + plan.done_holds.size() + plan.live_holds.live.size()) *
                    (kReleaseBytesMin + 1) +
                plan.rendezvous.size());
  ByteWriter out(&bytes);
  out.u32(kMagicAndVersion);
  out.raw(plan.keyspace);
  out.u8(static_cast<std::uint8_t>((plan.loads_in_batch ? kLoadsInBatch : 0) |
                                   (plan.loads_lost ? kLoadsLost : 0)));
  write_tasks(out, plan.loads);
  write_tasks(out, plan.saves);
  write_absent(out, plan.saves);
  write_hot(out, plan.hot);
  write_releases(out, plan.released);
  write_holds(out, plan.done_holds);
  write_live(out, plan.live_holds);
  write_text(out, plan.rendezvous);
  out.u64(checksum_of(bytes));
  return std::string(as_text(bytes));
}

Result<StepPlan> decode_step_plan(std::span<const std::byte> bytes) {
  ByteReader head(bytes);
  if (head.u32() != kMagicAndVersion) {
    return invalid("step plan of " + std::to_string(bytes.size()) +
                   " bytes has another version: run the same build on every rank");
  }
  if (bytes.size() < sizeof(kMagicAndVersion) + kChecksumBytes) return malformed(bytes.size());
  const std::span<const std::byte> body = bytes.first(bytes.size() - kChecksumBytes);
  if (get_le<std::uint64_t>(bytes.last(kChecksumBytes).data()) != checksum_of(body)) {
    return malformed(bytes.size());
  }
  ByteReader in(body.subspan(sizeof(kMagicAndVersion)));
  StepPlan plan;
  const std::span<const std::byte> keyspace = in.raw(plan.keyspace.size());
  if (!in.ok()) return malformed(bytes.size());
  std::copy(keyspace.begin(), keyspace.end(), plan.keyspace.begin());
  const std::uint8_t flags = in.u8();
  if ((flags & ~(kLoadsInBatch | kLoadsLost)) != 0 || !read_tasks(in, &plan.loads) ||
      !read_tasks(in, &plan.saves) || !read_absent(in, &plan.saves) || !read_hot(in, &plan.hot) ||
      !read_releases(in, &plan.released) || !read_holds(in, &plan.done_holds) ||
      !read_live(in, &plan.live_holds) || !read_text(in, &plan.rendezvous) || !in.done()) {
    return malformed(bytes.size());
  }
  plan.loads_in_batch = (flags & kLoadsInBatch) != 0;
  plan.loads_lost = (flags & kLoadsLost) != 0;
  return plan;
}

}  // namespace kvc
