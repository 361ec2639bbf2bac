// The folder of a store while it is open: its 256 folders, its usage record, and how a file gets
// its name there.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kvc/result.h"
#include "os/folder.h"
#include "store/file/object_name.h"
#include "store/file/usage_record.h"

namespace kvc {

/// What a file of so many bytes takes: whole blocks, and never nothing.
std::uint64_t space_of(std::uint64_t file_bytes);

/// Safe to use from any thread.
class StoreRoot {
 public:
  struct Options {
    std::string path;
    /// False: as on a file system that has no files without a name.
    bool unnamed_files = true;
    /// To whom the folder must belong.
    std::uint32_t user = effective_user();
    /// Called when an object is gone and its space still taken. May be empty.
    std::function<void()> removed;
  };

  /// An object that a scan found.
  struct Found {
    std::size_t folder = 0;
    std::string file;
    std::uint64_t bytes = 0;
    std::int64_t used_ns = 0;
  };

  /// A file that is being written. Without a name, or with one in the folder for such files, where
  /// it is locked while its writer lives.
  struct Draft {
    OpenFile file;
    std::string temporary;  // empty: without a name
  };

  /// Makes the folder if it is not there. kInvalid, naming path, reason and remedy, if it is not
  /// one that this user may trust; kUnavailable if the file system cannot do what is needed.
  static Result<std::shared_ptr<StoreRoot>> open(const Options& options);

  const std::string& path() const { return options_.path; }
  UsageRecord& record() { return *record_; }
  FreeSpace free_space() const;

  /// Whether this is still what lies at the path.
  enum class Place { kSame, kGone, kOther };
  Place place() const;

  /// no_such_file_or_directory: nothing was ever stored there.
  std::errc folder(std::size_t number, Folder* out) const;
  /// Makes it if need be. no_such_file_or_directory: the store's folder itself was removed.
  std::errc folder_for_writing(std::size_t number, Folder* out) const;

  std::errc draft(Draft* out);
  /// file_exists: the name is taken, whatever by. no_such_file_or_directory: the draft is gone.
  std::errc publish(const Draft& draft, const Folder& folder, const std::string& name) const;
  /// Removes what has a name. Idempotent.
  void discard(Draft& draft) const;

  /// Takes an object of so many bytes away, and then its space.
  std::errc remove(std::size_t number, const Folder& folder, const std::string& name,
                   std::uint64_t file_bytes);

  /// Everything in a folder that can be an object, and brings the record in line with it if
  /// nothing happens there meanwhile; `settled` says so.
  std::errc scan(std::size_t number, const std::function<void(Found)>& visit, bool* settled);
  /// Removes what dead writers left.
  void remove_stale_drafts();

 private:
  explicit StoreRoot(Options options) : options_(std::move(options)) {}
  Status prepare();
  Status open_folder();
  Status check_content() const;
  Status open_record();
  Status settle_record();
  Status cannot(const std::string& what, std::errc reason, const std::string& remedy) const;
  std::errc create_record() const;
  bool can_publish_unnamed() const;
  std::errc list_folder(std::size_t number, const std::function<void(Found)>& visit,
                        std::uint64_t* bytes) const;

  const Options options_;
  Folder root_;
  FileInfo root_info_;
  Folder drafts_;
  bool unnamed_files_ = false;
  std::unique_ptr<UsageRecord> record_;
  std::atomic<std::uint64_t> drafts_made_{0};
};

}  // namespace kvc
