#include "tests/sim/planted_switch.h"

namespace kvc::sim {

bool plant(std::string_view name) { return name.empty(); }

std::span<const std::string_view> planted_bugs() { return {}; }

}  // namespace kvc::sim
