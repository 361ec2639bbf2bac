// How much of the store's space is taken: one small file that all processes share.
//
// Per fan-out folder it holds the bytes that are taken and a number that grows with every change.
// What must hold at any moment, a crash in the next one included:
//
//   bytes of a folder >= sum of the sizes of the objects that lie in it
//
// Hence: a writer adds before its object gets its name, a remover subtracts after the name is gone.
// Who dies in between leaves bytes too many; a scan of that folder finds them (see Scan).
//
// The file is changed under one byte lock that is held for microseconds, and read without. The
// system takes locks from a process that dies.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "os/folder.h"
#include "store/file/object_name.h"

namespace kvc {

/// Safe to use from any thread.
class UsageRecord {
 public:
  static constexpr std::size_t kFileBytes = 64 + kFileFolders * 16;

  /// The content of a record of an empty store that no boot of the machine vouches for.
  static std::vector<std::byte> empty_image();

  enum class Check { kGood, kDamaged, kOtherVersion };

  /// The lock is held for microseconds, and longer only by a process that was stopped, or that a
  /// busy machine left without a processor. After `patience`, changes are timed_out.
  explicit UsageRecord(OpenFile file, Duration patience = std::chrono::seconds(2))
      : file_(std::move(file)), patience_(patience) {}

  const OpenFile& file() const { return file_; }
  std::errc check(Check* out) const;
  /// Makes a damaged record an empty one.
  std::errc repair();
  /// Whether it was complete in this boot of the machine. After a power loss it may be older than
  /// the objects.
  std::errc vouched_for(std::string_view boot, bool* out) const;
  std::errc vouch(std::string_view boot);

  std::errc total(std::uint64_t* bytes) const;
  /// `total` is what the store holds afterwards.
  std::errc add(std::size_t folder, std::uint64_t bytes, std::uint64_t* total);
  std::errc subtract(std::size_t folder, std::uint64_t bytes);

  /// Held by whoever is between add() and the name, or between the end of a name and subtract().
  class InFlight {
   public:
    InFlight(UsageRecord* record, std::size_t folder);
    InFlight(const InFlight&) = delete;
    InFlight& operator=(const InFlight&) = delete;
    ~InFlight();

   private:
    UsageRecord* const record_;
    const std::size_t folder_;
  };

  /// Replaces what the record says of a folder by what was found in it, if nothing changed there
  /// meanwhile: nobody was in flight at the beginning and at the end, and the folder's number is
  /// the same. Else nothing happens and a later scan has another chance.
  class Scan {
   public:
    Scan(UsageRecord* record, std::size_t folder);
    /// False: something went on in the folder.
    bool finish(std::uint64_t bytes_found);

   private:
    UsageRecord* const record_;
    const std::size_t folder_;
    bool quiet_ = false;
    std::uint64_t change_ = 0;
  };

 private:
  struct Entry {
    std::uint64_t bytes = 0;
    std::uint64_t change = 0;
  };
  using Image = std::array<std::byte, kFileBytes>;

  std::errc read(Image* image) const;
  std::errc write(std::size_t folder, Entry entry) const;
  static Entry entry_of(const Image& image, std::size_t folder);
  static std::uint64_t total_of(const Image& image);
  bool in_flight(std::size_t folder);
  /// Runs `change` on the image under the lock of all processes.
  template <typename Change>
  std::errc under_lock(Change change);

  const OpenFile file_;
  const Duration patience_;
  Mutex change_mutex_;  // threads of this process; the byte lock excludes other processes only
  Mutex flight_mutex_;
  std::array<std::uint32_t, kFileFolders> flights_ KVC_GUARDED_BY(flight_mutex_){};
};

}  // namespace kvc
