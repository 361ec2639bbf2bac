#include "base/bytes.h"

#include <limits>

#include "base/check.h"

namespace kvc {
namespace {

struct HexPairs {
  std::array<char, 512> digits;
};

constexpr HexPairs make_hex_pairs() {
  constexpr std::string_view kDigits = "0123456789abcdef";
  HexPairs pairs{};
  for (std::size_t value = 0; value < 256; ++value) {
    pairs.digits[2 * value] = kDigits[value / 16];
    pairs.digits[2 * value + 1] = kDigits[value % 16];
  }
  return pairs;
}

constexpr HexPairs kHexPairs = make_hex_pairs();

int hex_value(char digit) {
  if (digit >= '0' && digit <= '9') return digit - '0';
  if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
  if (digit >= 'A' && digit <= 'F') return digit - 'A' + 10;
  return -1;
}

}  // namespace

void ByteWriter::blob(std::span<const std::byte> bytes) {
  KVC_CHECK(bytes.size() <= std::numeric_limits<std::uint32_t>::max(), "blob too long");
  u32(static_cast<std::uint32_t>(bytes.size()));
  raw(bytes);
}

std::span<const std::byte> ByteReader::raw(std::size_t size) {
  if (!ok_ || size > rest_.size()) {
    ok_ = false;
    return {};
  }
  const std::span<const std::byte> bytes = rest_.first(size);
  rest_ = rest_.subspan(size);
  return bytes;
}

void hex_encode(std::span<const std::byte> bytes, char* out) {
  for (const std::byte value : bytes) {
    std::memcpy(out, &kHexPairs.digits[2 * std::to_integer<std::size_t>(value)], 2);
    out += 2;
  }
}

std::string hex_encode(std::span<const std::byte> bytes) {
  std::string text(2 * bytes.size(), '\0');
  hex_encode(bytes, text.data());
  return text;
}

bool hex_decode(std::string_view text, std::span<std::byte> out) {
  if (text.size() != 2 * out.size()) return false;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const int high = hex_value(text[2 * i]);
    const int low = hex_value(text[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    out[i] = static_cast<std::byte>(high * 16 + low);
  }
  return true;
}

}  // namespace kvc
