// Python values to those of the core and back. Lists of integers take the direct way, since a
// prompt has up to a million tokens and is converted inside of a callback.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <span>
#include <string_view>
#include <tuple>
#include <vector>

#include "kvc/block_hash.h"
#include "kvc/clock.h"
#include "kvc/identity.h"
#include "kvc/layout.h"

namespace kvc::bindings {

std::span<const std::byte> view(const nanobind::bytes& bytes);
nanobind::bytes to_bytes(std::span<const std::byte> bytes);
nanobind::bytes to_bytes(std::string_view bytes);
nanobind::str to_str(std::string_view text);

/// Any sequence of integers. Throws ValueError naming the first one that is no 32-bit integer.
std::vector<Token> to_tokens(nanobind::handle sequence);
/// Likewise for 64-bit page indices.
std::vector<SlotIndex> to_slots(nanobind::handle sequence);

/// None, a string or an integer; an integer is never taken for a string, nor True for 1.
CacheSalt to_salt(nanobind::handle salt);
RequestScope to_scope(nanobind::handle salt, nanobind::handle lora);
/// A list of (digest, start, length).
std::vector<MediaItem> to_media(nanobind::handle items);

/// Throws ValueError unless `bytes` has the size.
BlockHash to_block_hash(const nanobind::bytes& bytes);
Fingerprint to_fingerprint(const nanobind::bytes& bytes);

/// From seconds; throws ValueError if negative, clamps what is longer than a year.
Duration to_duration(double seconds);

}  // namespace kvc::bindings
