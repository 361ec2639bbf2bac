// The four batched calls of a store, as a value.
#pragma once

#include <string_view>

namespace kvc {

enum class StoreOp { kExists, kPut, kGet, kRemove };

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
  }
  return "unknown operation";
}

}  // namespace kvc
