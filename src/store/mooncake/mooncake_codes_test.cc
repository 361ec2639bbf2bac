#include "store/mooncake/mooncake_codes.h"

#include <gtest/gtest.h>

namespace kvc {
namespace {

TEST(MooncakeCodes, ReadsAreClassedByWhatTheyCallFor) {
  for (const int code : {-703, -704}) EXPECT_EQ(mooncake_read_reaction(code), Reaction::kMiss);
  for (const int code : {-200, -706, -1700}) {
    EXPECT_EQ(mooncake_read_reaction(code), Reaction::kBackOff) << code;
  }
  for (const int code : {-707, -800, -801}) {
    EXPECT_EQ(mooncake_read_reaction(code), Reaction::kStale) << code;
  }
  for (const int code : {-900, -901, -1010}) {
    EXPECT_EQ(mooncake_read_reaction(code), Reaction::kDown) << code;
  }
  for (const int code : {-10, -600, -601}) {
    EXPECT_EQ(mooncake_read_reaction(code), Reaction::kCallerBug) << code;
  }
}

TEST(MooncakeCodes, UnknownNegativeIsAFailedReadAndAFailedPut) {
  for (const std::int64_t code : {-2, -102, -999, -1503, -123456789}) {
    EXPECT_EQ(mooncake_read_reaction(code), Reaction::kStale) << code;
    EXPECT_EQ(mooncake_put_result(code).reaction, Reaction::kStale) << code;
    EXPECT_EQ(mooncake_put_result(code).effect, PutEffect::kUnknown) << code;
  }
  EXPECT_FALSE(is_known_mooncake_code(-123456789));
  EXPECT_TRUE(is_known_mooncake_code(-800));
}

TEST(MooncakeCodes, PutThatReturnedOkProvesNothing) {
  EXPECT_EQ(mooncake_put_result(0).reaction, Reaction::kOk);
  EXPECT_EQ(mooncake_put_result(0).effect, PutEffect::kUnknown);
  EXPECT_EQ(mooncake_put_result(-200).effect, PutEffect::kNone);
  EXPECT_EQ(mooncake_put_result(-200).reaction, Reaction::kBackOff);
  EXPECT_EQ(mooncake_put_result(-900).effect, PutEffect::kUnknown);
  EXPECT_EQ(mooncake_put_result(-704).reaction, Reaction::kStale) << "a put is never a miss";
}

TEST(MooncakeCodes, FailuresNameStoreCodeCauseAndRemedy) {
  for (const int code : {-200, -600, -800, -900, -901, -1700, -1701, -42}) {
    const Status status = mooncake_failure("putting", "master 1.2.3.4:5", code);
    EXPECT_FALSE(status.ok());
    for (const std::string& part :
         {std::string("master 1.2.3.4:5"), std::string("putting"), std::to_string(code)}) {
      EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
    }
  }
  EXPECT_NE(mooncake_failure("x", "y", -900).message().find("release"), std::string::npos);
  EXPECT_NE(mooncake_failure("x", "y", -200).message().find("mooncake_client"), std::string::npos);
  EXPECT_EQ(mooncake_failure("x", "y", -200).code(), Code::kExhausted);
  EXPECT_EQ(mooncake_failure("x", "y", -900).code(), Code::kUnavailable);
  EXPECT_EQ(describe_mooncake_code(-704), "-704 (OBJECT_NOT_FOUND)");
  EXPECT_EQ(describe_mooncake_code(-42), "-42");
}

}  // namespace
}  // namespace kvc
