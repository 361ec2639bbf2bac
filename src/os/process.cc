#include "os/process.h"

#include <unistd.h>

namespace kvc {

std::int64_t process_id() { return ::getpid(); }

}  // namespace kvc
