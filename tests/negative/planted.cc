// Switches planted bugs on by name, from the variable KVC_PLANT. Linked into the programs of this
// folder only.
#include "base/planted.h"

#include <cstdlib>

namespace kvc {

bool planted_bug(std::string_view name) {
  const char* planted = std::getenv("KVC_PLANT");
  return planted != nullptr && name == planted;
}

}  // namespace kvc
