#include "kvc/object_key.h"

#include <array>
#include <charconv>
#include <cstring>
#include <initializer_list>
#include <string_view>

#include "base/bytes.h"

namespace kvc {
namespace {

constexpr std::size_t kBlockHexLength = 64;
constexpr std::size_t kNumberLengthMax = 10;  // Of 2^32 - 1.

char* put_text(std::string_view text, char* out) {
  std::memcpy(out, text.data(), text.size());
  return out + text.size();
}

/// One allocation per key: keys are made for every block of every look-up.
std::string key_of(std::string_view prefix, const BlockHash& block,
                   std::initializer_list<std::string_view> ending) {
  std::size_t length = prefix.size() + kBlockHexLength;
  for (const std::string_view part : ending) length += part.size();
  std::string key(length, '\0');
  char* out = put_text(prefix, key.data());
  hex_encode(block.bytes, out);
  out += kBlockHexLength;
  for (const std::string_view part : ending) out = put_text(part, out);
  return key;
}

struct Decimal {
  explicit Decimal(std::uint32_t value) {
    length = static_cast<std::size_t>(
        std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr - digits.data());
  }
  std::string_view text() const { return {digits.data(), length}; }

  std::array<char, kNumberLengthMax> digits;
  std::size_t length;
};

}  // namespace

ObjectKeys::ObjectKeys(const Fingerprint& keyspace, Granularity granularity)
    : keyspace_(keyspace), granularity_(granularity), prefix_("kvc1/" + to_hex(keyspace) + "/") {}

std::string ObjectKeys::shard(const BlockHash& block, std::uint32_t rank) const {
  return key_of(prefix_, block, {"/r", Decimal(rank).text()});
}

std::string ObjectKeys::layer(const BlockHash& block, std::uint32_t rank,
                              std::uint32_t layer) const {
  return key_of(prefix_, block, {"/layers/r", Decimal(rank).text(), "/", Decimal(layer).text()});
}

std::string ObjectKeys::ready(const BlockHash& block, std::uint32_t rank) const {
  const std::string_view ranks = granularity_ == Granularity::kLayer ? "/layers/r" : "/r";
  return key_of(prefix_, block, {ranks, Decimal(rank).text(), "/ready"});
}

std::string ObjectKeys::manifest(const BlockHash& block) const {
  return key_of(prefix_, block,
                {granularity_ == Granularity::kLayer ? "/layers/manifest" : "/manifest"});
}

}  // namespace kvc
