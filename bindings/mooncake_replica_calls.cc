#include "bindings/mooncake_replica_calls.h"

#include <cstdint>
#include <utility>

namespace kvc::bindings {
namespace {

/// (text, number, number), as strings and two numbers.
bool read_entry(PyObject* tuple, std::string* text, std::uint64_t* first, std::uint64_t* second) {
  const char* chars = nullptr;
  unsigned long long numbers[2] = {};
  if (PyArg_ParseTuple(tuple, "sKK", &chars, &numbers[0], &numbers[1]) == 0) return false;
  *text = chars;
  *first = numbers[0];
  *second = numbers[1];
  return true;
}

PyRef invoke(const PyRef& method, PyObject* arguments) {
  const PyRef owned(arguments);
  return owned ? PyRef(PyObject_Call(method.get(), owned.get(), nullptr)) : PyRef();
}

bool append_replicas(PyObject* list, MooncakeReplicas* replicas) {
  auto& of_this = replicas->of_key.emplace_back();
  if (!PyList_Check(list)) return false;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) {
    MooncakeReplica replica;
    if (!read_entry(PyList_GET_ITEM(list, i), &replica.endpoint, &replica.address,
                    &replica.bytes)) {
      return false;
    }
    of_this.push_back(std::move(replica));
  }
  return true;
}

std::string problem() {
  return PyErr_Occurred() != nullptr ? take_exception() : "an answer of a strange shape";
}

}  // namespace

MooncakeReplicaCalls MooncakeReplicaCalls::find(PyObject* store, const MooncakeClientConfig& config,
                                                const std::string& own_address, std::string* why) {
  const PyRef module(PyImport_ImportModule("mooncake_trtllm._mooncake_replicas"));
  const PyRef type(module ? PyObject_GetAttrString(module.get(), "ReplicaCalls") : nullptr);
  const PyRef arguments(type ? Py_BuildValue("(O)", store) : nullptr);
  const PyRef keywords(
      arguments ? Py_BuildValue("{ssssssssssss}", "master", config.master.c_str(), "admin",
                                config.admin.c_str(), "own_address", own_address.c_str(),
                                "metadata_server", config.metadata_server.c_str(), "protocol",
                                config.protocol.c_str(), "devices", config.devices.c_str())
                : nullptr);
  const PyRef calls(keywords ? PyObject_Call(type.get(), arguments.get(), keywords.get())
                             : nullptr);
  MooncakeReplicaCalls found;
  const std::pair<const char*, PyRef*> wanted[] = {{"config", &found.config_},
                                                   {"of_keys", &found.of_keys_},
                                                   {"segments", &found.segments_},
                                                   {"copy", &found.copy_},
                                                   {"read", &found.read_}};
  for (const auto& [name, method] : wanted) {
    *method = PyRef(calls ? PyObject_GetAttrString(calls.get(), name) : nullptr);
    if (*method) continue;
    *why = take_exception();
    return {};
  }
  return found;
}

PyRef MooncakeReplicaCalls::config(std::uint32_t replicas) const {
  return invoke(config_, Py_BuildValue("(I)", replicas));
}

MooncakeReplicas MooncakeReplicaCalls::of_keys(PyObject* keys) const {
  MooncakeReplicas replicas;
  const PyRef answer = invoke(of_keys_, Py_BuildValue("(O)", keys));
  bool is_good = answer && PyList_Check(answer.get());
  for (Py_ssize_t i = 0; is_good && i < PyList_GET_SIZE(answer.get()); ++i) {
    is_good = append_replicas(PyList_GET_ITEM(answer.get(), i), &replicas);
  }
  if (!is_good) replicas = {{}, problem()};
  return replicas;
}

MooncakeSegments MooncakeReplicaCalls::segments() const {
  MooncakeSegments segments;
  const PyRef answer = invoke(segments_, PyTuple_New(0));
  bool is_good = answer && PyList_Check(answer.get());
  for (Py_ssize_t i = 0; is_good && i < PyList_GET_SIZE(answer.get()); ++i) {
    MooncakeSegment segment;
    const char* name = nullptr;
    const char* endpoint = nullptr;
    unsigned long long free_bytes = 0;
    is_good = PyArg_ParseTuple(PyList_GET_ITEM(answer.get(), i), "ssK", &name, &endpoint,
                               &free_bytes) != 0;
    if (is_good) segments.usable.push_back({name, endpoint, free_bytes});
  }
  if (!is_good) segments = {{}, problem()};
  return segments;
}

PyRef MooncakeReplicaCalls::copy(const std::string& key, const std::string& segment) const {
  PyObject* const bytes =
      PyBytes_FromStringAndSize(key.data(), static_cast<Py_ssize_t>(key.size()));
  if (bytes == nullptr) return PyRef();
  return invoke(copy_, Py_BuildValue("(Ns)", bytes, segment.c_str()));
}

PyRef MooncakeReplicaCalls::read(const MooncakeReplica& replica, std::byte* data) const {
  return invoke(
      read_, Py_BuildValue("(sKKK)", replica.endpoint.c_str(),
                           static_cast<unsigned long long>(replica.address),
                           static_cast<unsigned long long>(reinterpret_cast<std::uintptr_t>(data)),
                           static_cast<unsigned long long>(replica.bytes)));
}

}  // namespace kvc::bindings
