#include "bindings/status_error.h"

#include <nanobind/nanobind.h>

namespace kvc::bindings {
namespace {

namespace nb = nanobind;

const char* error_class(Code code) {
  switch (code) {
    case Code::kOk:
      break;
    case Code::kInvalid:
    case Code::kUnsupported:
      return "KvConnectorConfigError";
    case Code::kUnavailable:
    case Code::kTimedOut:
    case Code::kExhausted:
      return "KvConnectorStoreError";
    case Code::kMissing:
    case Code::kRejected:
      return "KvConnectorLoadError";
  }
  return "KvConnectorError";
}

}  // namespace

void throw_if_failed(const Status& status) {
  if (status.ok()) return;
  const nb::object type =
      nb::module_::import_("mooncake_trtllm.errors").attr(error_class(status.code()));
  const nb::str message(status.message().c_str(), status.message().size());
  PyErr_SetObject(type.ptr(), message.ptr());
  throw nb::python_error();
}

}  // namespace kvc::bindings
