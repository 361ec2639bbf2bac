// A store in a folder that all processes of a host share: what `MC_BACKEND=file` uses. No process
// runs it; what lies in the folder, and how, is in docs/format/file-store.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <system_error>

#include "kvc/clock.h"
#include "kvc/log.h"
#include "kvc/result.h"
#include "kvc/stats.h"
#include "kvc/store.h"

namespace kvc {

/// Where a put is, for tests that let it fail or die there.
enum class FileStep {
  kReserved,  ///< Its space is taken, nothing is written.
  kCreated,   ///< It has an empty file that nobody else sees.
  kHalfWritten,
  kWritten,
  kPublished,  ///< The object is there.
  kRemoved,    ///< Of a removal or an eviction: the object is gone, its space still taken.
};

struct FileStoreOptions {
  /// Absolute. Made if it is not there; all processes that name it share it. On a file system of
  /// this host, since that of another host does not see the locks.
  std::string path;
  /// Space that all objects together take, each rounded up to 4096 bytes; past it the least
  /// recently used ones go. Also the largest object. Less where the file system has not got so
  /// much: a part of it is always left free.
  std::uint64_t max_bytes = std::uint64_t{8} << 30;
  /// A use is noted on an object at most so often: it costs a system call.
  Duration use_noted_every = std::chrono::seconds(5);
  /// The folder itself, and the space around it, are looked at so often.
  Duration look_around_every = std::chrono::milliseconds(100);

  // For tests.

  /// Wall time in ns; empty: the system's. Uses are told apart by it.
  std::function<std::int64_t()> wall_ns;
  /// False: as on a file system that has no files without a name.
  bool unnamed_files = true;
  /// Called at each step; an error is taken for the system's. Empty: go on.
  std::function<std::errc(FileStep step)> at_step;
};

/// All 0 where the store is none in a folder, or is closed.
struct FileStoreStats {
  std::uint64_t bytes_used = 0;
  std::uint64_t bytes_limit = 0;
  std::uint64_t evicted = 0;
  std::uint64_t puts_backed_off = 0;
  std::uint64_t reads_failed = 0;
  std::uint64_t reopened = 0;
};

inline constexpr StatField<FileStoreStats> kFileStoreStats[] = {
    {"store_file_bytes_used", "", &FileStoreStats::bytes_used, StatKind::kGauge,
     "By all processes; never less than what the objects take."},
    {"store_file_bytes_limit", "", &FileStoreStats::bytes_limit, StatKind::kGauge,
     "What all objects together may take."},
    {"store_file_evicted", "", &FileStoreStats::evicted, StatKind::kCounter,
     "Objects, by this store since it was opened."},
    {"store_file_puts_backed_off", "", &FileStoreStats::puts_backed_off, StatKind::kCounter,
     "Puts without room, or without a way to write."},
    {"store_file_reads_failed", "", &FileStoreStats::reads_failed, StatKind::kCounter,
     "Objects that were there and could not be read."},
    {"store_file_reopened", "", &FileStoreStats::reopened, StatKind::kCounter,
     "Times that the folder had been removed or replaced."},
};
static_assert(covers_all(kFileStoreStats));

/// Safe to use from any thread. Looks at deadlines between items. put, get and exists count as use
/// for the eviction order. A put waits for other processes at most two seconds, a read
/// for nothing but the disk.
class FileStore : public Store {
 public:
  virtual FileStoreStats stats() const = 0;
  virtual const std::string& path() const = 0;
  /// Brings the record of used space in line with what is there, folder by folder. False: others
  /// were at work somewhere.
  virtual bool take_stock() = 0;
};

/// kInvalid, naming path, reason and remedy, if the folder cannot be made or used, or is one that
/// other users could alter.
Result<std::shared_ptr<FileStore>> open_file_store(FileStoreOptions options,
                                                   std::shared_ptr<Logger> logger,
                                                   std::shared_ptr<const Clock> clock);

}  // namespace kvc
