#include "store/file/file_errors.h"

#include <cerrno>

#include "os/folder.h"

namespace kvc {
namespace {

bool is_shortage(std::errc error) {
  return error == std::errc::too_many_files_open ||
         error == std::errc::too_many_files_open_in_system || error == std::errc::not_enough_memory;
}

}  // namespace

bool is_full(std::errc error) {
  // The last has no name in the standard: the user's quota.
  return error == std::errc::no_space_on_device || error == static_cast<std::errc>(EDQUOT);
}

Reaction reaction_to_lookup_error(std::errc error) {
  const bool absent = error == std::errc::no_such_file_or_directory ||
                      error == std::errc::not_a_directory ||
                      error == std::errc::too_many_symbolic_link_levels;
  return absent ? Reaction::kMiss : Reaction::kDown;
}

Reaction reaction_to_read_error(std::errc error) {
  if (error == std::errc::no_such_file_or_directory) return Reaction::kMiss;
  return is_shortage(error) ? Reaction::kDown : Reaction::kStale;
}

Reaction reaction_to_write_error(std::errc error) {
  if (is_full(error) || is_shortage(error)) return Reaction::kBackOff;
  switch (error) {
    case std::errc::file_too_large:
    case std::errc::read_only_file_system:
    case std::errc::permission_denied:
    case std::errc::operation_not_permitted:
    case std::errc::too_many_links:
    case std::errc::timed_out:    // the usage record is held by a process that was stopped
    case std::errc::bad_message:  // ... or is damaged, and about to be repaired
      return Reaction::kBackOff;
    case std::errc::not_a_directory:
    case std::errc::is_a_directory:
    case std::errc::directory_not_empty:
    case std::errc::too_many_symbolic_link_levels:
    case std::errc::file_exists:
      return Reaction::kStale;  // something foreign is in the way of this object alone
    default:
      return Reaction::kDown;
  }
}

}  // namespace kvc
