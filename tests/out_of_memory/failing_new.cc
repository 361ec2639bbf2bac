#include "tests/out_of_memory/failing_new.h"

#include <algorithm>
#include <cstdlib>
#include <new>

namespace kvc::testlib {
namespace {

struct State {
  std::size_t armed = 0;
  std::size_t spared = 0;
  std::size_t count = 0;
  std::size_t fail_at = 0;  // 0: never.
  Shortage shortage = Shortage::kOnce;
  bool has_failed = false;
};

constinit thread_local State state;

bool runs_out() {
  if (state.armed == 0 || state.spared > 0 || state.fail_at == 0) return false;
  ++state.count;
  const bool now = state.count == state.fail_at ||
                   (state.count > state.fail_at && state.shortage == Shortage::kFromThenOn);
  state.has_failed = state.has_failed || now;
  return now;
}

void* allocate(std::size_t bytes) noexcept {
  return runs_out() ? nullptr : std::malloc(std::max<std::size_t>(bytes, 1));
}

void* allocate(std::size_t bytes, std::align_val_t alignment) noexcept {
  if (runs_out()) return nullptr;
  const auto align = static_cast<std::size_t>(alignment);
  return std::aligned_alloc(align, (std::max<std::size_t>(bytes, 1) + align - 1) / align * align);
}

void* or_throw(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void FailingNew::start(std::size_t fail_at, Shortage shortage) {
  state = State{};
  state.fail_at = fail_at;
  state.shortage = shortage;
}

void FailingNew::stop() { state.fail_at = 0; }

bool FailingNew::has_failed() { return state.has_failed; }

Armed::Armed() { ++state.armed; }
Armed::~Armed() { --state.armed; }

Spared::Spared() { ++state.spared; }
Spared::~Spared() { --state.spared; }

}  // namespace kvc::testlib

// All forms, since those of a sanitizer's runtime do not go together with these.

using kvc::testlib::allocate;
using kvc::testlib::or_throw;

void* operator new(std::size_t bytes) { return or_throw(allocate(bytes)); }
void* operator new[](std::size_t bytes) { return or_throw(allocate(bytes)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return or_throw(allocate(bytes, alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return or_throw(allocate(bytes, alignment));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes); }
void* operator new(std::size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return allocate(bytes, alignment);
}
void* operator new[](std::size_t bytes, std::align_val_t alignment,
                     const std::nothrow_t&) noexcept {
  return allocate(bytes, alignment);
}

void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t, const std::nothrow_t&) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::align_val_t, const std::nothrow_t&) noexcept {
  std::free(memory);
}
