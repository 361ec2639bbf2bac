// How far apart two names are: for "did you mean".
#pragma once

#include <cstddef>
#include <string_view>

namespace kvc {

/// Insertions, deletions, substitutions and exchanges of neighbours that turn one into the other,
/// letters compared without case.
std::size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace kvc
