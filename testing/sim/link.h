// The connection between the leader and one rank: ordered, and reliable until it breaks, when all
// that is under way is lost. Both ends notice; it comes back after a while.
#pragma once

#include <cstdint>
#include <functional>

#include "testing/sim/site.h"

namespace kvc::sim {

class SimLink {
 public:
  struct Events {
    std::function<void()> lost;       ///< On the leader's side.
    std::function<void()> connected;  ///< Again.
  };

  SimLink(Site& site, Tick latency, Tick away) : site_(site), latency_(latency), away_(away) {}

  void set_events(Events events) { events_ = std::move(events); }
  bool connected() const { return connected_; }

  /// Runs `message` at the other end, unless the connection breaks before. What is sent while it is
  /// broken is dropped.
  void to_rank(std::function<void()> message) { send(to_rank_, std::move(message)); }
  void to_leader(std::function<void()> message) { send(to_leader_, std::move(message)); }

  void lose();
  /// Stays lost until come_back().
  void lose_for_good();
  void come_back();

 private:
  struct Direction {
    Tick last_arrival = 0;
  };
  void break_off(bool comes_back);
  void send(Direction& direction, std::function<void()> message);

  Site& site_;
  const Tick latency_;
  const Tick away_;
  Events events_;
  Direction to_rank_;
  Direction to_leader_;
  bool connected_ = true;
  std::uint32_t connection_ = 0;
};

}  // namespace kvc::sim
