#include "settings/setting_value.h"

#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <system_error>

namespace kvc {
namespace {

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const std::size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& letter : result) {
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  }
  return result;
}

bool contains(std::string_view choices, std::string_view choice) {
  while (!choices.empty()) {
    const std::size_t bar = choices.find('|');
    if (choices.substr(0, bar) == choice) return true;
    choices = bar == std::string_view::npos ? std::string_view() : choices.substr(bar + 1);
  }
  return false;
}

std::optional<std::uint64_t> parse_integer(std::string_view text) {
  std::uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || at != end) return std::nullopt;
  return value;
}

std::optional<std::uint64_t> unit_of(const std::string& unit) {
  constexpr std::string_view kLetters = "kmgtp";
  if (unit.empty() || unit == "b") return 1;
  const std::size_t power = kLetters.find(unit[0]);
  if (power == std::string_view::npos) return std::nullopt;
  const std::string_view rest = std::string_view(unit).substr(1);
  if (!rest.empty() && rest != "b" && rest != "ib") return std::nullopt;
  return std::uint64_t{1} << (10 * (power + 1));
}

/// A number, possibly with a fraction, and a unit. Fractions of a byte are cut off.
std::optional<std::uint64_t> parse_bytes(std::string_view text) {
  const std::size_t digits = text.find_first_not_of("0123456789.");
  const std::string_view number = text.substr(0, digits);
  const std::string_view rest = digits == std::string_view::npos ? "" : text.substr(digits);
  const std::optional<std::uint64_t> unit = unit_of(lower(trimmed(rest)));
  if (!unit.has_value() || number.empty()) return std::nullopt;
  std::uint64_t bytes = 0;
  if (const std::optional<std::uint64_t> whole = parse_integer(number)) {
    if (__builtin_mul_overflow(*whole, *unit, &bytes)) return std::nullopt;
    return bytes;
  }
  double fraction = 0;
  const char* end = number.data() + number.size();
  const auto [at, error] = std::from_chars(number.data(), end, fraction, std::chars_format::fixed);
  if (error != std::errc() || at != end) return std::nullopt;
  const double product = fraction * static_cast<double>(*unit);
  if (!(product < std::ldexp(1.0, 63))) return std::nullopt;
  return static_cast<std::uint64_t>(product);
}

std::optional<std::uint64_t> parse_boolean(const std::string& text) {
  for (const char* yes : {"1", "true", "yes", "on"}) {
    if (text == yes) return 1;
  }
  for (const char* no : {"0", "false", "no", "off"}) {
    if (text == no) return 0;
  }
  return std::nullopt;
}

Result<ParsedSetting> parse_choice(const SettingSpec& spec, std::string_view text) {
  const std::string choice = lower(text);
  if (contains(spec.choices, choice)) return ParsedSetting{choice, 0};
  std::string known(spec.choices);
  for (char& letter : known) {
    if (letter == '|') letter = ',';
  }
  return invalid("is none of: " + known);
}

std::string expectation_of(const SettingSpec& spec) {
  const std::string range =
      " from " + std::to_string(spec.minimum) + " to " + std::to_string(spec.maximum);
  switch (spec.type) {
    case SettingType::kBytes:
      return "is not a size in bytes" + range + ", such as 1048576, 64MB or 1GiB";
    case SettingType::kMilliseconds:
      return "is not a number of milliseconds" + range;
    case SettingType::kBoolean:
      return "is neither 1 (true, yes, on) nor 0 (false, no, off)";
    default:
      return "is not a whole number" + range;
  }
}

}  // namespace

Result<ParsedSetting> parse_setting(const SettingSpec& spec, std::string_view written) {
  if (spec.type == SettingType::kText) {
    if (written.find('\0') != std::string_view::npos) return invalid("holds a zero byte");
    return ParsedSetting{std::string(written), 0};
  }
  const std::string_view text = trimmed(written);
  if (spec.type == SettingType::kChoice) return parse_choice(spec, text);
  std::optional<std::uint64_t> value;
  if (spec.type == SettingType::kBytes) {
    value = parse_bytes(text);
  } else if (spec.type == SettingType::kBoolean) {
    value = parse_boolean(lower(text));
  } else {
    value = parse_integer(text);
  }
  if (!value.has_value() || *value < spec.minimum || *value > spec.maximum) {
    return invalid(expectation_of(spec));
  }
  return ParsedSetting{std::string(text), *value};
}

}  // namespace kvc
