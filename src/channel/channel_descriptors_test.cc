// What a channel does in a process that has hardly any descriptors left.
#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <string>
#include <thread>

#include "channel/channel_fixture.h"
#include "os/few_descriptors.h"

namespace kvc {
namespace {

// Descriptors that are left: from none to enough. The sanitizer of types opens a pipe to see
// whether an object's memory may be read, and takes every object for broken where it gets none.
#ifdef __SANITIZE_ADDRESS__
constexpr std::size_t kLeast = 32;
constexpr std::size_t kEnough = 32;
#else
constexpr std::size_t kLeast = 0;
constexpr std::size_t kEnough = 8;
#endif

ChannelServerOptions server_options() {
  return {.world_size = 2, .folder = ::testing::TempDir(), .heartbeat = kPatient};
}

TEST(ChannelDescriptors, LeaderThatGetsTooFewIsAnError) {
  const auto logger = std::make_shared<testlib::CollectingLogger>();
  for (std::size_t free = kLeast; free <= kEnough; ++free) {
    const FewDescriptors few(free);
    const Result<std::unique_ptr<ChannelServer>> made =
        ChannelServer::create(server_options(), kKeyspace, logger);
    EXPECT_TRUE(made.ok() || free < kEnough);
    EXPECT_NE(made.status().code(), Code::kInvalid) << free << ": nobody gave a wrong value";
  }
}

TEST(ChannelDescriptors, RankThatGotTooFewMeetsItsLeaderLater) {
  for (std::size_t free = kLeast; free <= kEnough; ++free) {
    const Leader leader(server_options());
    const Follower follower({.rank = 1,
                             .world_size = 2,
                             .heartbeat = kPatient,
                             .first_retry = std::chrono::milliseconds(1),
                             .longest_retry = std::chrono::milliseconds(5)});
    {
      const FewDescriptors few(free);
      const Status met = follower.client->meet(leader.server->rendezvous());
      EXPECT_TRUE(met.ok() || free < kEnough);
      // Its thread tries while there are few, not only once there are enough again.
      const Deadline soon = Deadline::after(*system_clock(), std::chrono::milliseconds(100));
      while (met.ok() && !soon.passed(*system_clock()) &&
             follower.client->stats().attempts_failed == 0 && !leader.server->link(1)->connected())
        std::this_thread::yield();
    }
    // As each plan does.
    EXPECT_TRUE(eventually([&] {
      return follower.client->meet(leader.server->rendezvous()).ok() &&
             leader.server->link(1)->connected();
    })) << free;
  }
}

}  // namespace
}  // namespace kvc
