// Where a leader listens, and how a rank gets there.
#pragma once

#include <memory>
#include <string>

#include <asio/basic_socket_acceptor.hpp>
#include <asio/generic/stream_protocol.hpp>
#include <asio/io_context.hpp>

#include "channel/rendezvous.h"
#include "kvc/result.h"
#include "os/folder.h"

namespace kvc {

/// A folder of this user alone, with a name that nobody can guess. Goes with this object, and with
/// it the socket inside; a process that is killed leaves both behind.
class SocketFolder {
 public:
  /// kUnavailable, naming the folder and the reason, if none can be made in `parent`; kInvalid if
  /// the path of a socket in it would be too long or is not printable.
  static Result<SocketFolder> make(const std::string& parent);

  SocketFolder() = default;
  SocketFolder(SocketFolder&&) noexcept = default;
  SocketFolder& operator=(SocketFolder&&) = delete;
  ~SocketFolder();

  /// Of the socket that is to be made.
  const std::string& socket_path() const { return socket_path_; }

 private:
  Folder parent_;
  Folder own_;
  std::string name_;
  std::string socket_path_;
};

using StreamProtocol = asio::generic::stream_protocol;
using Acceptor = asio::basic_socket_acceptor<StreamProtocol>;

/// kInvalid if `address` is none that ranks could reach.
Status check_address(const std::string& address);

/// A socket that listens. The place is written into `out`.
/// kInvalid if `address` is none that ranks could reach, kUnavailable if it cannot be had.
Result<Acceptor> listen_on(asio::io_context& context, const std::string& address,
                           const SocketFolder* folder, Rendezvous* out);

/// kInvalid if the address is not numeric.
Result<StreamProtocol::endpoint> end_point_of(const Rendezvous& rendezvous);

/// What every connection gets: small frames go at once, and no program that is started inherits it.
void prepare_socket(StreamProtocol::socket& socket);

}  // namespace kvc
