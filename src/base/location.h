// Where in the source something was said. Stands in for std::source_location, which clang 14 has
// not got.
#pragma once

namespace kvc {

struct Location {
  const char* file = "";
  int line = 0;

  /// The place of the caller, when left as the default argument of a function.
  static constexpr Location current(const char* file = __builtin_FILE(),
                                    int line = __builtin_LINE()) {
    return {file, line};
  }
};

}  // namespace kvc
