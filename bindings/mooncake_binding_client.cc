#include "bindings/mooncake_binding_client.h"

#include <chrono>
#include <utility>

#include "bindings/mooncake_connect.h"
#include "bindings/mooncake_replica_calls.h"
#include "bindings/python_api.h"
#include "os/process.h"
#include "os/socket.h"
#include "store/call_gate.h"

namespace kvc::bindings {
namespace {

constexpr const char* kCapsuleName = "kvc.mooncake_exit";
constexpr Duration kConnectBudget = std::chrono::seconds(2);
constexpr Duration kExitWait = std::chrono::seconds(5);

/// What a client shares with its exit handler.
struct Exit {
  CallGate gate;  // calls that are in Python, or in the binding
};

/// The exit handler: see the head of mooncake_binding_client.h.
PyObject* on_exit(PyObject* capsule, PyObject* /*none*/) {
  void* const pointer = PyCapsule_GetPointer(capsule, kCapsuleName);
  if (pointer == nullptr) return nullptr;
  const std::shared_ptr<Exit> exit = *static_cast<std::shared_ptr<Exit>*>(pointer);
  {
    const GilPause pause;
    const std::shared_ptr<const Clock> clock = system_clock();
    // At exit the binding tears down its clients, with no regard for calls that are in them.
    if (!exit->gate.shut(Deadline::after(*clock, kExitWait), *clock)) {
      skip_registered_exit_handlers();
      // They end while the interpreter does, which lets no thread in any more.
      park_threads_that_are_unwound();
    }
  }
  Py_RETURN_NONE;
}

void free_capsule(PyObject* capsule) {
  delete static_cast<std::shared_ptr<Exit>*>(PyCapsule_GetPointer(capsule, kCapsuleName));
}

/// A Python callable that runs on_exit. Null with an exception raised.
PyRef make_exit_handler(const std::shared_ptr<Exit>& exit) {
  static PyMethodDef method = {"kvc_mooncake_exit", &on_exit, METH_NOARGS, nullptr};
  auto owned = std::make_unique<std::shared_ptr<Exit>>(exit);
  const PyRef capsule(PyCapsule_New(owned.get(), kCapsuleName, &free_capsule));
  if (!capsule) return PyRef();
  (void)owned.release();
  return PyRef(PyCFunction_New(&method, capsule.get()));
}

/// atexit.register or atexit.unregister. False with an exception raised.
bool tell_atexit(const char* method, PyObject* handler) {
  const PyRef module(PyImport_ImportModule("atexit"));
  const PyRef function(module ? PyObject_GetAttrString(module.get(), method) : nullptr);
  return static_cast<bool>(
      PyRef(function ? PyObject_CallFunctionObjArgs(function.get(), handler, nullptr) : nullptr));
}

/// A list of one Python object per element. Null with an exception raised.
template <typename Elements, typename Convert>
PyRef to_list(const Elements& elements, Convert convert) {
  PyRef list(PyList_New(static_cast<Py_ssize_t>(elements.size())));
  for (std::size_t i = 0; list && i < elements.size(); ++i) {
    PyObject* const item = convert(elements[i]);
    if (item == nullptr) return PyRef();
    PyList_SET_ITEM(list.get(), static_cast<Py_ssize_t>(i), item);
  }
  return list;
}

// As bytes, which the binding takes for a std::string as they are, whatever they hold.
PyRef keys_to_list(const std::vector<std::string>& keys) {
  return to_list(keys, [](const std::string& key) {
    return PyBytes_FromStringAndSize(key.data(), static_cast<Py_ssize_t>(key.size()));
  });
}

template <typename Pointer>
PyRef pointers_to_list(const std::vector<Pointer>& pointers) {
  return to_list(pointers, [](Pointer pointer) {
    return PyLong_FromUnsignedLongLong(reinterpret_cast<std::uintptr_t>(pointer));
  });
}

PyRef sizes_to_list(const std::vector<std::size_t>& sizes) {
  return to_list(sizes, [](std::size_t size) { return PyLong_FromSize_t(size); });
}

MooncakeReply failed(std::string why) { return {{}, std::move(why)}; }

bool append_code(PyObject* number, MooncakeReply& reply) {
  if (!PyLong_Check(number)) return false;
  const long long code = PyLong_AsLongLong(number);
  if (code == -1 && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    return false;
  }
  reply.codes.push_back(code);
  return true;
}

MooncakeReply strange(PyObject* answer) {
  return failed("an answer that is no list of numbers: " +
                text_of(reinterpret_cast<PyObject*>(Py_TYPE(answer))));
}

MooncakeReply list_to_reply(PyObject* answer) {
  if (answer == nullptr) return failed(take_exception());
  if (!PyList_Check(answer)) return strange(answer);
  MooncakeReply reply;
  const Py_ssize_t count = PyList_GET_SIZE(answer);
  reply.codes.reserve(static_cast<std::size_t>(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (!append_code(PyList_GET_ITEM(answer, i), reply)) return strange(answer);
  }
  return reply;
}

MooncakeReply number_to_reply(PyObject* answer) {
  if (answer == nullptr) return failed(take_exception());
  MooncakeReply reply;
  if (!append_code(answer, reply)) return strange(answer);
  return reply;
}

/// The bound methods of a store object. References are dropped under the GIL only.
struct Methods {
  PyRef batch_is_exist;
  PyRef batch_put_from;
  PyRef batch_get_into;
  PyRef batch_remove;
  PyRef register_buffer;
  PyRef unregister_buffer;
  PyRef close;
  MooncakeReplicaCalls replicas;
};

Result<Methods> find_methods(PyObject* store) {
  Methods methods;
  const std::pair<const char*, PyRef*> wanted[] = {
      {"batch_is_exist", &methods.batch_is_exist},
      {"batch_put_from", &methods.batch_put_from},
      {"batch_get_into", &methods.batch_get_into},
      {"batch_remove", &methods.batch_remove},
      {"register_buffer", &methods.register_buffer},
      {"unregister_buffer", &methods.unregister_buffer},
      {"close", &methods.close},
  };
  for (const auto& [name, method] : wanted) {
    *method = PyRef(PyObject_GetAttrString(store, name));
    if (!*method) {
      return Status(Code::kUnsupported, installed_release() +
                                            " of Mooncake is too old: " + take_exception() +
                                            ". Remedy: install 0.3.13.post1 or newer here and at "
                                            "the master");
    }
  }
  return methods;
}

class BindingClient final : public MooncakeClient {
 public:
  BindingClient(Methods methods, PyRef exit_handler, std::shared_ptr<Exit> exit,
                std::string description)
      : methods_(new Methods(std::move(methods))),
        exit_handler_(exit_handler.release()),
        exit_(std::move(exit)),
        knows_replicas_(static_cast<bool>(methods_->replicas)),
        description_(std::move(description)),
        process_(process_id()) {}

  // The binding's object closes with its last reference. Past the exit handlers it is left to the
  // end of the process, which the binding itself watches.
  ~BindingClient() override {
    if (methods_ == nullptr || process_id() != process_ || !exit_->gate.enter()) return;
    {
      const GilHold gil;
      forget_python();
    }
    (void)exit_->gate.leave();
  }

  MooncakeReply batch_is_exist(const std::vector<std::string>& keys) override {
    return call(&list_to_reply, [&] {
      const PyRef list = keys_to_list(keys);
      return list ? invoke(methods_->batch_is_exist, list.get()) : PyRef();
    });
  }

  MooncakeReply batch_put_from(const std::vector<std::string>& keys,
                               const std::vector<const std::byte*>& data,
                               const std::vector<std::size_t>& sizes,
                               std::uint32_t replicas) override {
    return call(&list_to_reply, [&] {
      if (replicas <= 1 || !knows_replicas_) {
        return transfer(methods_->batch_put_from, keys, data, sizes);
      }
      const PyRef config = methods_->replicas.config(replicas);
      return config ? transfer(methods_->batch_put_from, keys, data, sizes, config.get()) : PyRef();
    });
  }

  MooncakeReply batch_get_into(const std::vector<std::string>& keys,
                               const std::vector<std::byte*>& data,
                               const std::vector<std::size_t>& sizes) override {
    return call(&list_to_reply,
                [&] { return transfer(methods_->batch_get_into, keys, data, sizes); });
  }

  MooncakeReply batch_remove(const std::vector<std::string>& keys) override {
    return call(&list_to_reply, [&] {
      const PyRef list = keys_to_list(keys);
      // The second argument is `force`: leased objects go too.
      return list ? invoke(methods_->batch_remove, list.get(), Py_True) : PyRef();
    });
  }

  bool knows_replicas() const override { return knows_replicas_; }

  MooncakeReplicas batch_replicas(const std::vector<std::string>& keys) override {
    return in_python<MooncakeReplicas>([&]() -> MooncakeReplicas {
      const PyRef list = keys_to_list(keys);
      if (!list) return {{}, take_exception()};
      return methods_->replicas.of_keys(list.get());
    });
  }

  MooncakeSegments segments() override {
    return in_python<MooncakeSegments>([&] { return methods_->replicas.segments(); });
  }

  MooncakeReply create_copy_task(const std::string& key, const std::string& segment) override {
    return call(&number_to_reply, [&] { return methods_->replicas.copy(key, segment); });
  }

  MooncakeReply read_replica(const MooncakeReplica& replica, std::byte* data) override {
    return call(&number_to_reply, [&] { return methods_->replicas.read(replica, data); });
  }

  MooncakeReply register_buffer(std::byte* data, std::size_t bytes) override {
    return call(&number_to_reply, [&] {
      const PyRef address(PyLong_FromUnsignedLongLong(reinterpret_cast<std::uintptr_t>(data)));
      const PyRef size(PyLong_FromSize_t(bytes));
      return address && size ? invoke(methods_->register_buffer, address.get(), size.get())
                             : PyRef();
    });
  }

  MooncakeReply unregister_buffer(std::byte* data) override {
    return call(&number_to_reply, [&] {
      const PyRef address(PyLong_FromUnsignedLongLong(reinterpret_cast<std::uintptr_t>(data)));
      return address ? invoke(methods_->unregister_buffer, address.get()) : PyRef();
    });
  }

  void close() override {
    (void)call(&number_to_reply, [&] {
      PyRef answer = invoke(methods_->close);
      forget_python();
      return answer;
    });
  }

  std::string description() const override { return description_; }

 private:
  template <typename... Arguments>
  static PyRef invoke(const PyRef& method, Arguments... arguments) {
    return PyRef(PyObject_CallFunctionObjArgs(method.get(), arguments..., nullptr));
  }

  template <typename Pointer, typename... More>
  static PyRef transfer(const PyRef& method, const std::vector<std::string>& keys,
                        const std::vector<Pointer>& data, const std::vector<std::size_t>& sizes,
                        More... more) {
    const PyRef key_list = keys_to_list(keys);
    const PyRef pointer_list = key_list ? pointers_to_list(data) : PyRef();
    const PyRef size_list = pointer_list ? sizes_to_list(sizes) : PyRef();
    if (!size_list) return PyRef();
    return invoke(method, key_list.get(), pointer_list.get(), size_list.get(), more...);
  }

  template <typename Work>
  MooncakeReply call(MooncakeReply (*convert)(PyObject*), Work work) {
    return in_python<MooncakeReply>([&] {
      const PyRef answer = work();
      return convert(answer.get());
    });
  }

  /// Answers by `work`, under the GIL, or with the error that keeps it from being called.
  template <typename Answer, typename Work>
  Answer in_python(Work work) {
    Answer answer;
    if (process_id() != process_) {
      answer.error = "the client belongs to another process; a forked child must open its own";
      return answer;
    }
    if (!exit_->gate.enter()) {
      answer.error = "the interpreter is ending";
      return answer;
    }
    {
      const GilHold gil;
      if (methods_ == nullptr) {
        answer.error = "the client is closed";
      } else {
        answer = work();
      }
    }
    (void)exit_->gate.leave();
    return answer;
  }

  /// Drops every reference. REQUIRES: the GIL is held.
  void forget_python() {
    if (exit_handler_ != nullptr && !tell_atexit("unregister", exit_handler_)) PyErr_Clear();
    Py_CLEAR(exit_handler_);
    delete std::exchange(methods_, nullptr);
  }

  // Deleted under the GIL, or not at all.
  Methods* methods_;
  PyObject* exit_handler_ = nullptr;
  const std::shared_ptr<Exit> exit_;
  const bool knows_replicas_;
  const std::string description_;
  const std::int64_t process_;
};

/// The address that other nodes are to use for this client, with a port of its own.
Result<std::string> choose_own_address(const MooncakeClientConfig& config,
                                       const std::string& reached_from) {
  std::string host = config.local_hostname;
  if (Result<HostPort> whole = parse_host_port(host); whole.ok()) return format_host_port(*whole);
  if (host.empty() || host == "localhost") host = reached_from;
  if (host.empty()) host = "127.0.0.1";
  const Result<std::uint16_t> port = free_tcp_port(host);
  if (!port.ok()) {
    return Status(Code::kInvalid, "MOONCAKE_LOCAL_HOSTNAME=" + host +
                                      " is no address of this machine: " + port.status().message() +
                                      ". Remedy: unset it, or name an address that other nodes "
                                      "can reach");
  }
  return format_host_port({host, *port});
}

/// Own address towards the master; empty if the master is found through a registry.
Result<std::string> reach_master(const MooncakeClientConfig& config) {
  if (config.master.find("://") != std::string::npos) return std::string();
  const Result<HostPort> master = parse_host_port(config.master);
  if (!master.ok()) return invalid("MOONCAKE_MASTER: " + master.status().message());
  Result<std::string> own = tcp_reach(*master, kConnectBudget);
  if (own.ok()) return own;
  return Status(Code::kUnavailable,
                "MOONCAKE_MASTER=" + config.master +
                    " cannot be reached: " + own.status().message() +
                    ". Remedy: start mooncake_master there, or correct the address");
}

}  // namespace

Result<MooncakeConnection> connect_mooncake(const MooncakeClientConfig& config, Logger& logger) {
  Result<std::string> reached_from = std::string();
  Result<std::string> own_address = std::string();
  {
    const GilPause pause;
    reached_from = reach_master(config);
    if (!reached_from.ok()) return reached_from.status();
    own_address = choose_own_address(config, *reached_from);
    if (!own_address.ok()) return own_address.status();
  }
  const GilHold gil;
  const Result<std::string> set = set_missing_environment();
  if (!set.ok()) return set.status();
  if (!set->empty()) {
    logger.log(LogLevel::kInfo, "set for Mooncake's client, since unset: " + *set);
  }
  const Result<PyRef> store_class = import_mooncake_class();
  if (!store_class.ok()) return store_class.status();
  const Result<PyRef> store = set_up_store(store_class->get(), config, *own_address);
  if (!store.ok()) return store.status();
  Result<Methods> methods = find_methods(store->get());
  if (!methods.ok()) return methods.status();
  std::string lacking;
  methods->replicas = MooncakeReplicaCalls::find(store->get(), config, *own_address, &lacking);
  if (!methods->replicas) {
    logger.log(LogLevel::kInfo,
               "this release of Mooncake cannot replicate blocks that are stored: " + lacking);
  }
  const auto exit = std::make_shared<Exit>();
  PyRef handler = make_exit_handler(exit);
  if (!handler || !tell_atexit("register", handler.get())) {
    return Status(Code::kUnavailable, "no exit handler can be registered: " + take_exception());
  }
  MooncakeConnection connection;
  connection.client =
      std::make_shared<BindingClient>(std::move(methods).value(), std::move(handler), exit,
                                      "master " + config.master + ", " + installed_release());
  connection.instance = *own_address + "/" + std::to_string(process_id()) + "/" +
                        std::to_string(system_clock()->now().time_since_epoch().count());
  return connection;
}

}  // namespace kvc::bindings
