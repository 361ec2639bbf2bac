// A rank in a process of its own, for the tests of the channel:
//
//   channel_rank RENDEZVOUS RANK WORLD_SIZE
//
// It has every block at once, says on standard output what it hears, and ends when hold 1 ends.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>

#include "base/mutex.h"
#include "kvc/channel.h"
#include "kvc/clock.h"
#include "kvc/log.h"
#include "os/process.h"

namespace kvc {
namespace {

constexpr HoldId kLastHold = 1;
/// Longer than any test lasts: nobody may be there to end it.
constexpr std::chrono::seconds kLife{100};

void say(const std::string& line) {
  std::puts(line.c_str());
  std::fflush(stdout);
}

class Rank final : public StageRank {
 public:
  void stage(StageOrder order, Report report) override {
    say("order " + std::to_string(order.hold) + " " + std::to_string(order.blocks.size()));
    report({.hold = order.hold,
            .staged = static_cast<std::uint32_t>(order.blocks.size()),
            .done = true});
  }

  void release(HoldRelease release) override {
    say("release " + std::to_string(release.hold) + " " + std::to_string(release.from_block));
    if (release.hold != kLastHold) return;
    const MutexLock lock(mutex_);
    is_over_ = true;
    over_.notify_all();
  }

  void keep_only(std::span<const HoldId> live, HoldId newest) override {
    std::string line = "keep " + std::to_string(newest);
    for (const HoldId hold : live) line += " " + std::to_string(hold);
    say(line);
  }

  void wait() {
    const Deadline deadline = Deadline::after(*system_clock(), kLife);
    const MutexLock lock(mutex_);
    while (!is_over_ && !deadline.passed(*system_clock())) over_.wait_until(mutex_, deadline.at);
  }

 private:
  Mutex mutex_;
  CondVar over_;
  bool is_over_ KVC_GUARDED_BY(mutex_) = false;
};

int run(const char* rendezvous, std::uint32_t rank, std::uint32_t world_size) {
  const auto stage = std::make_shared<Rank>();
  say("pid " + std::to_string(process_id()));
  const Result<std::unique_ptr<ChannelClient>> client = ChannelClient::create(
      {.rank = rank,
       .world_size = world_size,
       .heartbeat = {.interval = std::chrono::milliseconds(20), .missed = 100}},
      Fingerprint{}, stage, make_null_logger());
  if (!client.ok() || !(*client)->meet(rendezvous).ok()) return EXIT_FAILURE;
  stage->wait();
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace kvc

int main(int count, char** words) {
  if (count != 4) return EXIT_FAILURE;
  return kvc::run(words[1], static_cast<std::uint32_t>(std::atoi(words[2])),
                  static_cast<std::uint32_t>(std::atoi(words[3])));
}
