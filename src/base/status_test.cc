#include "kvc/status.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>

#include "kvc/result.h"

namespace kvc {
namespace {

TEST(Status, DefaultIsOk) {
  const Status status;
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.code(), Code::kOk);
  EXPECT_EQ(status.to_string(), "ok");
}

TEST(Status, ErrorCarriesCodeAndMessage) {
  const Status status = invalid("slots is 0: give at least 1");
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.code(), Code::kInvalid);
  EXPECT_EQ(status.to_string(), "invalid: slots is 0: give at least 1");
}

TEST(Status, EveryCodeHasANameOfItsOwn) {
  std::set<std::string_view> names;
  for (const Code code : {Code::kOk, Code::kInvalid, Code::kUnsupported, Code::kMissing,
                          Code::kRejected, Code::kUnavailable, Code::kTimedOut, Code::kExhausted}) {
    EXPECT_NE(to_string(code), "unknown");
    names.insert(to_string(code));
  }
  EXPECT_EQ(names.size(), 8u);
}

TEST(Result, HoldsAValueOrAStatus) {
  Result<int> value = 7;
  ASSERT_TRUE(value.ok());
  EXPECT_EQ(*value, 7);
  EXPECT_TRUE(value.status().ok());
  Result<int> error = Status(Code::kMissing, "gone");
  EXPECT_FALSE(error.ok());
  EXPECT_EQ(error.status().code(), Code::kMissing);
}

TEST(Result, MovesAValueThatCannotBeCopied) {
  Result<std::unique_ptr<int>> result = std::make_unique<int>(3);
  ASSERT_TRUE(result.ok());
  const std::unique_ptr<int> taken = std::move(result).value();
  EXPECT_EQ(*taken, 3);
}

}  // namespace
}  // namespace kvc
