// Little-endian integers, bounded reading and writing of byte strings, and hexadecimal.
//
// Everything that leaves the process (keys, headers, plans) is built from these, so that its bytes
// do not depend on the machine.
#pragma once

#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvc {

/// Writes `value` at `out`, sizeof(T) bytes, least significant first.
template <std::unsigned_integral T>
inline void put_le(std::byte* out, T value) {
  if constexpr (std::endian::native == std::endian::little) {
    std::memcpy(out, &value, sizeof(T));
  } else {
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      out[i] = static_cast<std::byte>(value >> (8 * i) & 0xffu);
    }
  }
}

/// Reads sizeof(T) bytes at `in`, least significant first.
template <std::unsigned_integral T>
inline T get_le(const std::byte* in) {
  T value = 0;
  if constexpr (std::endian::native == std::endian::little) {
    std::memcpy(&value, in, sizeof(T));
  } else {
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      value = static_cast<T>(value | static_cast<T>(static_cast<T>(in[i]) << (8 * i)));
    }
  }
  return value;
}

inline std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span<const char>(text.data(), text.size()));
}

inline std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Appends to a byte vector that it does not own.
class ByteWriter {
 public:
  explicit ByteWriter(std::vector<std::byte>* out) : out_(out) {}

  void u8(std::uint8_t value) { number(value); }
  void u16(std::uint16_t value) { number(value); }
  void u32(std::uint32_t value) { number(value); }
  void u64(std::uint64_t value) { number(value); }
  void i64(std::int64_t value) { number(static_cast<std::uint64_t>(value)); }
  /// The bytes alone.
  void raw(std::span<const std::byte> bytes) {
    const std::size_t at = out_->size();
    out_->resize(at + bytes.size());
    if (!bytes.empty()) std::memcpy(out_->data() + at, bytes.data(), bytes.size());
  }
  /// Length as 32 bits, then the bytes. REQUIRES: fewer than 2^32 bytes.
  void blob(std::span<const std::byte> bytes);
  void text(std::string_view text) { blob(as_bytes(text)); }

 private:
  template <std::unsigned_integral T>
  void number(T value) {
    const std::size_t at = out_->size();
    out_->resize(at + sizeof(T));
    put_le(out_->data() + at, value);
  }

  std::vector<std::byte>* out_;
};

/// Reads what ByteWriter wrote, from bytes that it does not own and does not trust. After the first
/// read past the end every read gives zero or empty, and ok() is false for good.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : rest_(bytes) {}

  bool ok() const { return ok_; }
  /// All was well, and nothing is left over.
  bool done() const { return ok_ && rest_.empty(); }
  std::size_t remaining() const { return rest_.size(); }

  std::uint8_t u8() { return number<std::uint8_t>(); }
  std::uint16_t u16() { return number<std::uint16_t>(); }
  std::uint32_t u32() { return number<std::uint32_t>(); }
  std::uint64_t u64() { return number<std::uint64_t>(); }
  std::int64_t i64() { return static_cast<std::int64_t>(u64()); }
  /// A view into the source.
  std::span<const std::byte> raw(std::size_t size);
  std::span<const std::byte> blob() { return raw(u32()); }
  std::string_view text() { return as_text(blob()); }

 private:
  template <std::unsigned_integral T>
  T number() {
    const std::span<const std::byte> bytes = raw(sizeof(T));
    return bytes.size() == sizeof(T) ? get_le<T>(bytes.data()) : T{0};
  }

  std::span<const std::byte> rest_;
  bool ok_ = true;
};

/// Writes 2 * bytes.size() lower-case digits at `out`.
void hex_encode(std::span<const std::byte> bytes, char* out);
std::string hex_encode(std::span<const std::byte> bytes);

/// False, with `out` unchanged or partly written, unless `text` is exactly 2 * out.size() digits.
/// Both cases of the letters are read.
bool hex_decode(std::string_view text, std::span<std::byte> out);

}  // namespace kvc
