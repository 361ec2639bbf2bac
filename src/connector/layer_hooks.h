// What a worker may conclude from the engine's per-layer calls.
//
// An engine that replays a captured graph, or whose layers are of a class that it does not know,
// leaves the calls out, all or some of them, and does not say so. Hence:
//
//   * Loads may go on behind a pass only if the last pass that had loads waited once for each
//     layer, in order. Until then, and after every pass that did not, loads are complete before the
//     pass.
//   * Whether a pass did wait in time is checked when it ends; one that did not must fail.
//   * What was copied for saving layer by layer counts only if the calls came once for each layer,
//     in order. In any other pass the pages are copied when it is over.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvc {

/// Not thread-safe.
class LayerHooks {
 public:
  explicit LayerHooks(std::size_t layers) : in_time_(layers) {}

  /// `in_place`: leading layers whose loads are complete by now; all of them without loads.
  void begin_pass(bool has_loads, std::size_t in_place);

  /// The pass has waited for `layer`. Layers that the pages do not have are ignored.
  void waited(std::size_t layer);
  /// The pass has computed `layer`. False if that was not the next one.
  bool computed(std::size_t layer);

  /// Whether every layer was in place when the pass came to it: it waited for that layer, or the
  /// layer was complete before the pass. In which order a pass computes layers for which it does
  /// not wait is not known.
  bool loads_were_in_time() const;
  /// The first layer of which that is not so. REQUIRES: !loads_were_in_time().
  std::size_t first_not_in_time() const;

  /// Whether computed() came once for each layer, in order.
  bool computed_in_order() const;

  void end_pass();

  /// Whether the loads of the next pass may go on behind it.
  bool trusted() const { return trusted_; }

 private:
  bool waited_in_order() const { return !waits_irregular_ && waited_ == in_time_.size(); }

  std::vector<bool> in_time_;  // By layer.
  std::size_t waited_ = 0;     // Layers, in order.
  std::size_t computed_ = 0;   // Layers, in order.
  bool waits_irregular_ = false;
  bool irregular_ = false;
  bool has_loads_ = false;
  bool trusted_ = false;
};

}  // namespace kvc
