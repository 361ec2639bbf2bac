// Marks on the rare branches of a simulated world. A long run that never hits one of them does not
// try what it is meant to try.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace kvc::sim {

enum class Mark : std::uint8_t {
  kCommitted,        ///< A writer put the manifest.
  kWaitingForPeers,  ///< A writer left the manifest to another rank.
  kCommitFailed,     ///< A commit ended without a manifest.
  kShardExisted,     ///< A put found the shard of another writer.
  kShardVerified,    ///< An existing shard was read back and found whole.
  kShardReplaced,    ///< An existing shard was bad and was put once more.
  kWriterCrashed,    ///< A process died while it was writing.
  kProbeAll,         ///< A probe found the whole prefix.
  kProbeNoManifest,
  kProbeShardLost,  ///< A manifest outlived a shard.
  kProbeStoreError,
  kRejectedSize,
  kRejectedMagic,
  kRejectedVersion,
  kRejectedLayout,
  kRejectedIdentity,
  kRejectedChecksum,
  kRejectedRemoved,  ///< What was refused was removed, or put right by the next save.
  kLoaded,
  kLeasedLoadFailed,  ///< A promise of the leased mode that the store broke, or a plan was lost.
  kPromiseFull,
  kPromiseCut,   ///< Shorter than what was ordered.
  kPromiseLate,  ///< Cut by the deadline.
  kPromiseNoRoom,
  kPromiseRejected,
  kPromiseMissing,
  kPromiseUnavailable,
  kServedFromTier,  ///< A block that was staged before a query asked for it.
  kJoinedFlight,    ///< An order met a block that was being fetched.
  kFetchAbandoned,  ///< A fetch was given up while its transfer went on.
  kTierEvicted,
  kHoldExpired,
  kAllocatedTooLate,  ///< After its hold had expired.
  kPromiseRenewed,
  kPromiseHonouredLess,
  kTrimmedThenRun,
  kCancelledPromised,
  kCancelledFirm,
  kCancelledPlanned,
  kReconnected,
  kHoldDroppedOnReconnect,
  kHoldOfFormerLeaderEnded,
  kReleaseBeforeOrder,
  kSaveDropped,     ///< No page for a snapshot.
  kRequestAborted,  ///< By a crash.
  kCount,
};
inline constexpr std::size_t kMarks = static_cast<std::size_t>(Mark::kCount);

std::string_view to_string(Mark mark);

class Coverage {
 public:
  void hit(Mark mark) { ++hits_[static_cast<std::size_t>(mark)]; }
  const std::array<std::uint32_t, kMarks>& hits() const { return hits_; }
  std::uint32_t count(Mark mark) const { return hits_[static_cast<std::size_t>(mark)]; }

 private:
  std::array<std::uint32_t, kMarks> hits_{};
};

}  // namespace kvc::sim
