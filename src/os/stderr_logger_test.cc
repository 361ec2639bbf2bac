#include <gtest/gtest.h>

#include <string>

#include "kvc/log.h"

namespace kvc {
namespace {

TEST(StderrLogger, WritesOneLinePerMessageFromItsLevelUpwards) {
  const std::shared_ptr<Logger> logger = make_stderr_logger(LogLevel::kInfo);
  testing::internal::CaptureStderr();
  logger->log(LogLevel::kDebug, "not shown");
  logger->log(LogLevel::kInfo, "first {} %s");
  logger->log(LogLevel::kError, "two\nlines");
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(text.find("not shown"), std::string::npos);
  EXPECT_NE(text.find(" I kvc: first {} %s\n"), std::string::npos) << text;
  EXPECT_NE(text.find(" E kvc: two lines\n"), std::string::npos) << text;
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
}

TEST(StderrLogger, WarningsHaveALevelOfTheirOwn) {
  const std::shared_ptr<Logger> logger = make_stderr_logger(LogLevel::kWarning);
  testing::internal::CaptureStderr();
  logger->log(LogLevel::kInfo, "quiet");
  logger->log(LogLevel::kWarning, "heard");
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(text.find("quiet"), std::string::npos);
  EXPECT_NE(text.find(" W kvc: heard\n"), std::string::npos) << text;
}

TEST(NullLogger, WritesNothing) {
  testing::internal::CaptureStderr();
  make_null_logger()->log(LogLevel::kError, "nothing");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace kvc
