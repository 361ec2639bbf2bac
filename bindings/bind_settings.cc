#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "bindings/bind.h"
#include "bindings/convert.h"
#include "bindings/status_error.h"
#include "kvc/settings.h"

namespace kvc::bindings {
namespace {

namespace nb = nanobind;
using nb::literals::operator""_a;

using Texts = std::map<std::string, std::string>;

Settings parse(Texts environment, Texts overrides, std::optional<std::string> file_text,
               std::string file_name, std::optional<std::string> store_file_text,
               std::string store_file_name) {
  return value_or_throw(Settings::parse({.overrides = std::move(overrides),
                                         .environment = std::move(environment),
                                         .file_text = std::move(file_text),
                                         .file_name = std::move(file_name),
                                         .store_file_text = std::move(store_file_text),
                                         .store_file_name = std::move(store_file_name)}));
}

nb::list describe(const Settings& settings) {
  nb::list lines;
  for (const SettingLine& line : settings.describe()) {
    lines.append(
        nb::make_tuple(to_str(line.name), to_str(line.value), to_str(to_string(line.source))));
  }
  return lines;
}

nb::list split(std::string_view choices) {
  nb::list list;
  while (!choices.empty()) {
    const std::size_t bar = choices.find('|');
    list.append(to_str(choices.substr(0, bar)));
    choices = bar == std::string_view::npos ? std::string_view() : choices.substr(bar + 1);
  }
  return list;
}

nb::list table() {
  nb::list rows;
  for (const SettingSpec& spec : setting_table()) {
    nb::dict row;
    row["name"] = to_str(spec.name);
    row["type"] = to_str(to_string(spec.type));
    row["default"] = to_str(spec.default_value);
    row["minimum"] = spec.minimum;
    row["maximum"] = spec.maximum;
    row["choices"] = split(spec.choices);
    row["foreign"] = spec.foreign;
    row["doc"] = to_str(spec.doc);
    rows.append(row);
  }
  return rows;
}

}  // namespace

void bind_settings(nb::module_& m) {
  nb::class_<Settings>(m, "Settings", "Names must be in setting_table(), types must fit.")
      .def_static("parse", &parse, "environment"_a, nb::kw_only(), "overrides"_a = Texts(),
                  "file_text"_a.none() = nb::none(), "file_name"_a = "",
                  "store_file_text"_a.none() = nb::none(), "store_file_name"_a = "")
      .def("text", [](const Settings& s, std::string_view name) { return s.text(name); })
      .def("flag", [](const Settings& s, std::string_view name) { return s.flag(name); })
      .def("number", [](const Settings& s, std::string_view name) { return s.number(name); })
      .def("seconds",
           [](const Settings& s, std::string_view name) {
             return std::chrono::duration<double>(s.duration(name)).count();
           })
      .def("has_value", [](const Settings& s, std::string_view name) { return s.has_value(name); })
      .def("warnings", &Settings::warnings)
      .def("describe", &describe, nb::sig("def describe(self) -> list[tuple[str, str, str]]"),
           "Name, value and source of every setting that has a value.");
  m.def("setting_table", &table, nb::sig("def setting_table() -> list[dict[str, typing.Any]]"),
        "The rows of the table, for its documentation.");
}

}  // namespace kvc::bindings
