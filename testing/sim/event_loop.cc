#include "testing/sim/event_loop.h"

#include <algorithm>
#include <utility>

namespace kvc::sim {

std::uint64_t EventLoop::after(Tick delay, Action action) {
  const std::uint64_t event = ++made_;
  if (order_ == EventOrder::kAny) {
    events_.push_back({0, event, std::move(action)});
    return event;
  }
  const std::uint64_t turn = (std::uint64_t{choice_.below(1u << 31)} << 32) | (event & 0xffffffffu);
  events_.push_back({now_ + delay, turn, std::move(action)});
  std::push_heap(events_.begin(), events_.end(), later);
  return event;
}

void EventLoop::forget(std::uint64_t event) {
  if (order_ != EventOrder::kAny) return;
  std::erase_if(events_, [event](const Event& waiting) { return waiting.turn == event; });
}

Tick EventLoop::some_delay(Tick at_most) {
  if (order_ == EventOrder::kAny || at_most == 0) return 0;
  return 1 + choice_.below(static_cast<std::uint32_t>(at_most));
}

bool EventLoop::step() {
  if (events_.empty()) return false;
  Action action;
  if (order_ == EventOrder::kAny) {
    const std::size_t count = events_.size();
    const std::size_t at = count == 1 ? 0 : choice_.below(static_cast<std::uint32_t>(count));
    action = std::move(events_[at].action);
    events_.erase(events_.begin() + static_cast<std::ptrdiff_t>(at));
  } else {
    std::pop_heap(events_.begin(), events_.end(), later);
    now_ = events_.back().at;
    action = std::move(events_.back().action);
    events_.pop_back();
  }
  ++steps_;
  action();
  return true;
}

}  // namespace kvc::sim
