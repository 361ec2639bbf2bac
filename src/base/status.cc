#include "kvc/status.h"

namespace kvc {

std::string_view to_string(Code code) {
  switch (code) {
    case Code::kOk:
      return "ok";
    case Code::kInvalid:
      return "invalid";
    case Code::kUnsupported:
      return "unsupported";
    case Code::kMissing:
      return "missing";
    case Code::kRejected:
      return "rejected";
    case Code::kUnavailable:
      return "unavailable";
    case Code::kTimedOut:
      return "timed out";
    case Code::kExhausted:
      return "exhausted";
  }
  return "unknown";
}

std::string Status::to_string() const {
  std::string text(kvc::to_string(code_));
  if (ok()) return text;
  text += ": ";
  text += message_;
  return text;
}

}  // namespace kvc
