#include "connector/layer_hooks.h"

#include <algorithm>

#include "base/planted.h"

namespace kvc {

void LayerHooks::begin_pass(bool has_loads, std::size_t in_place) {
  has_loads_ = has_loads;
  waited_ = computed_ = 0;
  waits_irregular_ = irregular_ = false;
  for (std::size_t layer = 0; layer < in_time_.size(); ++layer) in_time_[layer] = layer < in_place;
}

void LayerHooks::waited(std::size_t layer) {
  if (layer >= in_time_.size()) return;
  if (layer != waited_) waits_irregular_ = true;
  if (!waits_irregular_) ++waited_;
  in_time_[layer] = true;
}

bool LayerHooks::computed(std::size_t layer) {
  if (layer != computed_ || layer >= in_time_.size()) irregular_ = true;
  if (!irregular_) ++computed_;
  return !irregular_;
}

bool LayerHooks::loads_were_in_time() const {
  if (KVC_PLANTED("trust_hooks")) return true;
  return std::ranges::find(in_time_, false) == in_time_.end();
}

std::size_t LayerHooks::first_not_in_time() const {
  return static_cast<std::size_t>(std::ranges::find(in_time_, false) - in_time_.begin());
}

bool LayerHooks::computed_in_order() const {
  if (KVC_PLANTED("trust_snapshots")) return true;
  return !irregular_ && computed_ == in_time_.size();
}

void LayerHooks::end_pass() {
  // A pass without loads may be the replay of a graph, in which no call comes at all: it tells
  // nothing. One with other calls than hoped for tells that they cannot be relied on.
  const bool called = waited_ > 0 || waits_irregular_;
  if (has_loads_) {
    trusted_ = waited_in_order();
  } else if (called && !waited_in_order()) {
    trusted_ = false;
  }
}

}  // namespace kvc
