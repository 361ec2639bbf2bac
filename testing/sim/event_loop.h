// The one loop of a simulated world. It takes the next event by simulated time, and among those of
// one time by choice; time advances only when nothing is ready. In the other order, for small
// worlds that are tried in full, there is no time: any event that is ready may be the next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "testing/sim/choice.h"
#include "testing/sim/journal.h"

namespace kvc::sim {

enum class EventOrder : std::uint8_t { kByTime, kAny };

class EventLoop {
 public:
  using Action = std::function<void()>;

  EventLoop(Choice& choice, EventOrder order) : choice_(choice), order_(order) {}

  Tick now() const { return now_; }
  /// Events run so far: a finer time, which also goes on where there are no delays.
  std::uint64_t steps() const { return steps_; }
  EventOrder order() const { return order_; }

  /// Runs `action` so many ticks from now. The delay counts only in EventOrder::kByTime. Returns a
  /// number for forget().
  std::uint64_t after(Tick delay, Action action);
  /// The event has become pointless. In EventOrder::kAny it is taken away, since it would only
  /// multiply the orders to be tried; else it runs and has to do nothing.
  void forget(std::uint64_t event);
  /// A delay of [1, at_most] by choice; 0 where there are none.
  Tick some_delay(Tick at_most);
  /// Runs one event. False: there is none.
  bool step();
  bool empty() const { return events_.empty(); }

 private:
  struct Event {
    Tick at;
    std::uint64_t turn;  // Decides among events of one time.
    Action action;
  };
  static bool later(const Event& a, const Event& b) {
    return a.at != b.at ? a.at > b.at : a.turn > b.turn;
  }

  Choice& choice_;
  const EventOrder order_;
  Tick now_ = 0;
  std::uint64_t steps_ = 0;
  std::uint64_t made_ = 0;
  std::vector<Event> events_;  // A heap by time, or in the order of their making.
};

/// Something that can crash. What it has begun ends with its life; nothing of it goes on in the
/// next one.
class Process {
 public:
  bool up() const { return up_; }
  std::uint32_t life() const { return life_; }
  void crash() {
    up_ = false;
    ++life_;
  }
  void restart() { up_ = true; }

  /// `action`, unless the process has crashed meanwhile. REQUIRES: the process outlives the loop.
  template <typename F>
  auto in_this_life(F action) {
    return [this, life = life_, action = std::move(action)](auto&&... arguments) mutable {
      if (up_ && life == life_) action(std::forward<decltype(arguments)>(arguments)...);
    };
  }

 private:
  bool up_ = true;
  std::uint32_t life_ = 0;
};

}  // namespace kvc::sim
