#include <array>

#include "base/planted.h"
#include "tests/sim/planted_switch.h"

namespace kvc {
namespace {

std::string_view the_bug;

// In the order of the data path.
constexpr std::array<std::string_view, 19> kBugs{
    "hash_without_salt",       "hash_without_parent", "ignore_checksum",
    "ignore_layout",           "ignore_identity",     "ready_before_put",
    "trust_existing_shard",    "overlook_bad_part",   "ready_without_layers",
    "manifest_before_quorum",  "ignore_quorum",       "quorum_minus_one",
    "stale_manifest",          "promise_unverified",  "report_twice",
    "expiry_after_allocation", "release_before_copy", "plan_without_live_holds",
    "reuse_page_in_transfer"};

}  // namespace

bool planted_bug(std::string_view name) { return name == the_bug; }

namespace sim {

bool plant(std::string_view name) {
  the_bug = name;
  return true;
}

std::span<const std::string_view> planted_bugs() { return kBugs; }

}  // namespace sim
}  // namespace kvc
