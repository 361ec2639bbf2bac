// The batched calls of a store, as a value.
#pragma once

#include <string_view>

namespace kvc {

enum class StoreOp { kExists, kPut, kGet, kRemove, kReplicate };

constexpr std::string_view to_string(StoreOp op) {
  switch (op) {
    case StoreOp::kExists:
      return "exists";
    case StoreOp::kPut:
      return "put";
    case StoreOp::kGet:
      return "get";
    case StoreOp::kRemove:
      return "remove";
    case StoreOp::kReplicate:
      return "replicate";
  }
  return "unknown operation";
}

}  // namespace kvc
