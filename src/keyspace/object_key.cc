#include "kvc/object_key.h"

#include <array>
#include <charconv>
#include <cstring>
#include <string_view>

#include "base/bytes.h"

namespace kvc {
namespace {

constexpr std::size_t kBlockHexLength = 64;
constexpr std::size_t kRankLengthMax = 10;  // Of 2^32 - 1.

char* put_text(std::string_view text, char* out) {
  std::memcpy(out, text.data(), text.size());
  return out + text.size();
}

/// One allocation per key: keys are made for every block of every look-up.
std::string key_of(std::string_view prefix, const BlockHash& block, std::string_view kind,
                   std::string_view number, std::string_view end) {
  std::string key(prefix.size() + kBlockHexLength + kind.size() + number.size() + end.size(), '\0');
  char* out = put_text(prefix, key.data());
  hex_encode(block.bytes, out);
  out = put_text(kind, out + kBlockHexLength);
  out = put_text(number, out);
  put_text(end, out);
  return key;
}

struct Decimal {
  explicit Decimal(std::uint32_t value) {
    length = static_cast<std::size_t>(
        std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr - digits.data());
  }
  std::string_view text() const { return {digits.data(), length}; }

  std::array<char, kRankLengthMax> digits;
  std::size_t length;
};

}  // namespace

ObjectKeys::ObjectKeys(const Fingerprint& keyspace)
    : keyspace_(keyspace), prefix_("kvc1/" + to_hex(keyspace) + "/") {}

std::string ObjectKeys::shard(const BlockHash& block, std::uint32_t rank) const {
  return key_of(prefix_, block, "/r", Decimal(rank).text(), "");
}

std::string ObjectKeys::ready(const BlockHash& block, std::uint32_t rank) const {
  return key_of(prefix_, block, "/r", Decimal(rank).text(), "/ready");
}

std::string ObjectKeys::manifest(const BlockHash& block) const {
  return key_of(prefix_, block, "/manifest", "", "");
}

}  // namespace kvc
