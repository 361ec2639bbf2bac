// Errors as values. A `Code` exists only where some caller reacts to it differently; everything
// else goes into the message. Absence of a block is not an error and never travels as a Status.
//
// Threads: values, safe to copy and move between threads.
#pragma once

#include <string>
#include <string_view>
#include <utility>

namespace kvc {

enum class Code {
  kOk,
  /// The caller or the configuration is wrong; retrying the same thing cannot help.
  kInvalid,
  /// Valid, but this build or this store cannot do it. The message names what can.
  kUnsupported,
  /// A block that had been promised is not in the store.
  kMissing,
  /// Bytes were found and failed a check (checksum, layout, size, identity). Never served.
  kRejected,
  /// The store cannot be reached or counts as down.
  kUnavailable,
  /// A deadline passed; whether the operation took effect is not known.
  kTimedOut,
  /// A bound was reached (queue, memory, space in the store). Serving goes on.
  kExhausted,
};

std::string_view to_string(Code code);

/// Outcome of an operation without a value. The message names the value at fault, the reason and,
/// where there is one, the remedy.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

  /// "<code>: <message>", or "ok".
  std::string to_string() const;

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

inline Status invalid(std::string message) { return {Code::kInvalid, std::move(message)}; }

}  // namespace kvc
