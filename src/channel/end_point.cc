#include "channel/end_point.h"

#include <array>
#include <cstdint>
#include <filesystem>
#include <system_error>
#include <utility>

#include <asio/ip/address.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/local/stream_protocol.hpp>

#include "base/bytes.h"
#include "os/file.h"
#include "os/random.h"
#include "os/socket.h"

namespace kvc {
namespace {

constexpr const char* kSocketName = "leader";

Status no_folder(const std::string& parent, std::errc reason) {
  return {Code::kUnavailable, "no private folder can be made in '" + parent +
                                  "' for the socket of the ranks: " + message_of(reason)};
}

/// Port 0: any.
Result<asio::ip::tcp::endpoint> parse_address(const std::string& text) {
  const Result<HostPort> parsed = parse_numeric_address(text);
  std::error_code error;
  asio::ip::address address;
  if (parsed.ok()) address = asio::ip::make_address(parsed->host, error);
  if (!parsed.ok() || error) {
    return invalid("'" + text + "' is no address for ranks to connect to: it " +
                   (parsed.ok() ? error.message() : parsed.status().message()));
  }
  return asio::ip::tcp::endpoint(address, parsed->port);
}

/// The address as ranks write it; empty if the system does not say.
HostPort own_end(const Acceptor& acceptor) {
  std::error_code error;
  const StreamProtocol::endpoint own = acceptor.local_endpoint(error);
  asio::ip::tcp::endpoint tcp;
  if (error || own.size() > tcp.capacity()) return {};
  tcp.resize(own.size());
  std::memcpy(tcp.data(), own.data(), own.size());
  return {tcp.address().to_string(), tcp.port()};
}

std::error_code bind_and_listen(Acceptor& acceptor, const StreamProtocol::endpoint& end_point) {
  std::error_code error;
  acceptor.open(end_point.protocol(), error);
  if (error) return error;
  close_on_exec(acceptor.native_handle());
  // Where a port is given, a leader that starts anew gets it back.
  acceptor.set_option(asio::socket_base::reuse_address(true), error);
  if (error) return error;
  acceptor.bind(end_point, error);
  if (error) return error;
  acceptor.listen(asio::socket_base::max_listen_connections, error);
  return error;
}

}  // namespace

Result<SocketFolder> SocketFolder::make(const std::string& parent) {
  const Result<std::filesystem::path> real = canonical_path(parent);
  if (!real.ok()) return real.status();
  std::array<std::byte, 8> random{};
  if (!fill_with_secret(random)) {
    return Status(Code::kExhausted, "the system gives no randomness");
  }
  SocketFolder folder;
  folder.name_ = "kvc-stage-" + hex_encode(random);
  folder.socket_path_ = (*real / folder.name_ / kSocketName).string();
  if (folder.socket_path_.size() > kUnixPathBytesMax || !is_printable(folder.socket_path_)) {
    return invalid("the path of a Unix socket in '" + parent + "' would have more than " +
                   std::to_string(kUnixPathBytesMax) +
                   " characters, or some that are not printable; name another folder");
  }
  Folder opened;
  if (const std::errc outcome = Folder::open_path(real->string(), &opened); !ok(outcome)) {
    return no_folder(parent, outcome);
  }
  if (const std::errc outcome = opened.make_folder(folder.name_.c_str()); !ok(outcome)) {
    return no_folder(parent, outcome);
  }
  folder.parent_ = std::move(opened);
  if (const std::errc outcome = folder.parent_.open_folder(folder.name_.c_str(), &folder.own_);
      !ok(outcome)) {
    return no_folder(parent, outcome);
  }
  return folder;
}

SocketFolder::~SocketFolder() {
  // What is not there any more was removed by somebody who cleans up; nothing is left to do then.
  if (own_.is_open()) static_cast<void>(own_.remove(kSocketName));
  if (parent_.is_open()) static_cast<void>(parent_.remove_folder(name_.c_str()));
}

Status check_address(const std::string& address) { return parse_address(address).status(); }

Result<Acceptor> listen_on(asio::io_context& context, const std::string& address,
                           const SocketFolder* folder, Rendezvous* out) {
  StreamProtocol::endpoint end_point;
  if (folder != nullptr) {
    end_point = asio::local::stream_protocol::endpoint(folder->socket_path());
  } else {
    const Result<asio::ip::tcp::endpoint> tcp = parse_address(address);
    if (!tcp.ok()) return tcp.status();
    end_point = *tcp;
  }
  Acceptor acceptor(context);
  if (const std::error_code error = bind_and_listen(acceptor, end_point); error) {
    return Status(Code::kUnavailable, "cannot listen for ranks at '" +
                                          (folder != nullptr ? folder->socket_path() : address) +
                                          "': " + error.message());
  }
  if (folder != nullptr) {
    out->unix_path = folder->socket_path();
    return acceptor;
  }
  HostPort own = own_end(acceptor);
  out->address = std::move(own.host);
  out->port = own.port;
  return acceptor;
}

Result<StreamProtocol::endpoint> end_point_of(const Rendezvous& rendezvous) {
  if (!rendezvous.unix_path.empty()) {
    return StreamProtocol::endpoint(asio::local::stream_protocol::endpoint(rendezvous.unix_path));
  }
  std::error_code error;
  const asio::ip::address address = asio::ip::make_address(rendezvous.address, error);
  if (error) return invalid("'" + rendezvous.address + "' is no numeric address");
  return StreamProtocol::endpoint(asio::ip::tcp::endpoint(address, rendezvous.port));
}

void prepare_socket(StreamProtocol::socket& socket) {
  close_on_exec(socket.native_handle());
  std::error_code unix_has_none;
  socket.set_option(asio::ip::tcp::no_delay(true), unix_has_none);
}

}  // namespace kvc
