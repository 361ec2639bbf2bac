// When C++ runs without the GIL: around every call that may block, wait or take long, and around
// the end of every object whose destructor may.
#pragma once

#include <Python.h>

#include <memory>
#include <utility>

#include "bindings/python_api.h"

namespace kvc::bindings {

/// Releases the GIL for a scope. REQUIRES: the calling thread holds it.
class GilRelease {
 public:
  GilRelease() : state_(PyEval_SaveThread()) {}
  ~GilRelease() { take_gil_again(state_); }
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;

 private:
  PyThreadState* const state_;
};

/// Owns a core object on behalf of Python. The object ends without the GIL, since its destructor
/// may wait for threads that need the GIL to finish.
template <typename T>
class Owned {
 public:
  explicit Owned(std::shared_ptr<T> object) : object_(std::move(object)) {}
  Owned(Owned&&) noexcept = default;
  Owned& operator=(Owned&&) = delete;
  ~Owned() {
    if (object_ == nullptr) return;
    const GilRelease release;
    object_.reset();
  }

  T* operator->() const { return object_.get(); }
  const std::shared_ptr<T>& shared() const { return object_; }

  /// Gives the object up without ending it. For a process that was forked: the threads that the
  /// object would wait for exist in the parent only.
  void disown() { new std::shared_ptr<T>(std::move(object_)); }

 private:
  std::shared_ptr<T> object_;
};

}  // namespace kvc::bindings
