// Digests of weight files: of every byte, or of chosen places where reading all would take too
// long.
#pragma once

#include <filesystem>

#include "keyspace/sha256.h"
#include "kvc/result.h"

namespace kvc {

/// SHA-256 of the whole file. kInvalid, naming it, if it cannot be read.
Result<Sha256Digest> digest_file(const std::filesystem::path& path);

/// SHA-256 over the file's size and bytes at places that depend on its format and size alone
/// (docs/format/key.md):
///
/// * .safetensors: the header, and of each tensor either everything (up to 4 KiB) or 1 KiB at its
///   beginning, its end and two places between;
/// * any other: the first and the last MiB (a zip archive keeps the checksums of all its members at
///   the end, GGUF its tensor list at the beginning) and 4 KiB out of every 4 MiB.
///
/// kInvalid, naming file and reason, if it cannot be read or its header is malformed.
Result<Sha256Digest> digest_samples(const std::filesystem::path& path);

}  // namespace kvc
