// The header of a safetensors file: where each tensor's bytes lie.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvc/result.h"

namespace kvc {

/// What a header may have at most. The format itself names 100 MB.
inline constexpr std::uint64_t kSafetensorsHeaderBytesMax = 100'000'000;

struct ByteRange {
  std::uint64_t first = 0;
  std::uint64_t end = 0;  ///< Past the last byte.
};

/// Ranges of all tensors relative to the end of the header, ordered by place. kInvalid, saying what
/// is wrong with the header, unless it is the JSON object that the format asks for and all ranges
/// lie within `data_bytes`.
Result<std::vector<ByteRange>> parse_safetensors_header(const std::string& json,
                                                        std::uint64_t data_bytes);

}  // namespace kvc
