// Settings: one table of names, types, defaults and bounds, and the values in force with the source
// of each.
//
// A value is taken from the first of: overrides (given in code), environment, file, default. Files
// and overrides must hold known names only. In the environment an unknown name is nobody's mistake,
// because other programs have variables there too; only near misses of the names in the table are
// warned about.
//
// Nothing here reads the environment or a file: the caller passes both in. Since a setting may name
// the store client's own file, parse twice where it does: first without that file's text to learn
// the name, then with it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvc/clock.h"
#include "kvc/result.h"

namespace kvc {

enum class SettingType {
  kText,     ///< Any text, also a path.
  kChoice,   ///< One of `choices`.
  kBoolean,  ///< 1, true, yes, on or 0, false, no, off.
  kInteger,  ///< A decimal number within the bounds.
  kBytes,    ///< A number of bytes, or one with a unit: 64MB, 1GiB, 1.5g. Units are powers of 1024.
  kMilliseconds,  ///< A decimal number of milliseconds within the bounds.
};

std::string_view to_string(SettingType type);

struct SettingSpec {
  std::string_view name;
  SettingType type = SettingType::kText;
  /// As it would be written. Empty: unset.
  std::string_view default_value;
  /// Of numbers, bytes and milliseconds, inclusive.
  std::uint64_t minimum = 0;
  std::uint64_t maximum = 0;
  /// Of kChoice, separated by '|'.
  std::string_view choices;
  /// Belongs to the store's client, which defines its meaning and has more variables that begin so:
  /// only slips of the pen are warned about.
  bool foreign = false;
  /// The field that sets it in the store client's own configuration file; empty: none.
  std::string_view store_file_field;
  std::string_view doc;
};

/// Every setting, in the order of the documentation.
std::span<const SettingSpec> setting_table();

/// Where a value came from, weakest first.
enum class SettingSource { kDefault, kFile, kEnvironment, kStoreFile, kOverride };

std::string_view to_string(SettingSource source);

struct SettingsInput {
  std::map<std::string, std::string> overrides;
  /// The whole environment. An empty value counts as unset.
  std::map<std::string, std::string> environment;
  /// Text of the settings file (TOML or JSON, one flat table of names) and its name, for messages
  /// and, by its ending, for the choice of the syntax.
  std::optional<std::string> file_text;
  std::string file_name;
  /// Text of the store client's own configuration file (JSON). Where it is given, its fields
  /// replace the environment's values of the same settings, as the store's client itself does it.
  std::optional<std::string> store_file_text;
  std::string store_file_name;
};

/// One line of the effective configuration.
struct SettingLine {
  std::string name;
  std::string value;  ///< Fit to be logged: credentials inside addresses are masked.
  SettingSource source = SettingSource::kDefault;
};

/// Immutable; safe to share between threads. REQUIRES of all that take a name: it is in the table,
/// and the type fits (the process ends otherwise: the name is the program's, not the user's).
class Settings {
 public:
  /// kInvalid for an unknown name in file or overrides (the message names a known one that is
  /// near), an ill-typed or out-of-range value (name, value, source, remedy), or settings that
  /// contradict one another.
  static Result<Settings> parse(const SettingsInput& input);

  /// Of kText and kChoice. Empty: unset.
  const std::string& text(std::string_view name) const;
  bool flag(std::string_view name) const;
  /// Of kInteger and kBytes.
  std::uint64_t number(std::string_view name) const;
  /// Of kMilliseconds.
  Duration duration(std::string_view name) const;

  /// Whether it has a value, be it a default.
  bool has_value(std::string_view name) const;
  SettingSource source(std::string_view name) const;

  /// What an operator should know but nothing is refused for, each to be logged once.
  const std::vector<std::string>& warnings() const { return warnings_; }

  /// Every setting that has a value, in the order of the table: to be logged once.
  std::vector<SettingLine> describe() const;

 private:
  friend class SettingsBuilder;

  struct Value {
    std::string text;
    std::uint64_t number = 0;
    SettingSource source = SettingSource::kDefault;
  };

  Settings() = default;
  const Value& value(std::string_view name, bool (*fits)(SettingType)) const;

  std::vector<Value> values_;  // Parallel to setting_table().
  std::vector<std::string> warnings_;
};

}  // namespace kvc
