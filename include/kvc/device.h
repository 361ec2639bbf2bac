// The seam to the memory of a KV cache: copies of pages to and from staging, ordered on a stream.
//
// Host memory copies at once and ignores the stream. Device memory copies asynchronously on the
// given stream; flush() is the point after which staging may be read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "kvc/layout.h"
#include "kvc/result.h"

namespace kvc {

/// A stream of the engine, passed through. 0: the default stream, or host memory.
using StreamHandle = std::uintptr_t;

/// Memory that pages are staged in: whole system pages, freed with this object.
class StagingMemory {
 public:
  virtual ~StagingMemory() = default;

  virtual std::span<std::byte> bytes() const = 0;
  /// Leaves the memory allocated for the life of the process, since somebody may still use it.
  virtual void abandon() = 0;
};

/// Copies whole pages. Single-threaded per instance unless said otherwise; the host implementation
/// may be used from any thread.
class PageCopier {
 public:
  virtual ~PageCopier() = default;

  /// Whether several threads may copy different pages at once.
  virtual bool concurrent() const { return false; }

  /// Memory that this copier copies from and to best. kInvalid for 0 bytes, kExhausted if there is
  /// not that much.
  virtual Result<std::unique_ptr<StagingMemory>> allocate_staging(std::size_t bytes) = 0;

  /// Gathers page `slot` of `group` into `staging`. kInvalid, with nothing copied, if the group has
  /// no such slot or unless staging.size() == page_bytes(group).
  virtual Status copy_out(const PageGroup& group, SlotIndex slot, std::span<std::byte> staging,
                          StreamHandle stream) = 0;

  /// Scatters `staging` into page `slot` of `group`. Outcomes as for copy_out().
  virtual Status copy_in(const PageGroup& group, SlotIndex slot, std::span<const std::byte> staging,
                         StreamHandle stream) = 0;

  /// Returns once all copies issued on `stream` are complete.
  virtual Status flush(StreamHandle stream) = 0;
};

std::shared_ptr<PageCopier> make_host_page_copier();

}  // namespace kvc
