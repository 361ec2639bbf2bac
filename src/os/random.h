// Randomness that nobody can guess. For secrets; tests draw from base/random.h.
#pragma once

#include <cstddef>
#include <span>

namespace kvc {

/// Fills `out` from the system's generator. False if the system has none; `out` must not be used
/// then. May wait while a machine that has just booted collects randomness.
[[nodiscard]] bool fill_with_secret(std::span<std::byte> out);

}  // namespace kvc
