// What the batched calls have in common, so that a decorator is written once for all of them.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "kvc/store.h"

namespace kvc {

inline const std::string& key_of(const std::string& key) { return key; }
inline const std::string& key_of(const PutItem& item) { return item.key; }
inline const std::string& key_of(const GetItem& item) { return item.key; }
inline const std::string& key_of(const ReplicaItem& item) { return item.key; }

inline Reaction reaction_of(Reaction result) { return result; }
inline Reaction reaction_of(const PutResult& result) { return result.reaction; }
inline Reaction reaction_of(const GetResult& result) { return result.reaction; }

/// The result of an item that the store has not seen. REQUIRES: reaction != kOk.
template <typename Result>
Result not_done(Reaction reaction);

template <>
inline Reaction not_done<Reaction>(Reaction reaction) {
  return reaction;
}
template <>
inline PutResult not_done<PutResult>(Reaction reaction) {
  return {reaction, PutEffect::kNone};
}
template <>
inline GetResult not_done<GetResult>(Reaction reaction) {
  return {reaction, 0};
}

/// The result of an item whose reply was lost: a put may have taken effect.
template <typename Result>
Result reply_lost() {
  return not_done<Result>(Reaction::kDown);
}
template <>
inline PutResult reply_lost<PutResult>() {
  return {Reaction::kDown, PutEffect::kUnknown};
}

template <typename Result>
std::vector<Result> all_not_done(std::size_t count, Reaction reaction) {
  return std::vector<Result>(count, not_done<Result>(reaction));
}

}  // namespace kvc
