// How the fetch of a block into staging ended.
#pragma once

#include <cstdint>

namespace kvc {

enum class FetchEnd : std::uint8_t {
  kVerified,     ///< The bytes are those of the block.
  kMissing,      ///< Not in the store.
  kRejected,     ///< In the store, and refused.
  kUnavailable,  ///< No answer.
};

}  // namespace kvc
