// From written text to a value of a setting's type, with bounds.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kvc/result.h"
#include "kvc/settings.h"

namespace kvc {

struct ParsedSetting {
  std::string text;          ///< Of kText and kChoice: the value. Of all others: as written.
  std::uint64_t number = 0;  ///< Of all others: the value.
};

/// kInvalid; the message says what is wrong with the value and what would be right. It names
/// neither setting nor source.
Result<ParsedSetting> parse_setting(const SettingSpec& spec, std::string_view written);

}  // namespace kvc
