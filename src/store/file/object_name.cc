#include "store/file/object_name.h"

#include <array>

#include "base/bytes.h"
#include "keyspace/sha256.h"

namespace kvc {
namespace {

constexpr char kWhole = '=';
constexpr char kDigest = '#';
/// Every file system takes 143 bytes or more in a name, and nearly all 255.
constexpr std::size_t kLongestName = 200;
constexpr std::string_view kHex = "0123456789abcdef";

/// FNV-1a, 64 bits, folded to 8.
std::size_t folder_of(std::string_view key) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : key) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  hash ^= hash >> 32;
  hash ^= hash >> 16;
  hash ^= hash >> 8;
  return hash & 0xffu;
}

/// Letters of one case only: some file systems take "a" and "A" for the same name.
bool is_plain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
}

void append_escaped(std::string_view key, std::string& name) {
  for (const char c : key) {
    if (is_plain(c)) {
      name += c;
    } else if (c == '/') {
      name += ',';
    } else {
      const auto byte = static_cast<unsigned char>(c);
      name += '%';
      name += kHex[byte >> 4];
      name += kHex[byte & 0xfu];
    }
  }
}

}  // namespace

ObjectName ObjectName::of(std::string_view key) {
  ObjectName name;
  name.folder = folder_of(key);
  if (key.size() < kLongestName) {
    name.file.reserve(key.size() + 1);
    name.file = kWhole;
    append_escaped(key, name.file);
    if (name.file.size() <= kLongestName) return name;
  }
  Sha256Digest digest{};
  Sha256().digest(as_bytes(key), &digest);
  name.file = kDigest + hex_encode(digest);
  name.trailer_bytes = key.size();
  return name;
}

bool ObjectName::is_object(std::string_view file) {
  return file.starts_with(kWhole) || file.starts_with(kDigest);
}

std::string ObjectName::folder_name(std::size_t folder) {
  return {kHex[folder >> 4 & 0xfu], kHex[folder & 0xfu]};
}

}  // namespace kvc
