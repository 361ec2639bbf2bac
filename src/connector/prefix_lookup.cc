#include "connector/prefix_lookup.h"

#include <string>
#include <utility>
#include <vector>

namespace kvc {

PrefixLookup look_up_prefix(Store& store, const Clock& clock, const ProbeOptions& options,
                            const ObjectKeys& keys, std::span<const BlockHash> blocks,
                            Deadline deadline) {
  PrefixProbe probe(options, keys, blocks);
  for (std::vector<std::string> wanted = probe.next_keys(); !wanted.empty();
       wanted = probe.next_keys()) {
    if (deadline.passed(clock)) {
      probe.abandon();
      break;
    }
    probe.on_exists(store.exists(std::move(wanted), {.deadline = deadline, .hold = nullptr}));
  }
  return {probe.available_blocks(), probe.end(), probe.lost_rank()};
}

}  // namespace kvc
