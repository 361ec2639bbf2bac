#include "kvc/settings.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "os/socket.h"
#include "settings/near_names.h"
#include "settings/setting_file.h"
#include "settings/setting_value.h"

namespace kvc {
namespace {

const SettingSpec* find_spec(std::string_view name) {
  for (const SettingSpec& spec : setting_table()) {
    if (spec.name == name) return &spec;
  }
  return nullptr;
}

std::size_t index_of(std::string_view name) {
  const SettingSpec* spec = find_spec(name);
  KVC_CHECK(spec != nullptr, "a setting is not in the table");
  return static_cast<std::size_t>(spec - setting_table().data());
}

std::string did_you_mean(std::string_view name) {
  return name.empty() ? "" : "; did you mean " + std::string(name) + "?";
}

Status unknown_name(const std::string& place, const std::string& name) {
  return invalid(place + " has the unknown setting '" + name + "'" +
                 did_you_mean(meant_by_entry(name)));
}

/// "http://user:password@host" without what must not be logged.
std::string masked(const std::string& text) {
  const std::size_t scheme = text.find("://");
  if (scheme == std::string::npos) return text;
  const std::size_t start = scheme + 3;
  const std::size_t end = text.find('/', start);
  const std::size_t at = text.rfind('@', end == std::string::npos ? end : end - 1);
  if (at == std::string::npos || at < start) return text;
  return text.substr(0, start) + "***" + text.substr(at);
}

bool is_text(SettingType type) {
  return type == SettingType::kText || type == SettingType::kChoice;
}
bool is_number(SettingType type) {
  return type == SettingType::kInteger || type == SettingType::kBytes;
}
bool is_flag(SettingType type) { return type == SettingType::kBoolean; }
bool is_duration(SettingType type) { return type == SettingType::kMilliseconds; }
bool is_any(SettingType) { return true; }

}  // namespace

std::string_view to_string(SettingType type) {
  switch (type) {
    case SettingType::kText:
      return "text";
    case SettingType::kChoice:
      return "choice";
    case SettingType::kBoolean:
      return "boolean";
    case SettingType::kInteger:
      return "integer";
    case SettingType::kBytes:
      return "bytes";
    case SettingType::kMilliseconds:
      return "milliseconds";
  }
  return "unknown";
}

std::string_view to_string(SettingSource source) {
  switch (source) {
    case SettingSource::kDefault:
      return "default";
    case SettingSource::kFile:
      return "file";
    case SettingSource::kEnvironment:
      return "environment";
    case SettingSource::kStoreFile:
      return "store file";
    case SettingSource::kOverride:
      return "override";
  }
  return "unknown";
}

/// Applies sources from the weakest to the strongest; each step stops at the first mistake.
class SettingsBuilder {
 public:
  explicit SettingsBuilder(const SettingsInput& input) : input_(input) {}

  Result<Settings> build() {
    settings_.values_.resize(setting_table().size());
    for (Status (SettingsBuilder::*step)() :
         {&SettingsBuilder::apply_defaults, &SettingsBuilder::apply_file,
          &SettingsBuilder::apply_environment, &SettingsBuilder::apply_store_file,
          &SettingsBuilder::apply_overrides, &SettingsBuilder::choose_backend,
          &SettingsBuilder::normalise_protocol, &SettingsBuilder::fit_save_queue,
          &SettingsBuilder::tell_of_leases, &SettingsBuilder::check_ranks_are_whole,
          &SettingsBuilder::check_ranks, &SettingsBuilder::check_stage_address}) {
      Status status = (this->*step)();
      if (!status.ok()) return status;
    }
    return std::move(settings_);
  }

 private:
  Status set(const SettingSpec& spec, std::string_view written, SettingSource source,
             const std::string& place) {
    Result<ParsedSetting> parsed = parse_setting(spec, written);
    if (!parsed.ok()) {
      return {parsed.status().code(), std::string(spec.name) + " is '" +
                                          masked(std::string(written)) + "' (" + place + "): it " +
                                          parsed.status().message()};
    }
    settings_.values_[index_of(spec.name)] = {std::move(parsed->text), parsed->number, source};
    return {};
  }

  Status apply_defaults() {
    for (const SettingSpec& spec : setting_table()) {
      if (spec.default_value.empty()) continue;
      Status status = set(spec, spec.default_value, SettingSource::kDefault, "default");
      if (!status.ok()) return status;
    }
    return {};
  }

  Status apply_file() {
    if (!input_.file_text.has_value()) return {};
    const std::string place = settings_file_place(input_.file_name);
    const auto entries = read_settings_file(input_.file_name, *input_.file_text);
    if (!entries.ok()) return entries.status();
    for (const FileSetting& entry : *entries) {
      const SettingSpec* spec = find_spec(entry.name);
      if (spec == nullptr && entry.kind == FileSetting::Kind::kOther && entry.text == "a table") {
        return invalid(place + " has the unknown setting '" + entry.name +
                       "', a section: settings stand in one flat table, without lines such as [" +
                       entry.name + "]");
      }
      if (spec == nullptr) return unknown_name(place, entry.name);
      if (spec->name == "MC_KV_CONFIG") {
        return invalid(place +
                       " sets MC_KV_CONFIG, which names that file: set it in the environment");
      }
      Status status = check_kind(*spec, entry, place);
      if (status.ok()) status = set(*spec, entry.text, SettingSource::kFile, place);
      if (!status.ok()) return status;
    }
    return {};
  }

  /// A file has types of its own, and a value of the wrong one is a mistake: epoch = "5".
  static Status check_kind(const SettingSpec& spec, const FileSetting& entry,
                           const std::string& place) {
    using Kind = FileSetting::Kind;
    const Kind kind = entry.kind;
    bool fits = false;
    std::string expected;
    switch (spec.type) {
      case SettingType::kText:
      case SettingType::kChoice:
        fits = kind == Kind::kText;
        expected = "a string";
        break;
      case SettingType::kBoolean:
        fits = kind == Kind::kBoolean || kind == Kind::kInteger;
        expected = "true or false";
        break;
      case SettingType::kBytes:
        fits = kind == Kind::kInteger || kind == Kind::kText;
        expected = "a whole number or a string such as \"64MB\"";
        break;
      case SettingType::kInteger:
      case SettingType::kMilliseconds:
        fits = kind == Kind::kInteger;
        expected = "a whole number";
        break;
    }
    if (fits) return {};
    const std::string shown = kind == Kind::kText    ? "the string \"" + entry.text + "\""
                              : kind == Kind::kOther ? entry.text
                                                     : "'" + entry.text + "'";
    return invalid(entry.name + " is " + shown + " (" + place + "): it must be " + expected);
  }

  Status apply_environment() {
    for (const auto& [name, value] : input_.environment) {
      const SettingSpec* spec = find_spec(name);
      if (spec == nullptr) {
        warn_of_near_miss(name);
        continue;
      }
      if (value.empty()) continue;
      Status status = set(*spec, value, SettingSource::kEnvironment, "environment");
      if (!status.ok()) return status;
    }
    return {};
  }

  void warn_of_near_miss(const std::string& name) {
    const std::string_view meant = meant_by_variable(name);
    if (meant.empty()) return;
    settings_.warnings_.push_back("environment variable " + name + " is not known" +
                                  did_you_mean(meant));
  }

  /// The store's client takes all of its settings from its file and none of them from the
  /// environment. What its file leaves out has our default.
  Status apply_store_file() {
    if (!input_.store_file_text.has_value()) return {};
    const std::string place = store_file_place(input_.store_file_name);
    const auto entries = read_store_file(input_.store_file_name, *input_.store_file_text);
    if (!entries.ok()) return entries.status();
    for (const SettingSpec& spec : setting_table()) {
      if (spec.store_file_field.empty()) continue;
      Status status = apply_store_field(spec, *entries, place);
      if (!status.ok()) return status;
    }
    for (const FileSetting& entry : *entries) {
      const std::string_view meant = meant_by_store_field(entry.name);
      if (meant.empty()) continue;
      settings_.warnings_.push_back(place + " has the unknown field '" + entry.name + "'" +
                                    did_you_mean(meant));
      store_file_mistakes_ +=
          "; it has the unknown field '" + entry.name + "'" + did_you_mean(meant);
    }
    return {};
  }

  Status apply_store_field(const SettingSpec& spec, const std::vector<FileSetting>& entries,
                           const std::string& place) {
    Settings::Value& value = settings_.values_[index_of(spec.name)];
    const bool ignored = value.source == SettingSource::kEnvironment;
    value = {};
    if (!spec.default_value.empty()) {
      Status status = set(spec, spec.default_value, SettingSource::kDefault, "default");
      if (!status.ok()) return status;
    }
    for (const FileSetting& entry : entries) {
      if (entry.name != spec.store_file_field || entry.text.empty()) continue;
      if (entry.kind == FileSetting::Kind::kOther && entry.text == "null") continue;
      if (entry.kind == FileSetting::Kind::kOther) return check_kind(spec, entry, place);
      Status status = set(spec, entry.text, SettingSource::kStoreFile, place);
      if (!status.ok()) return status;
    }
    if (ignored) {
      settings_.warnings_.push_back("environment variable " + std::string(spec.name) +
                                    " is not used, because " + place + " is");
    }
    return {};
  }

  Status apply_overrides() {
    for (const auto& [name, value] : input_.overrides) {
      const SettingSpec* spec = find_spec(name);
      if (spec == nullptr) return unknown_name("the call", name);
      Status status = set(*spec, value, SettingSource::kOverride, "given in the call");
      if (!status.ok()) return status;
    }
    return {};
  }

  Status choose_backend() {
    const bool has_store =
        settings_.has_value("MOONCAKE_MASTER") || settings_.has_value("MOONCAKE_CONFIG_PATH");
    if (!settings_.has_value("MC_BACKEND")) {
      settings_.values_[index_of("MC_BACKEND")].text = has_store ? "mooncake" : "file";
    }
    const bool file_to_come =
        settings_.has_value("MOONCAKE_CONFIG_PATH") && !input_.store_file_text.has_value();
    const bool lacks_store = settings_.text("MC_BACKEND") == "mooncake" &&
                             !settings_.has_value("MOONCAKE_MASTER") && !file_to_come;
    if (lacks_store && input_.store_file_text.has_value()) {
      return invalid(store_file_place(input_.store_file_name) +
                     " names no master, so MC_BACKEND cannot be 'mooncake': set its field "
                     "master_server_address to host:port" +
                     store_file_mistakes_);
    }
    if (lacks_store) {
      return invalid(
          "MC_BACKEND is 'mooncake' and no master is named: set MOONCAKE_MASTER to host:port, or "
          "MOONCAKE_CONFIG_PATH to a file with master_server_address");
    }
    return {};
  }

  /// The store's client compares protocol names letter by letter, in lower case.
  Status normalise_protocol() {
    std::string& protocol = settings_.values_[index_of("MOONCAKE_PROTOCOL")].text;
    std::erase(protocol, ' ');
    for (char& letter : protocol) {
      if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
    }
    return {};
  }

  /// What is asked for and cannot be had is said; the default is not asked for.
  Status tell_of_leases() {
    const Settings::Value& promise = settings_.values_[index_of("MC_PROMISE")];
    if (settings_.flag("MC_LAYER_GRANULARITY") && promise.text == "staged" &&
        promise.source != SettingSource::kDefault) {
      settings_.warnings_.push_back("MC_PROMISE=staged (" + std::string(to_string(promise.source)) +
                                    ") has no effect: promises are leased, because of "
                                    "MC_LAYER_GRANULARITY=1");
    }
    return {};
  }

  Status fit_save_queue() {
    const std::uint64_t staging = settings_.number("MC_STAGING_BYTES");
    Settings::Value& queue = settings_.values_[index_of("MC_SAVE_QUEUE_BYTES")];
    if (queue.number <= staging / 2) return {};
    if (queue.source == SettingSource::kDefault) {
      queue.number = staging / 2;
      queue.text = std::to_string(queue.number);
    } else if (queue.number > staging) {
      return invalid("MC_SAVE_QUEUE_BYTES is " + std::to_string(queue.number) +
                     ", more than MC_STAGING_BYTES, " + std::to_string(staging) +
                     ", in which the queue lies: raise that or lower this");
    }
    return {};
  }

  /// One without the other would be completed by a guess, in one process differently from another.
  Status check_ranks_are_whole() {
    if (settings_.has_value("MC_RANK") == settings_.has_value("MC_WORLD_SIZE")) return {};
    const bool has_rank = settings_.has_value("MC_RANK");
    const std::string set_one = has_rank ? "MC_RANK" : "MC_WORLD_SIZE";
    const Settings::Value& value = settings_.values_[index_of(set_one)];
    return invalid(set_one + " is '" + value.text + "' (" + std::string(to_string(value.source)) +
                   ") and " + (has_rank ? "MC_WORLD_SIZE" : "MC_RANK") +
                   " is not set: one without the other does not say which rank of how many this "
                   "is; set both, or neither");
  }

  Status check_ranks() {
    if (!settings_.has_value("MC_RANK") || !settings_.has_value("MC_WORLD_SIZE")) return {};
    const std::uint64_t rank = settings_.number("MC_RANK");
    const std::uint64_t world = settings_.number("MC_WORLD_SIZE");
    if (rank < world) return {};
    return invalid("MC_RANK is " + std::to_string(rank) + " and MC_WORLD_SIZE is " +
                   std::to_string(world) + ": ranks count from 0 to " + std::to_string(world - 1));
  }

  /// Here, since it is used long after the start, when a mistake can only be logged.
  Status check_stage_address() {
    const std::string& text = settings_.text("MC_STAGE_ADDRESS");
    if (text.empty()) return {};
    const Result<HostPort> address = parse_numeric_address(text);
    if (address.ok()) return {};
    const SettingSource source = settings_.source("MC_STAGE_ADDRESS");
    return invalid("MC_STAGE_ADDRESS is '" + text + "' (" + std::string(to_string(source)) +
                   "): it " + address.status().message());
  }

  const SettingsInput& input_;
  Settings settings_;
  /// "; it has the unknown field 'x'; did you mean y?" for each, to end a message with.
  std::string store_file_mistakes_;
};

Result<Settings> Settings::parse(const SettingsInput& input) {
  return SettingsBuilder(input).build();
}

const Settings::Value& Settings::value(std::string_view name, bool (*fits)(SettingType)) const {
  const std::size_t index = index_of(name);
  KVC_CHECK(fits(setting_table()[index].type), "a setting is read as another type");
  return values_[index];
}

const std::string& Settings::text(std::string_view name) const { return value(name, is_text).text; }

bool Settings::flag(std::string_view name) const { return value(name, is_flag).number != 0; }

std::uint64_t Settings::number(std::string_view name) const {
  return value(name, is_number).number;
}

Duration Settings::duration(std::string_view name) const {
  return std::chrono::milliseconds(
      static_cast<std::chrono::milliseconds::rep>(value(name, is_duration).number));
}

bool Settings::has_value(std::string_view name) const { return !value(name, is_any).text.empty(); }

SettingSource Settings::source(std::string_view name) const { return value(name, is_any).source; }

std::vector<SettingLine> Settings::describe() const {
  std::vector<SettingLine> lines;
  for (std::size_t i = 0; i < values_.size(); ++i) {
    if (values_[i].text.empty()) continue;
    lines.push_back(
        {std::string(setting_table()[i].name), masked(values_[i].text), values_[i].source});
  }
  return lines;
}

}  // namespace kvc
