#include <chrono>

#include "kvc/clock.h"

namespace kvc {
namespace {

class SystemClock final : public Clock {
 public:
  Instant now() const override { return std::chrono::steady_clock::now(); }
};

}  // namespace

std::shared_ptr<const Clock> system_clock() { return std::make_shared<const SystemClock>(); }

}  // namespace kvc
