#include <cstring>
#include <string>
#include <utility>

#include "kvc/device.h"
#include "os/memory.h"

namespace kvc {
namespace {

/// A page or a buffer that does not fit would be written past its end: refused in every build.
Status check_copy(const PageGroup& group, SlotIndex slot, std::size_t staging_bytes) {
  const std::size_t slots = page_slots(group);
  if (slot < 0 || static_cast<std::uint64_t>(slot) >= slots) {
    return invalid("page " + std::to_string(slot) + " is not one of the pool's " +
                   std::to_string(slots) + " pages");
  }
  const std::size_t bytes = page_bytes(group);
  if (staging_bytes != bytes) {
    return invalid("staging of " + std::to_string(staging_bytes) + " bytes for a page of " +
                   std::to_string(bytes));
  }
  return {};
}

class HostStagingMemory final : public StagingMemory {
 public:
  explicit HostStagingMemory(MappedMemory memory) : memory_(std::move(memory)) {}

  std::span<std::byte> bytes() const override { return memory_.bytes(); }
  void abandon() override { memory_.abandon(); }

 private:
  MappedMemory memory_;
};

/// Keeps no state, so any number of threads may copy different pages at once.
class HostPageCopier final : public PageCopier {
 public:
  bool concurrent() const override { return true; }

  Result<std::unique_ptr<StagingMemory>> allocate_staging(std::size_t bytes) override {
    Result<MappedMemory> memory = MappedMemory::map(bytes);
    if (!memory.ok()) return memory.status();
    std::unique_ptr<StagingMemory> staging =
        std::make_unique<HostStagingMemory>(std::move(memory).value());
    return staging;
  }

  Status copy_out(const PageGroup& group, SlotIndex slot, std::span<std::byte> staging,
                  StreamHandle) override {
    Status status = check_copy(group, slot, staging.size());
    if (!status.ok()) return status;
    std::byte* out = staging.data();
    for (const PageRegion& region : group.regions) {
      std::memcpy(out, region.base + region.stride * static_cast<std::size_t>(slot), region.bytes);
      out += region.bytes;
    }
    return {};
  }

  Status copy_in(const PageGroup& group, SlotIndex slot, std::span<const std::byte> staging,
                 StreamHandle) override {
    Status status = check_copy(group, slot, staging.size());
    if (!status.ok()) return status;
    const std::byte* in = staging.data();
    for (const PageRegion& region : group.regions) {
      std::memcpy(region.base + region.stride * static_cast<std::size_t>(slot), in, region.bytes);
      in += region.bytes;
    }
    return {};
  }

  /// Every copy was complete when it returned.
  Status flush(StreamHandle) override { return {}; }
};

}  // namespace

std::shared_ptr<PageCopier> make_host_page_copier() { return std::make_shared<HostPageCopier>(); }

}  // namespace kvc
