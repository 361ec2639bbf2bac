#include "channel/connection.h"

#include <algorithm>
#include <new>
#include <utility>

#include <asio/buffer.hpp>
#include <asio/error.hpp>
#include <asio/post.hpp>
#include <asio/write.hpp>

namespace kvc {
namespace {

constexpr std::size_t kFramesPerWrite = 64;
/// Of a peer that has hung up: more than it could have on its way.
constexpr std::size_t kReadsAtTheEnd = 256;

}  // namespace

Connection::Connection(std::shared_ptr<asio::io_context> context, Protocol::socket socket,
                       ConnectionOwner* owner, Limits limits)
    : context_(std::move(context)),
      owner_(owner),
      limits_(limits),
      socket_(std::move(socket)),
      reader_(limits.frame_bytes) {}

bool Connection::send(const Message& message) {
  std::vector<std::byte> frame = encode_frame(message);
  const MutexLock lock(mutex_);
  if (!open_) return false;
  // What may run out of memory comes before what rests on it.
  if (frame.empty() || frame.size() > limits_.queue_bytes - queued_bytes_) {
    asio::post(*context_, [self = shared_from_this()] {
      self->close(Cut::kStuck, "it does not take what it is sent");
    });
    open_ = false;
    return false;
  }
  const std::size_t bytes = frame.size();
  queue_.push_back(std::move(frame));
  queued_bytes_ += bytes;
  ask_for_flush();
  return true;
}

bool Connection::is_open() const {
  const MutexLock lock(mutex_);
  return open_;
}

void Connection::start() { read(); }

void Connection::open_with(const Message& first) {
  std::vector<std::byte> frame = encode_frame(first);
  if (frame.empty()) {
    close(Cut::kByOwner, "there is too much to say");
    return;
  }
  {
    const MutexLock lock(mutex_);
    if (!open_) return;
    // Above the limit if need be: it is for what comes after.
    queued_bytes_ = std::min(queued_bytes_ + frame.size(), limits_.queue_bytes);
    queue_.push_front(std::move(frame));
    sending_ = true;
  }
  flush();
}

void Connection::end_with(const Message& last) {
  {
    const MutexLock lock(mutex_);
    queue_.clear();
    queued_bytes_ = 0;
  }
  ends_when_sent_ = true;
  open_with(last);
}

void Connection::close(Cut cut, const std::string& why) {
  if (closed_) return;
  closed_ = true;
  const std::shared_ptr<Connection> self = shared_from_this();
  {
    const MutexLock lock(mutex_);
    open_ = false;
    queue_.clear();
  }
  std::error_code ignored;
  // Tells the peer also where a forked child has the socket too.
  socket_.shutdown(Protocol::socket::shutdown_both, ignored);
  socket_.close(ignored);
  owner_->on_closed(*this, cut, why);
}

/// Not before this thread has heard that what it wrote last is on its way.
void Connection::close_with(const Message& last, const std::string& why) {
  asio::post(*context_, [self = shared_from_this(), last, why] { self->say_and_close(last, why); });
}

void Connection::say_and_close(const Message& last, const std::string& why) {
  if (closed_) return;
  bool is_idle = writing_.empty();
  {
    const MutexLock lock(mutex_);
    is_idle = is_idle && sending_ && queue_.empty();
  }
  std::error_code error;
  if (is_idle) socket_.non_blocking(true, error);
  if (is_idle && !error) {
    // All of it or, where the peer takes nothing, perhaps none: nobody waits here.
    const std::vector<std::byte> frame = encode_frame(last);
    socket_.write_some(asio::buffer(frame), error);
  }
  close(Cut::kByOwner, why);
}

// ---- reading -------------------------------------------------------------------------------

void Connection::read() {
  socket_.async_read_some(asio::buffer(in_), [self = shared_from_this()](
                                                 const std::error_code& error, std::size_t size) {
    self->on_read(error, size);
  });
}

void Connection::on_read(const std::error_code& error, std::size_t size) {
  if (closed_) return;
  if (error) {
    close(Cut::kByPeer, error == asio::error::eof ? "it hung up" : error.message());
    return;
  }
  if (take_in(size)) read();
}

bool Connection::take_in(std::size_t size) {
  quiet_beats = 0;
  // Who was refused has nothing more to say; reading on shows when it hangs up.
  if (!ends_when_sent_) reader_.feed(std::span(in_).first(size));
  std::optional<Message> message;
  while (!ends_when_sent_) {
    if (const Status status = reader_.next(&message); !status.ok()) {
      close(Cut::kMalformed, status.message());
      return false;
    }
    if (!message.has_value()) return true;
    owner_->on_message(*this, std::move(*message));
    if (closed_) return false;
  }
  return true;
}

// ---- writing -------------------------------------------------------------------------------

void Connection::ask_for_flush() {
  if (!sending_ || flush_asked_) return;
  asio::post(*context_, [self = shared_from_this()] { self->flush(); });
  flush_asked_ = true;
}

void Connection::flush() {
  if (closed_) return;
  {
    const MutexLock lock(mutex_);
    flush_asked_ = false;
    if (!sending_ || !writing_.empty()) return;
    while (!queue_.empty() && writing_.size() < kFramesPerWrite) {
      writing_.push_back(std::move(queue_.front()));
      queue_.pop_front();
    }
  }
  if (writing_.empty()) return;
  std::vector<asio::const_buffer> buffers;
  buffers.reserve(writing_.size());
  for (const std::vector<std::byte>& frame : writing_) buffers.push_back(asio::buffer(frame));
  asio::async_write(socket_, buffers,
                    [self = shared_from_this()](const std::error_code& error, std::size_t size) {
                      self->on_written(error, size);
                    });
}

void Connection::on_written(const std::error_code& error, std::size_t size) {
  writing_.clear();
  if (closed_) return;
  if (error) {
    hear_the_rest();
    close(Cut::kByPeer, error.message());
    return;
  }
  bool is_all = false;
  {
    const MutexLock lock(mutex_);
    queued_bytes_ -= std::min(size, queued_bytes_);
    is_all = queue_.empty();
  }
  if (is_all && ends_when_sent_) {
    close(Cut::kByOwner, "it was refused");
  } else {
    flush();
  }
}

/// Who does not listen any more may have said why.
void Connection::hear_the_rest() {
  std::error_code error;
  socket_.non_blocking(true, error);
  for (std::size_t reads = 0; reads < kReadsAtTheEnd && !error; ++reads) {
    const std::size_t size = socket_.read_some(asio::buffer(in_), error);
    if (error || !take_in(size)) return;
  }
}

// ---- line ----------------------------------------------------------------------------------

void Line::attach(std::shared_ptr<Connection> connection) {
  const MutexLock lock(mutex_);
  connection_ = std::move(connection);
}

void Line::detach() {
  std::shared_ptr<Connection> last;  // its destructor runs without the lock
  const MutexLock lock(mutex_);
  last.swap(connection_);
}

bool Line::connected() const {
  const std::shared_ptr<Connection> connection = current();
  return connection != nullptr && connection->is_open();
}

bool Line::send(const Message& message) {
  const std::shared_ptr<Connection> connection = current();
  try {
    return connection != nullptr && connection->send(message);
  } catch (const std::bad_alloc&) {
    return false;
  }
}

std::shared_ptr<Connection> Line::current() const {
  const MutexLock lock(mutex_);
  return connection_;
}

}  // namespace kvc
