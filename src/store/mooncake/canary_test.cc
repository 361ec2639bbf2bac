#include "store/mooncake/canary.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "testing/fake_mooncake_client.h"
#include "testing/sim_clock.h"

namespace kvc {
namespace {

using testlib::FakeMooncakeClient;
using testlib::FakeMooncakeCluster;
using testlib::FakeMooncakeOptions;
using testlib::SimClock;

struct Rig {
  explicit Rig(FakeMooncakeOptions fake_options = {})
      : cluster(std::make_shared<FakeMooncakeCluster>(std::move(fake_options))), client(cluster) {
    options.instance = "10.0.0.1:5000/77";
    options.bytes = 10'000;
    options.budget = std::chrono::seconds(1);
  }

  Status fly() { return send_canary(client, options, clock); }
  void expect_failure(Code code, const char* part) {
    const Status status = fly();
    EXPECT_EQ(status.code(), code) << status.to_string();
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("master fake:50051"), std::string::npos) << status.message();
  }
  /// One method answers `reply`, `times` times.
  void answer(std::string method, MooncakeReply reply, int times = 1'000'000) {
    cluster->set_script(
        [method = std::move(method), reply = std::move(reply), times](
            std::string_view called,
            const std::vector<std::string>&) mutable -> std::optional<MooncakeReply> {
          if (called != method || times-- <= 0) return std::nullopt;
          return reply;
        });
  }

  std::shared_ptr<FakeMooncakeCluster> cluster;
  FakeMooncakeClient client;
  CanaryOptions options;
  SimClock clock{std::chrono::milliseconds(10)};
};

TEST(Canary, GoesThroughTheStoreAndLeavesNothingBehind) {
  FakeMooncakeOptions strict;
  strict.requires_registration = true;
  Rig rig(strict);
  EXPECT_TRUE(rig.fly().ok());
  EXPECT_TRUE(rig.cluster->keys().empty());
  EXPECT_EQ(rig.cluster->calls("batch_put_from"), 1u);
  EXPECT_EQ(rig.cluster->calls("batch_get_into"), 1u);
  EXPECT_EQ(rig.cluster->calls("unregister_buffer"), 1u);
}

TEST(Canary, WithoutStorageSaysHowToStartIt) {
  FakeMooncakeOptions empty;
  empty.segment_bytes = 0;
  Rig rig(empty);
  rig.expect_failure(Code::kExhausted, "mooncake_client");
  // It tried for the whole budget, and stopped.
  EXPECT_GT(rig.cluster->calls("batch_put_from"), 2u);
  EXPECT_LT(rig.cluster->calls("batch_put_from"), 15u);
  EXPECT_EQ(rig.cluster->calls("unregister_buffer"), 1u);
}

TEST(Canary, StorageThatComesLateIsWaitedFor) {
  Rig rig;
  rig.answer("batch_put_from", {{-200}, {}}, 3);
  EXPECT_TRUE(rig.fly().ok());
  EXPECT_EQ(rig.cluster->calls("batch_put_from"), 4u);
}

TEST(Canary, EachAttemptHasAKeyOfItsOwn) {
  Rig rig;
  std::vector<std::string> seen;
  rig.cluster->set_script(
      [&](std::string_view method,
          const std::vector<std::string>& keys) -> std::optional<MooncakeReply> {
        if (method != "batch_put_from") return std::nullopt;
        seen.push_back(keys.at(0));
        return MooncakeReply{{-800}, {}};
      });
  rig.expect_failure(Code::kUnavailable, "firewall");
  std::sort(seen.begin(), seen.end());
  EXPECT_GT(seen.size(), 2u);
  EXPECT_EQ(std::unique(seen.begin(), seen.end()), seen.end());
  EXPECT_NE(seen[0].find("10.0.0.1:5000/77"), std::string::npos);
}

TEST(Canary, MismatchedReleaseIsNamedAtOnce) {
  Rig rig;
  rig.answer("batch_put_from", {{-900}, {}});
  rig.expect_failure(Code::kUnavailable, "release");
  EXPECT_EQ(rig.cluster->calls("batch_put_from"), 1u);
}

TEST(Canary, HungMasterIsNamed) {
  Rig rig;
  rig.cluster->fail_master(-901);
  rig.expect_failure(Code::kUnavailable, "-901");
}

TEST(Canary, OtherBytesAreRejected) {
  Rig rig;
  rig.cluster->set_script(
      [&](std::string_view method,
          const std::vector<std::string>& keys) -> std::optional<MooncakeReply> {
        if (method == "batch_is_exist") rig.cluster->corrupt(keys.at(0));
        return std::nullopt;
      });
  rig.expect_failure(Code::kUnavailable, "other bytes");
  EXPECT_TRUE(rig.cluster->keys().empty()) << "the bad object was left in the store";
}

TEST(Canary, B77_ObjectThatVanishesOrShrinksIsRejected) {
  Rig rig;
  rig.answer("batch_is_exist", {{0}, {}});
  rig.expect_failure(Code::kUnavailable, "not there");
  Rig shrinks;
  shrinks.answer("batch_get_into", {{9'999}, {}});
  shrinks.expect_failure(Code::kUnavailable, "9999 bytes of 10000");
}

TEST(Canary, ObjectThatCannotBeRemovedIsAFailure) {
  Rig rig;
  rig.answer("batch_remove", {{-706}, {}});
  rig.expect_failure(Code::kUnavailable, "-706");
}

TEST(Canary, AnswersOfAWrongShapeAreFailures) {
  for (const char* method :
       {"register_buffer", "batch_put_from", "batch_is_exist", "batch_get_into", "batch_remove"}) {
    Rig rig;
    rig.answer(method, {{}, {}});
    rig.expect_failure(Code::kUnavailable, "answer for 0");
    Rig two;
    two.answer(method, {{0, 0}, {}});
    two.expect_failure(Code::kUnavailable, "answer for 2");
    Rig thrown;
    thrown.answer(method, {{}, "TypeError: no"});
    thrown.expect_failure(Code::kUnavailable, "TypeError: no");
  }
}

TEST(Canary, RefusedRegistrationIsNamed) {
  Rig rig;
  rig.answer("register_buffer", {{-600}, {}});
  rig.expect_failure(Code::kInvalid, "registering");
}

}  // namespace
}  // namespace kvc
