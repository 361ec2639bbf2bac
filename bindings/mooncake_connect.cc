#include "bindings/mooncake_connect.h"

#include <utility>

#include "store/mooncake/mooncake_codes.h"

namespace kvc::bindings {
namespace {

// What the package knows of the wheel is written in Python, for its other parts too.
constexpr const char* kKnowledge = "mooncake_trtllm.mooncake_wheel";

// Which package `mooncake` Python finds; imports it, which the failed import has done already.
constexpr const char* kWhereIsMooncake = R"py(
import mooncake
where = ", ".join(getattr(mooncake, "__path__", ())) or str(getattr(mooncake, "__file__", None))
)py";

/// Runs `code` in a namespace of its own and gives the text of `variable`; empty if that failed.
std::string run_for_text(const char* code, const char* variable) {
  const PyRef names(PyDict_New());
  if (names && PyDict_SetItemString(names.get(), "__builtins__", PyEval_GetBuiltins()) == 0) {
    const PyRef done(PyRun_String(code, Py_file_input, names.get(), names.get()));
    PyObject* const value = done ? PyDict_GetItemString(names.get(), variable) : nullptr;
    if (value != nullptr) return text_of(value);
  }
  PyErr_Clear();
  return {};
}

/// A text of kKnowledge: its attribute, or what its function of that name returns. Null with an
/// exception raised.
PyRef knowledge(const char* name) {
  const PyRef module(PyImport_ImportModule(kKnowledge));
  PyRef found(module ? PyObject_GetAttrString(module.get(), name) : nullptr);
  if (found && PyCallable_Check(found.get()) != 0) return PyRef(PyObject_CallNoArgs(found.get()));
  return found;
}

std::string knowledge_or(const char* name, const char* otherwise) {
  const PyRef text = knowledge(name);
  if (text) return text_of(text.get());
  PyErr_Clear();
  return otherwise;
}

/// How to get the wheel.
std::string install() {
  return knowledge_or("INSTALL", "install Mooncake's wheel") +
         " (or the variant for your accelerator), in the release that the master runs, or use "
         "MC_BACKEND=memory";
}

Status failed_import() {
  const bool is_missing = is_raised(PyExc_ModuleNotFoundError);
  const std::string reason = take_exception();
  if (!is_missing) {
    return {Code::kUnsupported,
            "mooncake.store of the installed Mooncake cannot be loaded: " + reason +
                ". Remedy: install the system libraries that it needs (apt-get install libibverbs1 "
                "libcurl4 libnuma1), or use MC_BACKEND=memory"};
  }
  const std::string where = run_for_text(kWhereIsMooncake, "where");
  if (where.empty()) {
    return {Code::kUnsupported, "Mooncake's wheel is not installed for this Python (" + reason +
                                    "). Remedy: " + install()};
  }
  return {Code::kUnsupported,
          "the package 'mooncake' that this Python finds has no mooncake.store (" + reason +
              "); it is looked for in " + where +
              ". Either Mooncake's wheel is not installed, or another package of that name, or an "
              "empty mooncake/__init__.py, hides it. Remedy: " +
              install() + "; remove what hides it from sys.path"};
}

/// Names the values that are not the usual ones: most often one of them is why a setup failed.
std::string suspects(const MooncakeClientConfig& config) {
  std::string text;
  if (config.metadata_server != "P2PHANDSHAKE") {
    // Its address may hold a password.
    text +=
        "; or the metadata server does not answer, since MOONCAKE_TE_META_DATA_SERVER is not "
        "P2PHANDSHAKE";
  }
  if (config.protocol != "tcp") {
    text += "; or MOONCAKE_PROTOCOL=" + config.protocol + " is not in this build of Mooncake";
  }
  return text;
}

/// The answer of setup(). Null with an exception raised.
PyRef call_setup(PyObject* store, const MooncakeClientConfig& config,
                 const std::string& own_address) {
  const PyRef setup(PyObject_GetAttrString(store, "setup"));
  if (!setup) return PyRef();
  const PyRef arguments(
      Py_BuildValue("(ssKKsss)", own_address.c_str(), config.metadata_server.c_str(),
                    static_cast<unsigned long long>(config.global_segment_bytes),
                    0ULL,  // no local buffer: transfers are by address
                    config.protocol.c_str(), config.devices.c_str(), config.master.c_str()));
  if (!arguments) return PyRef();
  // Older releases know no tenants; there is nothing to say about the default one.
  const bool has_tenant = !config.tenant.empty() && config.tenant != "default";
  const PyRef keywords(has_tenant ? Py_BuildValue("{ss}", "tenant_id", config.tenant.c_str())
                                  : PyDict_New());
  if (!keywords) return PyRef();
  return PyRef(PyObject_Call(setup.get(), arguments.get(), keywords.get()));
}

}  // namespace

Result<std::string> set_missing_environment() {
  const PyRef set = knowledge("set_missing_environment");
  if (set) return text_of(set.get());
  return Status(Code::kUnavailable, "the environment cannot be set: " + take_exception());
}

Result<PyRef> import_mooncake_class() {
  const PyRef module(PyImport_ImportModule("mooncake.store"));
  if (!module) return failed_import();
  PyRef store_class(PyObject_GetAttrString(module.get(), "MooncakeDistributedStore"));
  if (!store_class) {
    return Status(Code::kUnsupported, "mooncake.store of " + installed_release() +
                                          " has no MooncakeDistributedStore (" + take_exception() +
                                          "). Remedy: " + install());
  }
  return store_class;
}

std::string installed_release() { return knowledge_or("installed_release", "unknown release"); }

Result<PyRef> set_up_store(PyObject* store_class, const MooncakeClientConfig& config,
                           const std::string& own_address) {
  PyRef store(PyObject_CallNoArgs(store_class));
  const PyRef answer = store ? call_setup(store.get(), config, own_address) : PyRef();
  const bool is_unsupported =
      !answer && (is_raised(PyExc_TypeError) || is_raised(PyExc_AttributeError));
  const std::string raised = answer ? std::string() : take_exception();
  const std::string who = "Mooncake Store (master " + config.master + ", " + installed_release() +
                          "): setup as " + own_address;
  if (!answer) {
    return Status(is_unsupported ? Code::kUnsupported : Code::kUnavailable,
                  who + " raised " + raised +
                      ". Remedy: check the MOONCAKE_* settings, and that the release is supported");
  }
  const long long code = PyLong_AsLongLong(answer.get());
  if (code == -1 && PyErr_Occurred() != nullptr) {
    return Status(Code::kUnsupported, who + " gave no number: " + take_exception());
  }
  if (code == 0) return store;
  return Status(
      Code::kUnavailable,
      who + " failed with " + describe_mooncake_code(code) +
          ". The port of the master is open, so it hangs, is no Mooncake master, or is of another "
          "release; or this machine cannot use the own address, protocol or device" +
          suspects(config) +
          ". Remedy: compare `mooncake_master --version` with the release named here; check "
          "MOONCAKE_LOCAL_HOSTNAME, MOONCAKE_PROTOCOL and MOONCAKE_DEVICE");
}

}  // namespace kvc::bindings
