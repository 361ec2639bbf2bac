#include "channel/frame.h"

#include <algorithm>
#include <string>
#include <type_traits>
#include <utility>

#include "base/bytes.h"

namespace kvc {
namespace {

constexpr std::size_t kLengthBytes = 4;
constexpr std::size_t kHeadBytes = 2;          // version and type
constexpr std::uint32_t kMagic = 0x4343564bu;  // "KVCC"

enum class Type : std::uint8_t {
  kHello = 1,
  kWelcome,
  kRefusal,
  kOrder,
  kRelease,
  kProgress,
  kPing,
  kPong,
  kBye,
};

// ---- writing -------------------------------------------------------------------------------

Type type_of(const Message& message) {
  // In the order of the variant.
  return static_cast<Type>(message.index() + 1);
}

void write(ByteWriter& out, const Hello& hello) {
  out.u32(kMagic);
  out.raw(hello.nonce);
  out.u64(hello.instance);
  out.u64(hello.client);
  out.u32(hello.world_size);
  out.u32(hello.rank);
  out.raw(hello.keyspace);
}

void write(ByteWriter& out, const Welcome& welcome) {
  out.u64(welcome.holds.newest);
  for (const HoldId hold : welcome.holds.live) out.u64(hold);
}

void write(ByteWriter& out, const Refusal& refusal) { out.u8(static_cast<std::uint8_t>(refusal)); }

void write(ByteWriter& out, const StageOrder& order) {
  out.u64(order.hold);
  out.i64(order.fetch_budget.count());
  for (const BlockHash& block : order.blocks) out.raw(block.bytes);
}

void write(ByteWriter& out, const HoldRelease& release) {
  out.u64(release.hold);
  out.u32(release.from_block);
}

void write(ByteWriter& out, const StageProgress& progress) {
  out.u64(progress.hold);
  out.u32(progress.staged);
  out.u8(progress.done ? 1 : 0);
  out.u8(static_cast<std::uint8_t>(progress.end));
}

void write(ByteWriter& /*out*/, const Ping& /*ping*/) {}
void write(ByteWriter& /*out*/, const Pong& /*pong*/) {}
void write(ByteWriter& /*out*/, const Bye& /*bye*/) {}

/// More than any body of fixed size.
std::size_t bytes_bound(const Message& message) {
  constexpr std::size_t kFixed = 96;
  if (const auto* order = std::get_if<StageOrder>(&message)) {
    return kFixed + order->blocks.size() * sizeof(BlockHash);
  }
  if (const auto* welcome = std::get_if<Welcome>(&message)) {
    return kFixed + welcome->holds.live.size() * sizeof(HoldId);
  }
  return kFixed;
}

// ---- reading: nothing unless every byte of the body has its meaning --------------------------

template <std::size_t kSize>
void read_into(ByteReader& in, std::array<std::byte, kSize>* out) {
  const std::span<const std::byte> bytes = in.raw(kSize);
  if (bytes.size() == kSize) std::copy(bytes.begin(), bytes.end(), out->begin());
}

bool read(ByteReader in, Hello* out) {
  const bool is_ours = in.u32() == kMagic;
  read_into(in, &out->nonce);
  out->instance = in.u64();
  out->client = in.u64();
  out->world_size = in.u32();
  out->rank = in.u32();
  read_into(in, &out->keyspace);
  return is_ours && in.done();
}

bool read(ByteReader in, Welcome* out) {
  out->holds.newest = in.u64();
  if (!in.ok() || in.remaining() % sizeof(HoldId) != 0) return false;
  out->holds.live.resize(in.remaining() / sizeof(HoldId));
  for (HoldId& hold : out->holds.live) hold = in.u64();
  return true;
}

bool read(ByteReader in, Refusal* out) {
  const std::uint8_t value = in.u8();
  *out = static_cast<Refusal>(value);
  return in.done() && value <= static_cast<std::uint8_t>(Refusal::kDuplicate);
}

bool read(ByteReader in, StageOrder* out) {
  out->hold = in.u64();
  out->fetch_budget = Duration(in.i64());
  if (!in.ok() || out->hold == 0 || out->fetch_budget < Duration::zero() ||
      in.remaining() % sizeof(BlockHash) != 0) {
    return false;
  }
  out->blocks.resize(in.remaining() / sizeof(BlockHash));
  for (BlockHash& block : out->blocks) read_into(in, &block.bytes);
  return true;
}

bool read(ByteReader in, HoldRelease* out) {
  out->hold = in.u64();
  out->from_block = in.u32();
  return in.done() && out->hold != 0;
}

bool read(ByteReader in, StageProgress* out) {
  out->hold = in.u64();
  out->staged = in.u32();
  const std::uint8_t done = in.u8();
  const std::uint8_t end = in.u8();
  out->done = done == 1;
  out->end = static_cast<StageEnd>(end);
  // A rank has no deadline of its own to be late for.
  return in.done() && out->hold != 0 && done <= 1 &&
         end < static_cast<std::uint8_t>(StageEnd::kLate);
}

bool read(ByteReader in, Ping* /*out*/) { return in.done(); }
bool read(ByteReader in, Pong* /*out*/) { return in.done(); }
bool read(ByteReader in, Bye* /*out*/) { return in.done(); }

template <typename Body>
bool read_as(ByteReader in, std::optional<Message>* out) {
  Body body{};
  if (!read(in, &body)) return false;
  out->emplace(std::move(body));
  return true;
}

bool read_body(Type type, ByteReader in, std::optional<Message>* out) {
  switch (type) {
    case Type::kHello:
      return read_as<Hello>(in, out);
    case Type::kWelcome:
      return read_as<Welcome>(in, out);
    case Type::kRefusal:
      return read_as<Refusal>(in, out);
    case Type::kOrder:
      return read_as<StageOrder>(in, out);
    case Type::kRelease:
      return read_as<HoldRelease>(in, out);
    case Type::kProgress:
      return read_as<StageProgress>(in, out);
    case Type::kPing:
      return read_as<Ping>(in, out);
    case Type::kPong:
      return read_as<Pong>(in, out);
    case Type::kBye:
      return read_as<Bye>(in, out);
  }
  return false;
}

}  // namespace

std::vector<std::byte> encode_frame(const Message& message) {
  const std::size_t bound = bytes_bound(message);
  if (bound > kFrameBytesOfLeader) return {};
  std::vector<std::byte> frame;
  frame.reserve(bound);
  ByteWriter out(&frame);
  out.u32(0);
  out.u8(kChannelVersion);
  out.u8(static_cast<std::uint8_t>(type_of(message)));
  std::visit([&out](const auto& body) { write(out, body); }, message);
  put_le(frame.data(), static_cast<std::uint32_t>(frame.size() - kLengthBytes));
  return frame;
}

void FrameReader::feed(std::span<const std::byte> bytes) {
  if (!broken_.ok()) return;
  if (begin_ > 0) {
    bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(begin_));
    begin_ = 0;
  }
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
}

Status FrameReader::next(std::optional<Message>* out) {
  out->reset();
  if (!broken_.ok()) return broken_;
  const std::span<const std::byte> rest = std::span(bytes_).subspan(begin_);
  if (rest.size() < kLengthBytes) return {};
  const std::size_t size = get_le<std::uint32_t>(rest.data());
  if (size < kHeadBytes || size > max_bytes_) {
    return broken("a frame of " + std::to_string(size) + " bytes, where " +
                  std::to_string(kHeadBytes) + " to " + std::to_string(max_bytes_) +
                  " are expected: the other end speaks another protocol");
  }
  if (rest.size() == kLengthBytes) return {};
  if (const auto version = std::to_integer<unsigned>(rest[kLengthBytes]);
      version != kChannelVersion) {
    return broken("a frame of version " + std::to_string(version) +
                  ": run the same build on every rank");
  }
  if (rest.size() - kLengthBytes < size) return {};
  const auto type = std::to_integer<std::uint8_t>(rest[kLengthBytes + 1]);
  const ByteReader body(rest.subspan(kLengthBytes + kHeadBytes, size - kHeadBytes));
  if (!read_body(static_cast<Type>(type), body, out)) {
    return broken("a frame of type " + std::to_string(type) + " and " + std::to_string(size) +
                  " bytes is malformed");
  }
  begin_ += kLengthBytes + size;
  return {};
}

Status FrameReader::broken(std::string message) {
  broken_ = invalid(std::move(message));
  bytes_ = {};
  begin_ = 0;
  return broken_;
}

}  // namespace kvc
