#include "kvc/store.h"

namespace kvc {

std::string_view to_string(Reaction reaction) {
  switch (reaction) {
    case Reaction::kOk:
      return "ok";
    case Reaction::kMiss:
      return "miss";
    case Reaction::kBackOff:
      return "back off";
    case Reaction::kStale:
      return "stale";
    case Reaction::kDown:
      return "down";
    case Reaction::kCallerBug:
      return "caller bug";
  }
  return "unknown reaction";
}

}  // namespace kvc
