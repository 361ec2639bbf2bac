#include "settings/setting_file.h"

#include <set>
#include <sstream>

#include <nlohmann/json.hpp>
#include <toml++/toml.h>

namespace kvc {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kTextMax = 1u << 20;

Status bad_syntax(const std::string& place, const std::string& why) {
  return invalid(place + " cannot be read: " + why);
}

/// What is wrong, without the name that the library gives to the kind of mistake.
std::string reason_of(const Json::exception& error) {
  const std::string text = error.what();
  const std::size_t end = text.find("] ");
  return text.starts_with('[') && end != std::string::npos ? text.substr(end + 2) : text;
}

FileSetting from_json(const std::string& name, const Json& value) {
  using Kind = FileSetting::Kind;
  if (value.is_string()) return {name, Kind::kText, value.get<std::string>()};
  if (value.is_boolean()) return {name, Kind::kBoolean, value.get<bool>() ? "true" : "false"};
  if (value.is_number_integer()) return {name, Kind::kInteger, value.dump()};
  if (value.is_number_float()) return {name, Kind::kOther, "a fraction"};
  if (value.is_null()) return {name, Kind::kOther, "null"};
  return {name, Kind::kOther, value.is_array() ? "an array" : "an object"};
}

Result<std::vector<FileSetting>> read_json(const std::string& place, const std::string& text) {
  std::set<std::string> names;
  std::string twice;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::key && depth == 1) {
      if (!names.insert(parsed.get<std::string>()).second) twice = parsed.get<std::string>();
    }
    return true;
  };
  Json root;
  try {
    root = Json::parse(text, watch);
  } catch (const Json::exception& error) {
    return bad_syntax(place, reason_of(error));
  }
  if (!root.is_object()) return bad_syntax(place, "it holds no JSON object");
  if (!twice.empty()) return bad_syntax(place, "'" + twice + "' stands there twice");
  std::vector<FileSetting> settings;
  for (const auto& [name, value] : root.items()) settings.push_back(from_json(name, value));
  return settings;
}

FileSetting from_toml(const std::string& name, const toml::node& node) {
  using Kind = FileSetting::Kind;
  if (const auto* text = node.as_string()) return {name, Kind::kText, text->get()};
  if (const auto* flag = node.as_boolean()) {
    return {name, Kind::kBoolean, flag->get() ? "true" : "false"};
  }
  if (const auto* integer = node.as_integer()) {
    return {name, Kind::kInteger, std::to_string(integer->get())};
  }
  if (node.is_floating_point()) return {name, Kind::kOther, "a fraction"};
  if (node.is_array()) return {name, Kind::kOther, "an array"};
  return {name, Kind::kOther, node.is_table() ? "a table" : "a date or time"};
}

Result<std::vector<FileSetting>> read_toml(const std::string& place, const std::string& text) {
  toml::table root;
  try {
    root = toml::parse(std::string_view(text));
  } catch (const toml::parse_error& error) {
    std::ostringstream reason;
    reason << error.description() << " at " << error.source().begin;
    return bad_syntax(place, reason.str());
  }
  std::vector<FileSetting> settings;
  for (const auto& [name, node] : root) {
    settings.push_back(from_toml(std::string(name.str()), node));
  }
  return settings;
}

}  // namespace

Result<std::vector<FileSetting>> read_settings_file(std::string_view file_name,
                                                    const std::string& text) {
  const std::string place = settings_file_place(file_name);
  if (text.size() > kTextMax) return bad_syntax(place, "it is larger than 1 MiB");
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  const bool looks_like_json = first != std::string::npos && text[first] == '{';
  if (file_name.ends_with(".json") || (!file_name.ends_with(".toml") && looks_like_json)) {
    return read_json(place, text);
  }
  return read_toml(place, text);
}

Result<std::vector<FileSetting>> read_store_file(std::string_view file_name,
                                                 const std::string& text) {
  const std::string place = store_file_place(file_name);
  if (text.size() > kTextMax) return bad_syntax(place, "it is larger than 1 MiB");
  return read_json(place, text);
}

std::string settings_file_place(std::string_view file_name) {
  return "settings file '" + std::string(file_name) + "'";
}

std::string store_file_place(std::string_view file_name) {
  return "file '" + std::string(file_name) + "' of MOONCAKE_CONFIG_PATH";
}

}  // namespace kvc
