#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace kvc {

void check_failed(const char* condition, const char* message, Location where) {
  std::fprintf(stderr, "kvc: check failed at %s:%d: %s (%s)\n", where.file, where.line, message,
               condition);
  std::fflush(stderr);
  std::abort();
}

}  // namespace kvc
