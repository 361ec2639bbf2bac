// Which planted bug is on (src/base/planted.h). Switched while no simulation runs.
#pragma once

#include <span>
#include <string_view>

namespace kvc::sim {

/// Empty: none. `name` must outlive its use. False, and nothing happens, in a program that was
/// built without bugs.
bool plant(std::string_view name);

/// Every bug that simulations must catch; none in a program without bugs.
std::span<const std::string_view> planted_bugs();

}  // namespace kvc::sim
