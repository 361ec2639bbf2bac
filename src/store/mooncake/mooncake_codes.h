// Mooncake's error codes, and what each of them calls for.
#pragma once

#include <cstdint>
#include <string>

#include "kvc/status.h"
#include "kvc/store.h"

namespace kvc {

/// "-200 (NO_AVAILABLE_HANDLE)"; codes without a name are shown as numbers.
std::string describe_mooncake_code(std::int64_t code);

/// Of a negative code that answers exists, get or remove. Anything unknown is a failed read:
/// kStale.
Reaction mooncake_read_reaction(std::int64_t code);

/// Of any code that answers a put. 0 says "ok" and not whether this call stored anything.
PutResult mooncake_put_result(std::int64_t code);

/// Whether the code is one that mooncake-store documents.
bool is_known_mooncake_code(std::int64_t code);

/// A start-up failure in words: what was tried, the code, its likely cause and the remedy.
Status mooncake_failure(const std::string& attempt, const std::string& store, std::int64_t code);

}  // namespace kvc
