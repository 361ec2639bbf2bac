// Which known name somebody probably meant by an unknown one: for "did you mean".
#pragma once

#include <string_view>

namespace kvc {

/// Of a variable of the environment, where other programs have names as well: strict enough for all
/// names that the store's client has itself. Empty: nothing of ours was meant.
std::string_view meant_by_variable(std::string_view written);

/// Of a name in a settings file or a call, where all names are meant for us. Empty: none is near.
std::string_view meant_by_entry(std::string_view written);

/// Of a field in the store client's own file, which has fields that we do not read. Empty: none.
std::string_view meant_by_store_field(std::string_view field);

}  // namespace kvc
