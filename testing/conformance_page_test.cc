#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "testing/conformance_fixture.h"

namespace kvc {
namespace {

TEST(ConformancePage, NamesEveryCaseAndNoOther) {
  std::set<std::string> cases;
  for (const auto& list : {testlib::single_caller_cases(), testlib::concurrent_cases()}) {
    for (const testlib::ConformanceCase& one : list) cases.insert(one.name);
  }
  std::ifstream file(KVC_SOURCE_DIR "/docs/contract/store.md");
  std::stringstream text;
  text << file.rdbuf();
  const std::string page = text.str();
  ASSERT_FALSE(page.empty());
  // "Conformance: `A`, `B`." up to the full stop.
  const std::regex list("Conformance:((?:\\s*`\\w+`,?)+)");
  const std::regex name("`(\\w+)`");
  std::set<std::string> named;
  for (std::sregex_iterator at(page.begin(), page.end(), list), end; at != end; ++at) {
    const std::string names = at->str(1);
    for (std::sregex_iterator one(names.begin(), names.end(), name); one != end; ++one) {
      named.insert(one->str(1));
    }
  }
  EXPECT_EQ(named, cases);
}

}  // namespace
}  // namespace kvc
