// Memory that runs out when a test says so: this program's operator new throws std::bad_alloc at
// the n-th allocation that the product makes, for n = 1, 2, 3, ... until a run gets all that it
// asks for.
//
//   at_every_allocation(Shortage::kOnce, [] {
//     World world;                           // what the test does itself is not counted, ...
//     {
//       const Armed armed;
//       world.worker->bind(plan);            // ... but this is, on this thread
//     }
//     const Spared spared;                   // from here on there is memory
//     ... look at what became of it ...
//   });
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <ostream>
#include <string>
#include <tuple>

namespace kvc::testlib {

enum class Shortage {
  kOnce,        ///< The n-th allocation fails, the next one does not.
  kFromThenOn,  ///< And so do all after it.
};

/// For names of tests.
inline void PrintTo(Shortage shortage, std::ostream* out) {
  *out << (shortage == Shortage::kOnce ? "once" : "from then on");
}

/// The name of a test for each kind of something that has a `name`, and each shortage.
template <typename Kind>
std::string name_of_kind(const testing::TestParamInfo<std::tuple<Kind, Shortage>>& of) {
  const auto& [kind, shortage] = of.param;
  return std::string(kind.name) + (shortage == Shortage::kOnce ? "Once" : "FromThenOn");
}

/// Of the calling thread.
class FailingNew {
 public:
  /// Counts from one again.
  static void start(std::size_t fail_at, Shortage shortage);
  static void stop();
  static bool has_failed();
};

/// Allocations of this thread count, and fail, as long as one of these lives.
class Armed {
 public:
  Armed();
  ~Armed();
  Armed(const Armed&) = delete;
  Armed& operator=(const Armed&) = delete;
};

/// Nothing counts as long as one of these lives: there is all the memory in the world.
class Spared {
 public:
  Spared();
  ~Spared();
  Spared(const Spared&) = delete;
  Spared& operator=(const Spared&) = delete;
};

/// The thread sanitizer makes a run fifty times as long, and most of them have one thread: it gets
/// a sample.
#ifdef __SANITIZE_THREAD__
inline constexpr std::size_t kEvery = 11;
#else
inline constexpr std::size_t kEvery = 1;
#endif

/// Runs `scenario` until it gets all its memory, or fails. How many allocations could fail.
template <typename Scenario>
std::size_t at_every_allocation(Shortage shortage, Scenario scenario) {
  for (std::size_t n = 1;; n += kEvery) {
    const testing::ScopedTrace trace(__FILE__, __LINE__, testing::Message() << "allocation " << n);
    FailingNew::start(n, shortage);
    scenario();
    const bool has_failed = FailingNew::has_failed();
    FailingNew::stop();
    if (!has_failed || testing::Test::HasFailure()) return n - 1;
  }
}

}  // namespace kvc::testlib
