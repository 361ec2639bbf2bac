#include "os/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <limits>
#include <memory>
#include <system_error>
#include <utility>

namespace kvc {
namespace {

/// Closes a descriptor at the end of its life.
class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return value_; }

 private:
  const int value_;
};

using AddressList = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

/// Whether it is numeric and stands for exactly one host. A zone ("fe80::1%eth0") is not looked at.
bool is_of_one_host(const std::string& host) {
  in_addr v4{};
  if (::inet_pton(AF_INET, host.c_str(), &v4) == 1) {
    const std::uint32_t bits = ntohl(v4.s_addr);
    return bits != INADDR_ANY && !IN_MULTICAST(bits) && bits != INADDR_BROADCAST;
  }
  in6_addr v6{};
  if (::inet_pton(AF_INET6, host.substr(0, host.find('%')).c_str(), &v6) != 1) return false;
  return !IN6_IS_ADDR_UNSPECIFIED(&v6) && !IN6_IS_ADDR_MULTICAST(&v6);
}

std::string reason_of(int error) { return std::generic_category().message(error); }

Result<AddressList> resolve(const HostPort& address) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error =
      ::getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
  if (error != 0) {
    return Status(Code::kUnavailable, "the host name '" + address.host +
                                          "' cannot be resolved: " + ::gai_strerror(error));
  }
  return AddressList(found, &::freeaddrinfo);
}

/// 0, or the system's error.
int await_connection(int descriptor, Deadline deadline, const Clock& clock) {
  pollfd event{descriptor, POLLOUT, 0};
  while (true) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining(clock)).count();
    const int ready = ::poll(
        &event, 1, static_cast<int>(std::min<std::int64_t>(left, std::numeric_limits<int>::max())));
    if (ready > 0) break;
    if (ready == 0) return ETIMEDOUT;
    if (errno != EINTR) return errno;
  }
  int error = 0;
  socklen_t size = sizeof(error);
  if (::getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &error, &size) != 0) return errno;
  return error;
}

/// The numeric own address of a connection; empty if the system does not say.
std::string own_address(int descriptor) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (::getsockname(descriptor, generic, &size) != 0) return {};
  char text[NI_MAXHOST] = {};
  if (::getnameinfo(generic, size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0) return {};
  return text;
}

}  // namespace

Result<HostPort> parse_host_port(std::string_view text) {
  const auto refuse = [text] {
    return invalid("'" + std::string(text) +
                   "' is not an address; write host:port, for example 10.0.0.1:50051");
  };
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return refuse();
  std::string_view host = text.substr(0, colon);
  const std::string_view digits = text.substr(colon + 1);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (host.empty() || (!bracketed && host.find_first_of(":[]") != std::string_view::npos)) {
    return refuse();
  }
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (error != std::errc() || end != digits.data() + digits.size() || port == 0) return refuse();
  return HostPort{std::string(host), port};
}

Result<HostPort> parse_numeric_address(std::string_view text) {
  HostPort address{std::string(text), 0};
  if (Result<HostPort> both = parse_host_port(text); both.ok()) address = std::move(both).value();
  if (is_of_one_host(address.host)) return address;
  return invalid(
      "is no numeric address of one host; write it with or without a port, for example 10.0.0.1 or "
      "10.0.0.1:4000");
}

std::string format_host_port(const HostPort& address) {
  const bool is_v6 = address.host.find(':') != std::string::npos;
  return (is_v6 ? "[" + address.host + "]" : address.host) + ":" + std::to_string(address.port);
}

Result<std::string> tcp_reach(const HostPort& peer, Duration budget) {
  Result<AddressList> addresses = resolve(peer);
  if (!addresses.ok()) return addresses.status();
  const std::shared_ptr<const Clock> clock = system_clock();
  const Deadline deadline = Deadline::after(*clock, budget);
  int error = EHOSTUNREACH;
  for (const addrinfo* one = addresses->get(); one != nullptr; one = one->ai_next) {
    const Descriptor socket(
        ::socket(one->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, one->ai_protocol));
    if (socket.get() < 0) {
      error = errno;
      continue;
    }
    error = ::connect(socket.get(), one->ai_addr, one->ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS || error == EINTR) {
      error = await_connection(socket.get(), deadline, *clock);
    }
    if (error == 0) return own_address(socket.get());
    if (deadline.passed(*clock)) break;
  }
  return Status(Code::kUnavailable,
                "no connection to " + format_host_port(peer) + ": " + reason_of(error));
}

Result<std::uint16_t> free_tcp_port(const std::string& host) {
  Result<AddressList> addresses = resolve({host, 0});
  if (!addresses.ok()) return addresses.status();
  int error = EADDRNOTAVAIL;
  for (const addrinfo* one = addresses->get(); one != nullptr; one = one->ai_next) {
    const Descriptor socket(::socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC, one->ai_protocol));
    if (socket.get() >= 0 && ::bind(socket.get(), one->ai_addr, one->ai_addrlen) == 0) {
      sockaddr_storage address{};
      socklen_t size = sizeof(address);
      if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0) {
        return ntohs(address.ss_family == AF_INET6
                         ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                         : reinterpret_cast<const sockaddr_in&>(address).sin_port);
      }
    }
    error = errno;
  }
  return Status(Code::kUnavailable, "no free port on " + host + ": " + reason_of(error));
}

void close_on_exec(int descriptor) {
  const int flags = ::fcntl(descriptor, F_GETFD);
  if (flags >= 0) static_cast<void>(::fcntl(descriptor, F_SETFD, flags | FD_CLOEXEC));
}

}  // namespace kvc
