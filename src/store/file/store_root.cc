#include "store/file/store_root.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "os/process.h"

namespace kvc {
namespace {

constexpr const char* kRecordName = "usage";
constexpr const char* kDraftsName = "drafts";
constexpr std::uint64_t kBlockBytes = 4096;
constexpr std::uint32_t kWritableByOthers = 022;
constexpr const char* kChooseAnother = "choose another folder with MC_FILE_PATH";
/// A folder is scanned again at most so often when others are at work in it.
constexpr int kScanTries = 4;

bool is_folder_name(const std::string& name) {
  return name.size() == 2 && name.find_first_not_of("0123456789abcdef") == std::string::npos;
}

std::string octal(std::uint32_t permissions) {
  std::string text = "0000";
  for (std::size_t i = 0; i < text.size(); ++i) {
    text[text.size() - 1 - i] = static_cast<char>('0' + (permissions >> (3 * i) & 7u));
  }
  return text;
}

}  // namespace

std::uint64_t space_of(std::uint64_t file_bytes) {
  return std::max<std::uint64_t>((file_bytes + kBlockBytes - 1) / kBlockBytes, 1) * kBlockBytes;
}

Result<std::shared_ptr<StoreRoot>> StoreRoot::open(const Options& options) {
  std::shared_ptr<StoreRoot> root(new StoreRoot(options));
  if (Status status = root->prepare(); !status.ok()) return status;
  return root;
}

Status StoreRoot::prepare() {
  if (options_.path.empty() || options_.path.front() != '/' || options_.path == "/") {
    return invalid("file store '" + options_.path + "': the path must be absolute, and not /; " +
                   kChooseAnother);
  }
  for (Status (StoreRoot::*step)() : {&StoreRoot::open_folder, &StoreRoot::open_record}) {
    if (Status status = (this->*step)(); !status.ok()) return status;
  }
  unnamed_files_ = options_.unnamed_files && can_publish_unnamed();
  if (!unnamed_files_) {
    std::errc made = root_.make_folder(kDraftsName);
    if (made == std::errc::file_exists) made = {};
    if (ok(made)) made = root_.open_folder(kDraftsName, &drafts_);
    if (!ok(made)) return cannot("make its folder for drafts", made, kChooseAnother);
  }
  remove_stale_drafts();
  return settle_record();
}

Status StoreRoot::cannot(const std::string& what, std::errc reason,
                         const std::string& remedy) const {
  return {Code::kInvalid, "file store '" + options_.path + "': cannot " + what + ": " +
                              message_of(reason) + "; remedy: " + remedy};
}

Status StoreRoot::open_folder() {
  const std::errc made = Folder::make_path(options_.path);
  if (!ok(made) && made != std::errc::file_exists) {
    return cannot("make this folder", made,
                  "make the folder above it, writable by this user, or set MC_FILE_PATH");
  }
  const std::string prefix = "file store '" + options_.path + "': ";
  const std::string remedy = std::string("; remedy: ") + kChooseAnother;
  FileInfo there;
  if (const std::errc failed = Folder::info_of_path(options_.path, &there); !ok(failed)) {
    return cannot("look at this folder", failed, kChooseAnother);
  }
  if (there.kind != FileInfo::Kind::kFolder) {
    return invalid(prefix + "it is a link or a file, and must be a folder itself" + remedy);
  }
  if (const std::errc failed = Folder::open_path(options_.path, &root_); !ok(failed)) {
    return cannot("open this folder", failed, "make it accessible to this user (chmod 700)");
  }
  if (const std::errc failed = root_.info(&root_info_); !ok(failed)) {
    return cannot("look at this folder", failed, kChooseAnother);
  }
  if (root_info_.owner != options_.user) {
    return invalid(prefix + "it belongs to user " + std::to_string(root_info_.owner) +
                   ", and this is user " + std::to_string(options_.user) +
                   ": blocks in it could be read and altered by somebody else" + remedy);
  }
  if ((root_info_.permissions & kWritableByOthers) != 0) {
    return invalid(prefix + "others may write in it (mode " + octal(root_info_.permissions) +
                   "): they could alter blocks; remedy: chmod 700, or another MC_FILE_PATH");
  }
  return check_content();
}

/// A folder that is used for something else is not taken.
Status StoreRoot::check_content() const {
  FileInfo record;
  if (ok(root_.info(kRecordName, &record))) return {};
  std::string foreign;
  const std::errc failed = root_.list([&](const char* name) {
    const std::string entry(name);
    const bool lawful = is_folder_name(entry) || entry == kRecordName || entry == kDraftsName ||
                        entry == "lost+found";
    if (!lawful) foreign = entry;
    return lawful;
  });
  if (!ok(failed)) return cannot("list this folder", failed, kChooseAnother);
  if (foreign.empty()) return {};
  return invalid("file store '" + options_.path + "': the folder holds '" + foreign +
                 "' and no store; remedy: name an empty or a new folder with MC_FILE_PATH");
}

Status StoreRoot::open_record() {
  OpenFile file;
  FileInfo info;
  std::errc opened = root_.open_file(kRecordName, Folder::Access::kReadWrite, &file, &info);
  if (opened == std::errc::no_such_file_or_directory) {
    opened = create_record();
    if (ok(opened) || opened == std::errc::file_exists) {
      opened = root_.open_file(kRecordName, Folder::Access::kReadWrite, &file, &info);
    }
  }
  if (!ok(opened)) {
    return cannot("open its file '" + std::string(kRecordName) + "' for writing", opened,
                  "make the folder writable by this user and free space, or set MC_FILE_PATH");
  }
  record_ = std::make_unique<UsageRecord>(std::move(file));
  UsageRecord::Check check{};
  if (const std::errc failed = record_->check(&check); !ok(failed)) {
    return cannot("read its file 'usage'", failed, kChooseAnother);
  }
  if (check == UsageRecord::Check::kOtherVersion) {
    return invalid("file store '" + options_.path +
                   "': another version of the connector made it; remedy: remove the folder, or "
                   "name a new one with MC_FILE_PATH");
  }
  if (check == UsageRecord::Check::kDamaged) {
    if (const std::errc failed = record_->repair(); !ok(failed)) {
      return cannot("repair its file 'usage'", failed, kChooseAnother);
    }
  }
  return {};
}

/// Complete when it gets its name, as an object is.
std::errc StoreRoot::create_record() const {
  const std::vector<std::byte> image = UsageRecord::empty_image();
  OpenFile file;
  if (options_.unnamed_files && ok(root_.create_unnamed(&file))) {
    if (const std::errc failed = file.write_at(0, image); !ok(failed)) return failed;
    const std::errc published = root_.publish(file, kRecordName);
    if (ok(published) || published == std::errc::file_exists) return published;
  }
  // Empty: whoever opens it repairs it.
  return root_.create_named(kRecordName, &file);
}

/// By a name that is taken, so that a crash leaves nothing.
bool StoreRoot::can_publish_unnamed() const {
  OpenFile file;
  return ok(root_.create_unnamed(&file)) &&
         root_.publish(file, kRecordName) == std::errc::file_exists;
}

/// After a boot the record is made from what is there.
Status StoreRoot::settle_record() {
  const std::string boot = boot_id();
  bool vouched = false;
  std::errc failed = record_->vouched_for(boot, &vouched);
  if (ok(failed) && vouched) return {};
  for (std::size_t number = 0; ok(failed) && number < kFileFolders; ++number) {
    bool settled = false;
    for (int tries = 0; ok(failed) && !settled && tries < kScanTries; ++tries) {
      failed = scan(
          number, [](const Found& /*found*/) {}, &settled);
    }
  }
  if (ok(failed)) failed = record_->vouch(boot);
  if (ok(failed)) return {};
  return cannot("take stock of its objects", failed,
                "look for stopped processes that use it, or set MC_FILE_PATH");
}

FreeSpace StoreRoot::free_space() const {
  FreeSpace space;
  (void)root_.free_space(&space);
  return space;
}

StoreRoot::Place StoreRoot::place() const {
  FileInfo there;
  const std::errc failed = Folder::info_of_path(options_.path, &there);
  if (failed == std::errc::no_such_file_or_directory) return Place::kGone;
  if (!ok(failed)) return Place::kSame;  // nothing better can be had from there now
  if (!there.same_file(root_info_)) return Place::kOther;
  FileInfo record;
  if (!ok(record_->file().info(&record))) return Place::kSame;
  bool intact = record.links > 0 && record.bytes == UsageRecord::kFileBytes;
  if (!unnamed_files_) {
    FileInfo drafts;
    intact = intact && ok(drafts_.info(&drafts)) && drafts.links > 0;
  }
  return intact ? Place::kSame : Place::kOther;
}

std::errc StoreRoot::folder(std::size_t number, Folder* out) const {
  return root_.open_folder(ObjectName::folder_name(number).c_str(), out);
}

std::errc StoreRoot::folder_for_writing(std::size_t number, Folder* out) const {
  const std::errc opened = folder(number, out);
  if (opened != std::errc::no_such_file_or_directory) return opened;
  const std::errc made = root_.make_folder(ObjectName::folder_name(number).c_str());
  if (!ok(made) && made != std::errc::file_exists) return made;
  return folder(number, out);
}

// ---- drafts --------------------------------------------------------------------------------

std::errc StoreRoot::draft(Draft* out) {
  if (unnamed_files_) return root_.create_unnamed(&out->file);
  // Unlike that of any other draft of any process of this boot.
  std::string name = std::to_string(process_id()) + "-" + std::to_string(wall_time_ns()) + "-" +
                     std::to_string(drafts_made_.fetch_add(1));
  if (const std::errc failed = drafts_.create_named(name.c_str(), &out->file); !ok(failed)) {
    return failed;
  }
  out->temporary = std::move(name);
  if (ok(out->file.try_lock_file())) return {};
  // Another process is just removing it, since it was not locked yet.
  discard(*out);
  return std::errc::no_such_file_or_directory;
}

std::errc StoreRoot::publish(const Draft& draft, const Folder& folder,
                             const std::string& name) const {
  if (draft.temporary.empty()) return folder.publish(draft.file, name.c_str());
  return folder.publish(drafts_, draft.temporary.c_str(), name.c_str());
}

void StoreRoot::discard(Draft& draft) const {
  if (!draft.temporary.empty()) (void)drafts_.remove(draft.temporary.c_str());
  draft.temporary.clear();
}

void StoreRoot::remove_stale_drafts() {
  Folder drafts;
  if (!ok(root_.open_folder(kDraftsName, &drafts))) return;
  (void)drafts.list([&](const char* name) {
    OpenFile file;
    FileInfo info;
    if (!ok(drafts.open_file(name, Folder::Access::kRead, &file, &info))) return true;
    // A living writer that has not locked it yet has to begin anew.
    if (ok(file.try_lock_file())) (void)drafts.remove(name);
    return true;
  });
}

std::errc StoreRoot::remove(std::size_t number, const Folder& folder, const std::string& name,
                            std::uint64_t file_bytes) {
  const UsageRecord::InFlight flight(record_.get(), number);
  if (const std::errc failed = folder.remove(name.c_str()); !ok(failed)) return failed;
  if (options_.removed) options_.removed();
  // Where it fails, a scan of the folder finds the bytes that are too many.
  (void)record_->subtract(number, space_of(file_bytes));
  return {};
}

// ---- scans ---------------------------------------------------------------------------------

std::errc StoreRoot::scan(std::size_t number, const std::function<void(Found)>& visit,
                          bool* settled) {
  UsageRecord::Scan scan(record_.get(), number);
  std::uint64_t bytes = 0;
  *settled = false;
  const std::errc failed = list_folder(number, visit, &bytes);
  if (ok(failed)) *settled = scan.finish(bytes);
  return failed;
}

std::errc StoreRoot::list_folder(std::size_t number, const std::function<void(Found)>& visit,
                                 std::uint64_t* bytes) const {
  Folder folder;
  const std::errc opened = this->folder(number, &folder);
  // Nothing there, or something else than a folder: it holds no object.
  const bool empty = opened == std::errc::no_such_file_or_directory ||
                     opened == std::errc::not_a_directory ||
                     opened == std::errc::too_many_symbolic_link_levels;
  if (empty) return {};
  if (!ok(opened)) return opened;
  return folder.list([&](const char* name) {
    FileInfo info;
    if (!ObjectName::is_object(name) || !ok(folder.info(name, &info))) return true;
    if (info.kind != FileInfo::Kind::kFile) return true;
    *bytes += space_of(info.bytes);
    visit({number, name, info.bytes, info.modified_ns});
    return true;
  });
}

}  // namespace kvc
