#include "testing/sim/site.h"

#include "base/random.h"

namespace kvc::sim {
namespace {

constexpr std::array<std::string_view, kMarks> kNames{"committed",
                                                      "waiting for peers",
                                                      "commit failed",
                                                      "shard existed",
                                                      "shard verified",
                                                      "shard replaced",
                                                      "writer crashed",
                                                      "probe: all",
                                                      "probe: no manifest",
                                                      "probe: shard lost",
                                                      "probe: store error",
                                                      "rejected: size",
                                                      "rejected: magic",
                                                      "rejected: version",
                                                      "rejected: layout",
                                                      "rejected: identity",
                                                      "rejected: checksum",
                                                      "rejected and removed",
                                                      "loaded",
                                                      "leased load failed",
                                                      "promise in full",
                                                      "promise cut",
                                                      "promise late",
                                                      "promise: no room",
                                                      "promise: rejected",
                                                      "promise: missing",
                                                      "promise: unavailable",
                                                      "served from the tier",
                                                      "joined a flight",
                                                      "fetch abandoned",
                                                      "evicted from the tier",
                                                      "hold expired",
                                                      "allocated too late",
                                                      "promise renewed",
                                                      "promise honoured less",
                                                      "trimmed, then run",
                                                      "cancelled promised",
                                                      "cancelled firm",
                                                      "cancelled planned",
                                                      "reconnected",
                                                      "hold dropped on reconnect",
                                                      "hold of a former leader ended",
                                                      "release before order",
                                                      "save dropped",
                                                      "request aborted"};

}  // namespace

std::string_view to_string(Mark mark) { return kNames[static_cast<std::size_t>(mark)]; }

RankShards shards_of(std::uint32_t keyspace, std::uint32_t rank, const Shape& shape) {
  Fingerprint fingerprint{};
  Random(keyspace + 1).fill(fingerprint);
  const Granularity granularity = shape.by_layer ? Granularity::kLayer : Granularity::kBlock;
  return {.keys = ObjectKeys(fingerprint, granularity),
          .role = {.rank = rank,
                   .world_size = shape.ranks,
                   .atomic_publish = shape.atomic_publish,
                   .by_layer = shape.by_layer},
          .tokens_per_block = kTokensPerBlock,
          .page_bytes = kPayloadBytes * shape.parts,
          .layers = shape.by_layer ? shape.parts : 0};
}

void mark_rejection(Coverage& coverage, Rejection rejection) {
  switch (rejection) {
    case Rejection::kNone:
      return;
    case Rejection::kSize:
      return coverage.hit(Mark::kRejectedSize);
    case Rejection::kMagic:
      return coverage.hit(Mark::kRejectedMagic);
    case Rejection::kVersion:
      return coverage.hit(Mark::kRejectedVersion);
    case Rejection::kLayout:
      return coverage.hit(Mark::kRejectedLayout);
    case Rejection::kIdentity:
      return coverage.hit(Mark::kRejectedIdentity);
    case Rejection::kChecksum:
      return coverage.hit(Mark::kRejectedChecksum);
  }
}

}  // namespace kvc::sim
