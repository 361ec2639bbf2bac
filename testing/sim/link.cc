#include "testing/sim/link.h"

#include <algorithm>
#include <utility>

namespace kvc::sim {

void SimLink::send(Direction& direction, std::function<void()> message) {
  if (!connected_) return;
  if (site_.faults.strikes(Fault::kConnectionLost)) return lose();
  Tick delay = site_.loop.some_delay(latency_);
  if (site_.faults.strikes(Fault::kMessageLate)) delay += 4 * latency_ + site_.loop.some_delay(400);
  // One after the other, as they were sent.
  const Tick arrival = std::max(site_.loop.now() + delay, direction.last_arrival + 1);
  direction.last_arrival = arrival;
  const auto deliver = [this, connection = connection_, message = std::move(message)] {
    if (connected_ && connection == connection_) message();
  };
  if (site_.faults.strikes(Fault::kMessageRepeated)) {
    direction.last_arrival += 1 + site_.loop.some_delay(20);
    site_.loop.after(direction.last_arrival - site_.loop.now(), deliver);
  }
  site_.loop.after(arrival - site_.loop.now(), deliver);
}

void SimLink::lose_for_good() { break_off(false); }

void SimLink::lose() { break_off(true); }

void SimLink::break_off(bool comes_back) {
  if (!connected_) return;
  connected_ = false;
  ++connection_;
  site_.journal.note(site_.loop.now(), "link: lost");
  const auto back = [this, connection = connection_] {
    if (connection == connection_) come_back();
  };
  site_.loop.after(site_.loop.some_delay(latency_),
                   [this, connection = connection_, comes_back, back] {
                     if (connection != connection_) return;
                     if (comes_back) site_.loop.after(site_.loop.some_delay(away_), back);
                     if (events_.lost) events_.lost();
                   });
}

void SimLink::come_back() {
  if (connected_) return;
  connected_ = true;
  ++connection_;
  to_rank_.last_arrival = to_leader_.last_arrival = site_.loop.now();
  site_.journal.note(site_.loop.now(), "link: back");
  site_.coverage.hit(Mark::kReconnected);
  if (events_.connected) events_.connected();
}

}  // namespace kvc::sim
