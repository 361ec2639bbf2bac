// Bugs that are planted on purpose, to prove that the tests would see them.
//
// `KVC_PLANTED("name")` is false in every ordinary build and costs nothing. A file that is compiled
// once more with KVC_PLANTED_BUGS (tests/negative, tests/sim) asks at run time whether the test
// switched that bug on. Each name belongs to a test there, which fails if its bug goes unnoticed.
#pragma once

#if defined(KVC_PLANTED_BUGS)
#include <string_view>

namespace kvc {

/// Defined by tests/negative and tests/sim only.
bool planted_bug(std::string_view name);

}  // namespace kvc

#define KVC_PLANTED(name) ::kvc::planted_bug(name)
#else
#define KVC_PLANTED(name) false
#endif
