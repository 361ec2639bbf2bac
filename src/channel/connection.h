// One connection of a channel: messages in, messages out through a bounded queue.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include <asio/generic/stream_protocol.hpp>
#include <asio/io_context.hpp>

#include "base/mutex.h"
#include "channel/frame.h"

namespace kvc {

class Connection;

/// Why a connection ended.
enum class Cut {
  kByPeer,     ///< It hung up, or the system says that the connection broke.
  kMalformed,  ///< It sent what is no frame, or no frame that has its place here.
  kStuck,      ///< It does not take what it is sent, or is silent.
  kEnded,      ///< It said that it ends.
  kByOwner,
};

/// Called on the loop's thread.
class ConnectionOwner {
 public:
  virtual void on_message(Connection& from, Message message) = 0;
  /// Once for every connection that was started, at its end, also inside of Connection::close().
  virtual void on_closed(Connection& which, Cut cut, const std::string& why) = 0;

 protected:
  ~ConnectionOwner() = default;
};

/// Threads: as marked. A connection that is open keeps itself alive; its loop must not finish
/// before it was closed.
class Connection final : public std::enable_shared_from_this<Connection> {
 public:
  using Protocol = asio::generic::stream_protocol;

  struct Limits {
    std::size_t queue_bytes = 0;  ///< Of frames not taken by the peer.
    std::size_t frame_bytes = 0;  ///< Of one frame that the peer sends.
  };

  /// `owner` outlives the loop.
  Connection(std::shared_ptr<asio::io_context> context, Protocol::socket socket,
             ConnectionOwner* owner, Limits limits);

  // From any thread. -------------------------------------------------------------------------

  /// Queues a message; nothing is sent before open_with(). False if the connection has ended, or
  /// ends by this: the queue is full, or the message fits no frame.
  bool send(const Message& message);
  bool is_open() const;

  // On the loop's thread. --------------------------------------------------------------------

  /// Begins to read.
  void start();
  /// Sends `first` before all that is queued, and begins to send.
  void open_with(const Message& first);
  /// Sends `last` alone, and hangs up.
  void end_with(const Message& last);
  /// At once. Nothing happens if it has ended.
  void close(Cut cut, const std::string& why);
  /// The same, soon; if nothing else is on its way, the peer hears `last` before.
  void close_with(const Message& last, const std::string& why);

  /// The owner's notes.
  std::optional<std::uint32_t> rank;
  std::uint32_t quiet_beats = 0;  ///< Heartbeats since the peer was last heard.

 private:
  void read();
  void on_read(const std::error_code& error, std::size_t size);
  /// False if the connection ended.
  bool take_in(std::size_t size);
  void ask_for_flush() KVC_REQUIRES(mutex_);
  void flush();
  void on_written(const std::error_code& error, std::size_t size);
  void hear_the_rest();
  void say_and_close(const Message& last, const std::string& why);

  // The socket goes before its context.
  const std::shared_ptr<asio::io_context> context_;
  ConnectionOwner* const owner_;
  const Limits limits_;

  mutable Mutex mutex_;
  bool open_ KVC_GUARDED_BY(mutex_) = true;
  bool sending_ KVC_GUARDED_BY(mutex_) = false;  ///< Since open_with() or end_with().
  bool flush_asked_ KVC_GUARDED_BY(mutex_) = false;
  std::size_t queued_bytes_ KVC_GUARDED_BY(mutex_) = 0;  ///< With those being written.
  std::deque<std::vector<std::byte>> queue_ KVC_GUARDED_BY(mutex_);

  // Of the loop's thread.
  Protocol::socket socket_;
  FrameReader reader_;
  std::array<std::byte, std::size_t{16} << 10> in_{};
  std::vector<std::vector<std::byte>> writing_;
  bool closed_ = false;
  bool ends_when_sent_ = false;
};

/// The way to a peer whose connections come and go. From any thread.
class Line {
 public:
  void attach(std::shared_ptr<Connection> connection);
  void detach();
  bool connected() const;
  /// False if there is no connection, or it ends by this.
  bool send(const Message& message);

 private:
  std::shared_ptr<Connection> current() const;

  mutable Mutex mutex_;
  std::shared_ptr<Connection> connection_ KVC_GUARDED_BY(mutex_);
};

}  // namespace kvc
