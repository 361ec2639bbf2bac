#include "bindings/python_api.h"

namespace kvc::bindings {

std::string text_of(PyObject* object) {
  const PyRef text(PyObject_Str(object));
  Py_ssize_t size = 0;
  const char* const bytes = text ? PyUnicode_AsUTF8AndSize(text.get(), &size) : nullptr;
  if (bytes == nullptr) {
    PyErr_Clear();
    return "<no text>";
  }
  return {bytes, static_cast<std::size_t>(size)};
}

std::string take_exception() {
#if PY_VERSION_HEX >= 0x030C0000
  const PyRef value(PyErr_GetRaisedException());
#else
  PyObject* raw_type = nullptr;
  PyObject* raw_value = nullptr;
  PyObject* raw_traceback = nullptr;
  PyErr_Fetch(&raw_type, &raw_value, &raw_traceback);
  PyErr_NormalizeException(&raw_type, &raw_value, &raw_traceback);
  const PyRef type(raw_type);
  const PyRef value(raw_value);
  const PyRef traceback(raw_traceback);
#endif
  if (!value) return "an exception without a value";
  return std::string(Py_TYPE(value.get())->tp_name) + ": " + text_of(value.get());
}

}  // namespace kvc::bindings
