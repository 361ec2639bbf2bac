// The few parts of CPython's API that the Mooncake client needs, as owners: the GIL, references,
// and exceptions as text.
#pragma once

#include <Python.h>

#include <string>
#include <utility>

#include "os/process.h"

namespace kvc::bindings {

/// Takes the GIL again after PyEval_SaveThread(). A daemon thread gets it no more once the
/// interpreter ends: CPython before 3.14 then unwinds the thread's stack, and a frame on it that
/// does not allow that (a destructor, nanobind's own) takes the process down. Such a thread waits
/// here for the end of the process instead, as it does in 3.14.
inline void take_gil_again(PyThreadState* state) {
  try {
    PyEval_RestoreThread(state);
  } catch (...) {
    wait_for_end_of_process();
  }
}

/// Holds the GIL for a scope, on any thread, whether or not the thread holds it already. REQUIRES:
/// the interpreter lives, and is not finalising unless this thread finalises it.
class GilHold {
 public:
  GilHold() : state_(PyGILState_Ensure()) {}
  ~GilHold() { PyGILState_Release(state_); }
  GilHold(const GilHold&) = delete;
  GilHold& operator=(const GilHold&) = delete;

 private:
  const PyGILState_STATE state_;
};

/// Lets go of the GIL for a scope if this thread holds it.
class GilPause {
 public:
  GilPause() : state_(PyGILState_Check() == 1 ? PyEval_SaveThread() : nullptr) {}
  ~GilPause() {
    if (state_ != nullptr) take_gil_again(state_);
  }
  GilPause(const GilPause&) = delete;
  GilPause& operator=(const GilPause&) = delete;

 private:
  PyThreadState* const state_;
};

/// Owns a reference. REQUIRES for everything: the GIL is held.
class PyRef {
 public:
  PyRef() = default;
  /// Takes over a new reference; null stands for an exception that was raised.
  explicit PyRef(PyObject* object) : object_(object) {}
  PyRef(PyRef&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  PyRef& operator=(PyRef&& other) noexcept {
    PyRef old(std::exchange(object_, std::exchange(other.object_, nullptr)));
    return *this;
  }
  ~PyRef() { Py_XDECREF(object_); }

  static PyRef borrowed(PyObject* object) {
    Py_XINCREF(object);
    return PyRef(object);
  }

  explicit operator bool() const { return object_ != nullptr; }
  PyObject* get() const { return object_; }
  /// The caller owns the reference from here on.
  PyObject* release() { return std::exchange(object_, nullptr); }

 private:
  PyObject* object_ = nullptr;
};

/// str(object), or what is wrong with it. Leaves no exception behind.
std::string text_of(PyObject* object);

/// Takes the raised exception: "TypeError: ...". REQUIRES: one is raised.
std::string take_exception();

/// Whether the raised exception is of a class. The exception stays.
inline bool is_raised(PyObject* type) { return PyErr_ExceptionMatches(type) == 1; }

}  // namespace kvc::bindings
