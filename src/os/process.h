// This process.
#pragma once

#include <cstdint>

namespace kvc {

/// The system's number of this process. Changes in a forked child.
std::int64_t process_id();

}  // namespace kvc
