#include "bindings/convert.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <utility>

namespace kvc::bindings {
namespace {

namespace nb = nanobind;

constexpr double kLongestSeconds = 365.0 * 24 * 3600;

[[noreturn]] void refuse_integer(Py_ssize_t index, nb::handle item, const char* expected) {
  PyErr_Clear();
  const std::string message =
      "item " + std::to_string(index) + " is " + nb::repr(item).c_str() + ", not " + expected;
  throw nb::value_error(message.c_str());
}

template <typename Integer>
std::vector<Integer> to_integers(nb::handle sequence, const char* expected) {
  const nb::object fast =
      nb::steal(PySequence_Fast(sequence.ptr(), "expected a sequence of integers"));
  if (!fast.is_valid()) throw nb::python_error();
  const Py_ssize_t size = PySequence_Fast_GET_SIZE(fast.ptr());
  PyObject** const items = PySequence_Fast_ITEMS(fast.ptr());
  std::vector<Integer> integers(static_cast<std::size_t>(size));
  for (Py_ssize_t i = 0; i < size; ++i) {
    int overflow = 0;
    const long long value = PyLong_AsLongLongAndOverflow(items[i], &overflow);
    if (overflow != 0 || (value == -1 && PyErr_Occurred() != nullptr) ||
        value < std::numeric_limits<Integer>::min() ||
        value > std::numeric_limits<Integer>::max()) {
      refuse_integer(i, items[i], expected);
    }
    integers[static_cast<std::size_t>(i)] = static_cast<Integer>(value);
  }
  return integers;
}

template <typename Array>
Array to_array(const nb::bytes& bytes, const char* what) {
  Array array;
  if (bytes.size() != array.size()) {
    const std::string message = std::string(what) + " has " + std::to_string(array.size()) +
                                " bytes, not " + std::to_string(bytes.size());
    throw nb::value_error(message.c_str());
  }
  std::memcpy(array.data(), bytes.data(), array.size());
  return array;
}

}  // namespace

std::span<const std::byte> view(const nb::bytes& bytes) {
  return {static_cast<const std::byte*>(bytes.data()), bytes.size()};
}

nb::bytes to_bytes(std::span<const std::byte> bytes) {
  return nb::bytes(bytes.data(), bytes.size());
}

nb::bytes to_bytes(std::string_view bytes) { return nb::bytes(bytes.data(), bytes.size()); }

nb::str to_str(std::string_view text) { return nb::str(text.data(), text.size()); }

std::vector<Token> to_tokens(nb::handle sequence) {
  return to_integers<Token>(sequence, "a 32-bit integer");
}

std::vector<SlotIndex> to_slots(nb::handle sequence) {
  return to_integers<SlotIndex>(sequence, "a 64-bit integer");
}

CacheSalt to_salt(nb::handle salt) {
  if (salt.is_none()) return std::monostate{};
  if (nb::isinstance<nb::str>(salt)) return nb::cast<std::string>(salt);
  if (!PyLong_Check(salt.ptr()) || PyBool_Check(salt.ptr())) {
    throw nb::value_error("cache_salt must be None, a string or an integer");
  }
  int overflow = 0;
  const long long number = PyLong_AsLongLongAndOverflow(salt.ptr(), &overflow);
  if (overflow == 0) return std::int64_t{number};
  const unsigned long long large = PyLong_AsUnsignedLongLong(salt.ptr());
  if (PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    throw nb::value_error("cache_salt does not fit 64 bits");
  }
  return std::uint64_t{large};
}

RequestScope to_scope(nb::handle salt, nb::handle lora) {
  return {.cache_salt = to_salt(salt), .lora = nb::cast<std::optional<std::string>>(lora)};
}

std::vector<MediaItem> to_media(nb::handle items) {
  std::vector<MediaItem> media;
  for (const nb::handle item : items) {
    const auto [digest, start, length] =
        nb::cast<std::tuple<nb::bytes, std::uint64_t, std::uint64_t>>(item);
    const std::span<const std::byte> bytes = view(digest);
    media.push_back({.digest = {bytes.begin(), bytes.end()}, .start = start, .length = length});
  }
  return media;
}

BlockHash to_block_hash(const nb::bytes& bytes) {
  return {to_array<decltype(BlockHash::bytes)>(bytes, "a block hash")};
}

Fingerprint to_fingerprint(const nb::bytes& bytes) {
  return to_array<Fingerprint>(bytes, "a keyspace fingerprint");
}

Duration to_duration(double seconds) {
  if (!(seconds >= 0)) throw nb::value_error("a duration must not be negative");
  return std::chrono::duration_cast<Duration>(
      std::chrono::duration<double>(std::min(seconds, kLongestSeconds)));
}

}  // namespace kvc::bindings
