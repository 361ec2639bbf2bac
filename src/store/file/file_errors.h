// What the caller of the store should do about an error of the file system.
#pragma once

#include <system_error>

#include "kvc/store.h"

namespace kvc {

/// Of opening a folder or looking into it. An entry of another kind is nobody's object.
Reaction reaction_to_lookup_error(std::errc error);
/// Of an object that is there.
Reaction reaction_to_read_error(std::errc error);
/// Of making, naming or removing something. Reading may still work, so few of them mean "down".
Reaction reaction_to_write_error(std::errc error);
/// The file system, or this user's share of it, is full.
bool is_full(std::errc error);

}  // namespace kvc
