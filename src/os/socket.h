// Sockets, as far as is needed before an address or descriptor is handed to somebody else's code.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kvc/clock.h"
#include "kvc/result.h"

namespace kvc {

struct HostPort {
  std::string host;  ///< Name or numeric address; an IPv6 address without its brackets.
  std::uint16_t port = 0;
};

/// Reads "host:port" or "[v6]:port". kInvalid, naming the text, if it is anything else.
Result<HostPort> parse_host_port(std::string_view text);

/// Reads the numeric address of one host, with or without a port, which is 0 then: "10.0.0.1",
/// "10.0.0.1:4000", "::1", "[::1]:4000". kInvalid, saying what to write, if it is anything else, or
/// an address that stands for no host or for many.
Result<HostPort> parse_numeric_address(std::string_view text);

/// "host:port", with brackets around an IPv6 address.
std::string format_host_port(const HostPort& address);

/// Connects and hangs up. Gives the numeric address of this machine from which the peer was
/// reached. kUnavailable, naming the address and the system's reason, if no connection stood within
/// `budget`; the time of a name service comes on top.
Result<std::string> tcp_reach(const HostPort& peer, Duration budget);

/// A port of `host` (an address of this machine) that was free just now. kUnavailable, naming the
/// host and the reason, if there is none.
Result<std::uint16_t> free_tcp_port(const std::string& host);

/// Programs that this process starts do not inherit the descriptor.
void close_on_exec(int descriptor);

}  // namespace kvc
