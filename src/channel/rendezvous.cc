#include "channel/rendezvous.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "base/bytes.h"
#include "os/socket.h"

namespace kvc {
namespace {

constexpr std::string_view kVersion = "kvc-stage/1 ";

std::string instance_text(std::uint64_t instance) {
  std::array<std::byte, 8> bytes{};
  // Most significant first, as people read numbers.
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(instance >> (8 * (bytes.size() - 1 - i)) & 0xffu);
  }
  return hex_encode(bytes);
}

std::string place_text(const Rendezvous& rendezvous, char separator) {
  return rendezvous.unix_path.empty() ? std::string("tcp") + separator +
                                            format_host_port({rendezvous.address, rendezvous.port})
                                      : std::string("unix") + separator + rendezvous.unix_path;
}

/// The value of "name=value " at the front of `text`, which loses it; empty if there is none.
std::string_view take_field(std::string_view* text, std::string_view name) {
  const std::size_t end = text->find(' ');
  std::string_view field = text->substr(0, end);
  if (end == std::string_view::npos || field.substr(0, name.size()) != name) return {};
  field.remove_prefix(name.size());
  if (field.empty() || field.front() != '=') return {};
  text->remove_prefix(end + 1);
  return field.substr(1);
}

template <typename Number>
bool read_number(std::string_view text, int base, Number* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out, base);
  return !text.empty() && error == std::errc() && end == text.data() + text.size();
}

bool read_place(std::string_view text, Rendezvous* out) {
  constexpr std::string_view kUnix = "unix=";
  constexpr std::string_view kTcp = "tcp=";
  if (text.substr(0, kUnix.size()) == kUnix) {
    out->unix_path = text.substr(kUnix.size());
    return out->unix_path.size() > 1 && out->unix_path.front() == '/' &&
           out->unix_path.size() <= kUnixPathBytesMax;
  }
  if (text.substr(0, kTcp.size()) != kTcp) return false;
  Result<HostPort> address = parse_host_port(text.substr(kTcp.size()));
  if (!address.ok()) return false;
  out->address = std::move(address->host);
  out->port = address->port;
  return true;
}

}  // namespace

bool is_printable(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

std::string format_rendezvous(const Rendezvous& rendezvous) {
  return std::string(kVersion) + "world=" + std::to_string(rendezvous.world_size) +
         " instance=" + instance_text(rendezvous.instance) +
         " nonce=" + hex_encode(rendezvous.nonce) + " " + place_text(rendezvous, '=');
}

Result<Rendezvous> parse_rendezvous(std::string_view text) {
  const auto refuse = [text] {
    return invalid("a text of " + std::to_string(text.size()) +
                   " characters is no rendezvous of this version: run the same build on every "
                   "rank");
  };
  if (text.size() > kRendezvousBytesMax || !is_printable(text) ||
      text.substr(0, kVersion.size()) != kVersion) {
    return refuse();
  }
  std::string_view rest = text.substr(kVersion.size());
  const std::string_view world = take_field(&rest, "world");
  const std::string_view instance = take_field(&rest, "instance");
  const std::string_view nonce = take_field(&rest, "nonce");
  Rendezvous rendezvous;
  if (!read_number(world, 10, &rendezvous.world_size) ||
      !read_number(instance, 16, &rendezvous.instance) || !hex_decode(nonce, rendezvous.nonce) ||
      !read_place(rest, &rendezvous)) {
    return refuse();
  }
  // What reads the same is written the same: one text for one leader.
  if (format_rendezvous(rendezvous) != text) return refuse();
  return rendezvous;
}

std::string describe(const Rendezvous& rendezvous) {
  return "leader " + instance_text(rendezvous.instance) + " at " + place_text(rendezvous, ' ');
}

}  // namespace kvc
