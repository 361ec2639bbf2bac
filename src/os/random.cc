#include "os/random.h"

#include <sys/random.h>

#include <cerrno>

namespace kvc {

bool fill_with_secret(std::span<std::byte> out) {
  while (!out.empty()) {
    const auto got = ::getrandom(out.data(), out.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    out = out.subspan(static_cast<std::size_t>(got));
  }
  return true;
}

}  // namespace kvc
