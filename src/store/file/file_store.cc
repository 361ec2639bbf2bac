#include "store/file/file_store.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include "base/bytes.h"
#include "base/mutex.h"
#include "os/folder.h"
#include "os/process.h"
#include "store/call_gate.h"
#include "store/file/evictor.h"
#include "store/file/file_errors.h"
#include "store/file/object_name.h"
#include "store/file/store_root.h"
#include "store/item_traits.h"
#include "store/registered_ranges.h"

namespace kvc {
namespace {

constexpr std::uint64_t kLeastFreeBytes = std::uint64_t{1} << 30;
constexpr std::uint64_t kFreeShare = 20;
/// Of what is there, this share goes at once where the file system is full before its time.
constexpr std::uint64_t kFullShare = 64;
constexpr Duration kComplainEvery = std::chrono::seconds(60);
constexpr int kPutTries = 3;

class FileStoreImpl final : public FileStore {
 public:
  FileStoreImpl(FileStoreOptions options, std::shared_ptr<Logger> logger,
                std::shared_ptr<const Clock> clock)
      : options_(std::move(options)),
        logger_(std::move(logger)),
        clock_(std::move(clock)),
        evictor_(clock_, options_.wall_ns,
                 static_cast<std::uint64_t>(process_id()) * 97 +
                     static_cast<std::uint64_t>(options_.wall_ns())),
        limit_(options_.max_bytes) {}

  Status open() {
    Result<std::shared_ptr<StoreRoot>> root = StoreRoot::open(root_options());
    if (!root.ok()) return root.status();
    refresh_limit(**root);
    const MutexLock lock(root_mutex_);
    root_ = std::move(*root);
    return {};
  }

  StoreCapabilities capabilities() const override {
    StoreCapabilities capabilities;
    capabilities.atomic_publish = true;
    capabilities.put_tells_existing = true;
    capabilities.max_object_bytes = options_.max_bytes;
    capabilities.shared_between_processes = true;
    return capabilities;
  }

  std::vector<Reaction> exists(std::vector<std::string> keys, CallContext context) override {
    return each<Reaction>(keys, context, false, [this](StoreRoot& root, const std::string& key) {
      return exists_one(root, key);
    });
  }

  std::vector<PutResult> put(std::vector<PutItem> items, CallContext context) override {
    return each<PutResult>(items, context, true, [&](StoreRoot& /*root*/, const PutItem& item) {
      return put_one(item, context.deadline);
    });
  }

  std::vector<GetResult> get(std::vector<GetItem> items, CallContext context) override {
    return each<GetResult>(items, context, false, [this](StoreRoot& root, const GetItem& item) {
      return get_one(root, item);
    });
  }

  std::vector<Reaction> remove(std::vector<std::string> keys, CallContext context) override {
    return each<Reaction>(keys, context, false, [this](StoreRoot& root, const std::string& key) {
      return remove_one(root, key);
    });
  }

  Status register_memory(std::span<std::byte> memory) override {
    const MutexLock lock(registered_mutex_);
    return gate_.is_shut() ? closed_status() : registered_.add(memory);
  }

  Status unregister_memory(std::span<std::byte> memory) override {
    const MutexLock lock(registered_mutex_);
    return gate_.is_shut() ? closed_status() : registered_.remove(memory);
  }

  void close(Deadline deadline) override {
    if (gate_.shut(deadline, *clock_)) drop_root();
  }

  FileStoreStats stats() const override {
    const std::shared_ptr<StoreRoot> root = current();
    return root == nullptr ? FileStoreStats{} : stats_of(*root);
  }

  const std::string& path() const override { return options_.path; }

  bool take_stock() override {
    const std::shared_ptr<StoreRoot> root = current();
    if (root == nullptr) return false;
    bool all = true;
    for (std::size_t folder = 0; folder < kFileFolders; ++folder) {
      bool settled = false;
      const auto pass = [](const StoreRoot::Found& /*found*/) {};
      all = ok(root->scan(folder, pass, &settled)) && settled && all;
    }
    return all;
  }

 private:
  // ---- around a call -----------------------------------------------------------------------

  template <typename Answer, typename Item, typename One>
  std::vector<Answer> each(const std::vector<Item>& items, const CallContext& context, bool writes,
                           One one) {
    if (!gate_.enter()) return all_not_done<Answer>(items.size(), Reaction::kDown);
    std::vector<Answer> answers;
    answers.reserve(items.size());
    look_around(writes);
    const bool ends = context.deadline.at != Instant::max();
    for (const Item& item : items) {
      const std::shared_ptr<StoreRoot> root = current();
      const bool late = ends && context.deadline.passed(*clock_);
      if (key_of(item).empty()) {
        answers.push_back(not_done<Answer>(Reaction::kCallerBug));
      } else if (late || root == nullptr) {
        answers.push_back(not_done<Answer>(Reaction::kDown));
      } else {
        answers.push_back(one(*root, item));
      }
    }
    if (gate_.leave()) drop_root();
    return answers;
  }

  static Status closed_status() {
    return {Code::kUnavailable, "the file store is closed; open a new one"};
  }

  StoreRoot::Options root_options() {
    StoreRoot::Options root;
    root.path = options_.path;
    root.unnamed_files = options_.unnamed_files;
    root.removed = [this] { (void)step(FileStep::kRemoved); };
    return root;
  }

  std::shared_ptr<StoreRoot> current() const {
    const MutexLock lock(root_mutex_);
    return root_;
  }

  void drop_root() {
    const MutexLock lock(root_mutex_);
    root_.reset();
  }

  /// Now and then: is the folder still the one at the path, how much may lie in it, and what did
  /// dead writers leave? A bounded piece of work.
  void look_around(bool writes) {
    Instant::rep due = next_look_.load();
    const Instant now = clock_->now();
    if (now.time_since_epoch().count() < due) return;
    const Instant next = now + options_.look_around_every;
    if (!next_look_.compare_exchange_strong(due, next.time_since_epoch().count())) return;
    const std::shared_ptr<StoreRoot> root = current();
    if (root == nullptr) {
      reopen(root);
      return;
    }
    switch (root->place()) {
      case StoreRoot::Place::kSame:
        if (!writes) return;
        refresh_limit(*root);
        evictor_.look_around(*root);
        if (++looks_ % kFileFolders == 0) root->remove_stale_drafts();
        return;
      case StoreRoot::Place::kGone:
        if (writes) reopen(root);  // else everything is a miss
        return;
      case StoreRoot::Place::kOther:
        reopen(root);
        return;
    }
  }

  /// Another root in the place of `old`, unless another thread was faster. Without one the store is
  /// down until a later call can open it.
  void reopen(const std::shared_ptr<StoreRoot>& old) {
    const MutexLock one_at_a_time(reopen_mutex_);
    if (current() != old) return;
    Result<std::shared_ptr<StoreRoot>> fresh = StoreRoot::open(root_options());
    if (!fresh.ok()) complain(fresh.status().message());
    {
      const MutexLock lock(root_mutex_);
      root_ = fresh.ok() ? std::move(*fresh) : nullptr;
    }
    reopened_.fetch_add(1);
    if (const auto root = current(); root != nullptr) refresh_limit(*root);
  }

  void refresh_limit(StoreRoot& root) {
    std::uint64_t used = 0;
    if (!ok(root.record().total(&used))) return;
    const FreeSpace space = root.free_space();
    if (space.total_bytes == 0) return;
    const std::uint64_t left_free = std::min(space.total_bytes / kFreeShare, kLeastFreeBytes);
    const std::uint64_t within_reach = used + space.available_bytes;
    const std::uint64_t most = within_reach - std::min(within_reach, left_free);
    limit_.store(std::min(options_.max_bytes, most));
  }

  FileStoreStats stats_of(StoreRoot& root) const {
    FileStoreStats stats;
    (void)root.record().total(&stats.bytes_used);
    stats.bytes_limit = limit_.load();
    stats.evicted = evictor_.evicted();
    stats.puts_backed_off = puts_backed_off_.load();
    stats.reads_failed = reads_failed_.load();
    stats.reopened = reopened_.load();
    return stats;
  }

  void complain(const std::string& message) {
    const Instant now = clock_->now();
    {
      const MutexLock lock(complain_mutex_);
      if (complained_ && now - complained_at_ < kComplainEvery) return;
      complained_ = true;
      complained_at_ = now;
    }
    logger_->log(LogLevel::kWarning, message);
  }

  std::errc step(FileStep at) { return options_.at_step ? options_.at_step(at) : std::errc{}; }

  // ---- reading -----------------------------------------------------------------------------

  bool is_due(std::int64_t used_ns) const {
    return std::abs(options_.wall_ns() - used_ns) >= options_.use_noted_every.count();
  }

  struct Look {
    Reaction reaction = Reaction::kMiss;
    bool in_the_way = false;  ///< A miss, and yet the name is taken.
  };

  /// Whether an object is there; that is a use of it.
  Look look(const Folder& folder, const ObjectName& name, const std::string& key) {
    FileInfo info;
    if (name.trailer_bytes > 0) {
      OpenFile file;
      const Reaction opened = open_object(folder, name, key, &file, &info);
      return {opened == Reaction::kStale ? Reaction::kMiss : opened, opened == Reaction::kStale};
    }
    if (const std::errc failed = folder.info(name.file.c_str(), &info); !ok(failed)) {
      return {reaction_to_lookup_error(failed), false};
    }
    // An empty file is what a power loss may leave of an object.
    if (info.kind != FileInfo::Kind::kFile || info.bytes == 0) return {Reaction::kMiss, true};
    if (is_due(info.modified_ns)) {
      (void)folder.set_modified(name.file.c_str(), options_.wall_ns());
    }
    return {Reaction::kOk, false};
  }

  /// kStale: something is there, and it is not this object. `info->bytes` includes the trailer.
  Reaction open_object(const Folder& folder, const ObjectName& name, const std::string& key,
                       OpenFile* file, FileInfo* info) {
    const std::errc failed = folder.open_file(name.file.c_str(), Folder::Access::kRead, file, info);
    if (!ok(failed)) return reaction_to_read_error(failed);
    if (info->bytes <= name.trailer_bytes) return Reaction::kStale;
    if (name.trailer_bytes > 0) {
      std::vector<std::byte> trailer(name.trailer_bytes);
      std::size_t got = 0;
      const std::errc unread = file->read_at(info->bytes - trailer.size(), trailer, &got);
      if (!ok(unread)) return reaction_to_read_error(unread);
      if (as_text(std::span(trailer).first(got)) != key) return Reaction::kStale;
    }
    if (is_due(info->modified_ns)) (void)file->set_modified(options_.wall_ns());
    return Reaction::kOk;
  }

  Reaction exists_one(StoreRoot& root, const std::string& key) {
    const ObjectName name = ObjectName::of(key);
    Folder folder;
    const std::errc failed = root.folder(name.folder, &folder);
    return ok(failed) ? look(folder, name, key).reaction : reaction_to_lookup_error(failed);
  }

  GetResult get_one(StoreRoot& root, const GetItem& item) {
    if (item.data == nullptr) return {Reaction::kCallerBug, 0};
    const ObjectName name = ObjectName::of(item.key);
    Folder folder;
    if (const std::errc failed = root.folder(name.folder, &folder); !ok(failed)) {
      return {reaction_to_lookup_error(failed), 0};
    }
    OpenFile file;
    FileInfo info;
    const Reaction opened = open_object(folder, name, item.key, &file, &info);
    if (opened != Reaction::kOk) {
      // Not this object: for whoever reads, the same as none.
      const bool absent = opened == Reaction::kStale && file.is_open();
      if (opened == Reaction::kStale && !absent) reads_failed_.fetch_add(1);
      return {absent ? Reaction::kMiss : opened, 0};
    }
    const std::uint64_t bytes = info.bytes - name.trailer_bytes;
    if (bytes > item.capacity) return {Reaction::kCallerBug, 0};
    std::size_t got = 0;
    const std::errc failed =
        file.read_at(0, std::span(item.data, static_cast<std::size_t>(bytes)), &got);
    if (ok(failed) && got == bytes) return {Reaction::kOk, got};
    reads_failed_.fetch_add(1);
    return {ok(failed) ? Reaction::kStale : reaction_to_read_error(failed), 0};
  }

  // ---- writing -----------------------------------------------------------------------------

  Reaction remove_one(StoreRoot& root, const std::string& key) {
    const ObjectName name = ObjectName::of(key);
    Folder folder;
    if (const std::errc failed = root.folder(name.folder, &folder); !ok(failed)) {
      return reaction_to_lookup_error(failed);
    }
    FileInfo info;
    if (name.trailer_bytes > 0) {
      OpenFile file;
      const Reaction opened = open_object(folder, name, key, &file, &info);
      if (opened != Reaction::kOk) return opened == Reaction::kDown ? opened : Reaction::kMiss;
    } else if (const std::errc failed = folder.info(name.file.c_str(), &info); !ok(failed)) {
      return reaction_to_lookup_error(failed);
    }
    if (info.kind != FileInfo::Kind::kFile) return Reaction::kMiss;
    const std::errc failed = root.remove(name.folder, folder, name.file, info.bytes);
    if (ok(failed)) return info.bytes > 0 ? Reaction::kOk : Reaction::kMiss;
    return failed == std::errc::no_such_file_or_directory ? Reaction::kMiss
                                                          : reaction_to_write_error(failed);
  }

  PutResult put_one(const PutItem& item, Deadline deadline) {
    if (item.data == nullptr || item.bytes == 0 || item.bytes > options_.max_bytes) {
      return {Reaction::kCallerBug, PutEffect::kNone};
    }
    const ObjectName name = ObjectName::of(item.key);
    std::errc failed{};
    for (int tries = 0; tries < kPutTries; ++tries) {
      const std::shared_ptr<StoreRoot> root = current();
      if (root == nullptr) return {Reaction::kDown, PutEffect::kNone};
      Folder folder;
      failed = root->folder_for_writing(name.folder, &folder);
      if (ok(failed)) {
        const Look found = look(folder, name, item.key);
        if (found.reaction == Reaction::kOk) return {Reaction::kOk, PutEffect::kExisted};
        if (found.reaction != Reaction::kMiss) return {found.reaction, PutEffect::kNone};
        if (found.in_the_way) failed = clear_away(*root, folder, name);
      }
      if (ok(failed)) failed = write(*root, folder, name, item, deadline);
      if (ok(failed)) return {Reaction::kOk, PutEffect::kStored};
      // The next look finds what another writer stored.
      if (failed == std::errc::file_exists) continue;
      if (failed == std::errc::no_such_file_or_directory) {
        if (root->place() != StoreRoot::Place::kSame) reopen(root);
        continue;
      }
      if (!is_full(failed) || !make_way(*root, item.bytes, deadline)) break;
    }
    return refused(failed);
  }

  PutResult refused(std::errc failed) {
    const Reaction reaction = reaction_to_write_error(failed);
    if (reaction == Reaction::kBackOff) puts_backed_off_.fetch_add(1);
    complain("file store '" + options_.path + "': cannot store a block: " + message_of(failed) +
             "; blocks are left out until it can; remedy: free space, make the folder writable, "
             "or name another one with MC_FILE_PATH");
    return {reaction, PutEffect::kNone};
  }

  /// What has the name of an object and is none: not a file, empty, or with another key at its end.
  std::errc clear_away(StoreRoot& root, const Folder& folder, const ObjectName& name) {
    FileInfo info;
    const std::errc failed = folder.info(name.file.c_str(), &info);
    if (!ok(failed)) return failed == std::errc::no_such_file_or_directory ? std::errc{} : failed;
    switch (info.kind) {
      case FileInfo::Kind::kFile:
        return root.remove(name.folder, folder, name.file, info.bytes);
      case FileInfo::Kind::kFolder:
        return folder.remove_folder(name.file.c_str());
      case FileInfo::Kind::kOther:
        break;
    }
    return folder.remove(name.file.c_str());
  }

  /// The file system is full before the limit is reached: others use it too.
  bool make_way(StoreRoot& root, std::uint64_t bytes, Deadline deadline) {
    refresh_limit(root);
    std::uint64_t used = 0;
    if (space_of(bytes) > limit_.load() || !ok(root.record().total(&used))) return false;
    const std::uint64_t goes = std::max(space_of(bytes), used / kFullShare);
    const std::uint64_t stays = used - std::min(used, goes);
    return evictor_.make_room(root, std::min(stays, limit_.load()), deadline);
  }

  /// Takes the space, then writes, then names. What fails gives the space back; who dies leaves it
  /// to the next scan of the folder.
  std::errc write(StoreRoot& root, const Folder& folder, const ObjectName& name,
                  const PutItem& item, Deadline deadline) {
    const std::uint64_t file_bytes = item.bytes + name.trailer_bytes;
    // Writing more would not fail but end the process.
    if (file_bytes > file_size_limit()) return std::errc::file_too_large;
    const std::uint64_t space = space_of(file_bytes);
    const std::uint64_t limit = limit_.load();
    if (space > limit) return std::errc::no_space_on_device;

    const UsageRecord::InFlight flight(&root.record(), name.folder);
    std::uint64_t total = 0;
    std::errc failed = root.record().add(name.folder, space, &total);
    if (!ok(failed)) return failed;
    if (total > limit && !evictor_.make_room(root, limit, deadline)) {
      failed = std::errc::no_space_on_device;
    }
    if (ok(failed)) failed = write_and_publish(root, folder, name, item);
    if (!ok(failed)) (void)root.record().subtract(name.folder, space);
    return failed;
  }

  std::errc write_and_publish(StoreRoot& root, const Folder& folder, const ObjectName& name,
                              const PutItem& item) {
    StoreRoot::Draft draft;
    std::errc failed = step(FileStep::kReserved);
    if (ok(failed)) failed = root.draft(&draft);
    if (ok(failed)) failed = step(FileStep::kCreated);
    if (ok(failed)) failed = write_content(draft.file, name, item);
    if (ok(failed)) failed = draft.file.set_modified(options_.wall_ns());
    if (ok(failed)) failed = step(FileStep::kWritten);
    if (ok(failed)) {
      failed = root.publish(draft, folder, name.file);
      if (ok(failed)) (void)step(FileStep::kPublished);
    }
    root.discard(draft);
    return failed;
  }

  std::errc write_content(const OpenFile& file, const ObjectName& name, const PutItem& item) {
    const std::span<const std::byte> payload(item.data, item.bytes);
    const std::size_t first = options_.at_step ? payload.size() / 2 : 0;
    std::errc failed{};
    if (options_.at_step) {
      failed = file.write_at(0, payload.first(first));
      if (ok(failed)) failed = step(FileStep::kHalfWritten);
    }
    if (ok(failed)) failed = file.write_at(first, payload.subspan(first));
    if (ok(failed) && name.trailer_bytes > 0) {
      failed = file.write_at(item.bytes, as_bytes(item.key));
    }
    return failed;
  }

  const FileStoreOptions options_;
  const std::shared_ptr<Logger> logger_;
  const std::shared_ptr<const Clock> clock_;
  CallGate gate_;
  Evictor evictor_;
  std::atomic<std::uint64_t> limit_;
  std::atomic<Instant::rep> next_look_{0};
  std::atomic<std::uint64_t> looks_{0};
  std::atomic<std::uint64_t> puts_backed_off_{0};
  std::atomic<std::uint64_t> reads_failed_{0};
  std::atomic<std::uint64_t> reopened_{0};
  Mutex reopen_mutex_;
  mutable Mutex root_mutex_;
  std::shared_ptr<StoreRoot> root_ KVC_GUARDED_BY(root_mutex_);
  Mutex complain_mutex_;
  bool complained_ KVC_GUARDED_BY(complain_mutex_) = false;
  Instant complained_at_ KVC_GUARDED_BY(complain_mutex_);
  Mutex registered_mutex_;
  RegisteredRanges registered_ KVC_GUARDED_BY(registered_mutex_);
};

}  // namespace

Result<std::shared_ptr<FileStore>> open_file_store(FileStoreOptions options,
                                                   std::shared_ptr<Logger> logger,
                                                   std::shared_ptr<const Clock> clock) {
  while (options.path.size() > 1 && options.path.back() == '/') options.path.pop_back();
  if (!options.wall_ns) options.wall_ns = &wall_time_ns;
  auto store =
      std::make_shared<FileStoreImpl>(std::move(options), std::move(logger), std::move(clock));
  if (Status status = store->open(); !status.ok()) return status;
  return std::shared_ptr<FileStore>(std::move(store));
}

}  // namespace kvc
