#include "settings/near_names.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>

#include "kvc/settings.h"
#include "settings/edit_distance.h"

namespace kvc {
namespace {

constexpr std::string_view kOurs = "MC_";
constexpr std::string_view kOfTheStore = "MOONCAKE_";

std::string upper(std::string_view text) {
  std::string result(text);
  for (char& letter : result) {
    if (letter >= 'a' && letter <= 'z') letter = static_cast<char>(letter - 'a' + 'A');
  }
  return result;
}

/// Whether `name` is `words`, an underscore and more.
bool continues(std::string_view name, std::string_view words) {
  return name.size() > words.size() && name.starts_with(words) && name[words.size()] == '_';
}

/// "MC_STAGE" of MC_STAGE_ADDRESS. Empty where names of the store's client begin so as well.
std::string_view family(std::string_view name) {
  constexpr std::array<std::string_view, 2> kSharedWithTheStore{"MC_MIN", "MC_DISABLE"};
  const std::string_view first = name.substr(0, name.find('_', kOurs.size()));
  return std::ranges::find(kSharedWithTheStore, first) == kSharedWithTheStore.end()
             ? first
             : std::string_view();
}

bool is_slip(std::string_view name, std::string_view known) {
  constexpr std::size_t kShortName = 10;
  return edit_distance(name, known) <= (known.size() < kShortName ? 1u : 2u);
}

bool shares_words(std::string_view name, std::string_view known) {
  const std::string_view words = family(known);
  return continues(name, known) || continues(known, name) ||
         (!words.empty() && continues(name, words));
}

bool may_be_meant(std::string_view name, const SettingSpec& spec) {
  if (is_slip(name, spec.name)) return true;
  return !spec.foreign && shares_words(name, spec.name);
}

/// What one name continues is nearer than what differs from it, then what differs less.
std::size_t rank_of(std::string_view name, std::string_view known) {
  constexpr std::size_t kDifferent = 100;
  const bool part = continues(name, known) || continues(known, name);
  return edit_distance(name, known) + (part ? 0 : kDifferent);
}

std::string_view nearest(std::string_view name) {
  const auto table = setting_table();
  return std::ranges::min_element(
             table, {}, [name](const SettingSpec& spec) { return rank_of(name, spec.name); })
      ->name;
}

}  // namespace

std::string_view meant_by_variable(std::string_view written) {
  const std::string name = upper(written);
  if (!name.starts_with(kOurs) && !name.starts_with(kOfTheStore)) return {};
  const auto fits = [&](const SettingSpec& spec) { return may_be_meant(name, spec); };
  return std::ranges::any_of(setting_table(), fits) ? nearest(name) : std::string_view();
}

std::string_view meant_by_entry(std::string_view written) {
  std::string name = upper(written);
  if (!name.starts_with(kOurs) && !name.starts_with(kOfTheStore)) name.insert(0, kOurs);
  const auto fits = [&](const SettingSpec& spec) {
    constexpr std::size_t kPart = 3;
    return may_be_meant(name, spec) ||
           edit_distance(name, spec.name) <= (spec.name.size() - kOurs.size()) / kPart;
  };
  return std::ranges::any_of(setting_table(), fits) ? nearest(name) : std::string_view();
}

std::string_view meant_by_store_field(std::string_view field) {
  for (const SettingSpec& spec : setting_table()) {
    if (spec.store_file_field == field) return {};
  }
  for (const SettingSpec& spec : setting_table()) {
    if (!spec.store_file_field.empty() && is_slip(field, spec.store_file_field)) {
      return spec.store_file_field;
    }
  }
  return {};
}

}  // namespace kvc
