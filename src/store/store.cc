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

// NOLINTNEXTLINE(performance-unnecessary-value-param): the signature of every batched call.
std::vector<Reaction> Store::replicate(std::vector<ReplicaItem> items, CallContext /*context*/) {
  return std::vector<Reaction>(items.size(), Reaction::kCallerBug);
}

}  // namespace kvc
