// For tests of what happens in a process that has hardly any descriptors left.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <cstddef>

#include "base/check.h"

namespace kvc {

/// While it lives, the process gets at most so many descriptors more.
class FewDescriptors {
 public:
  explicit FewDescriptors(std::size_t free) {
    const int next = ::dup(STDERR_FILENO);
    KVC_CHECK(next >= 0 && ::getrlimit(RLIMIT_NOFILE, &before_) == 0, "no descriptors to limit");
    ::close(next);
    rlimit few = before_;
    few.rlim_cur = static_cast<rlim_t>(next) + free;
    KVC_CHECK(::setrlimit(RLIMIT_NOFILE, &few) == 0, "descriptors cannot be limited");
  }
  ~FewDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;

 private:
  rlimit before_{};
};

}  // namespace kvc
