// The replica calls of a store object, for mooncake_binding_client.cc: they go through
// mooncake_trtllm._mooncake_replicas, since the binding describes replicas by objects of its own.
#pragma once

#include <string>
#include <vector>

#include "bindings/mooncake_binding_client.h"
#include "bindings/python_api.h"

namespace kvc::bindings {

/// REQUIRES for everything, destruction included: the GIL is held.
class MooncakeReplicaCalls {
 public:
  /// Of a binding that lacks a part; every call then fails.
  MooncakeReplicaCalls() = default;

  /// Without what is needed, an object that is false, and `why` says what lacks.
  static MooncakeReplicaCalls find(PyObject* store, const MooncakeClientConfig& config,
                                   const std::string& own_address, std::string* why);

  explicit operator bool() const { return static_cast<bool>(config_); }

  /// What a put is told to store so many copies. Null with an exception raised.
  PyRef config(std::uint32_t replicas) const;
  MooncakeReplicas of_keys(PyObject* keys) const;
  MooncakeSegments segments() const;
  /// Null with an exception raised.
  PyRef copy(const std::string& key, const std::string& segment) const;
  PyRef read(const MooncakeReplica& replica, std::byte* data) const;

 private:
  PyRef config_;
  PyRef of_keys_;
  PyRef segments_;
  PyRef copy_;
  PyRef read_;
};

}  // namespace kvc::bindings
