#include <new>
#include <utility>

#include "kvc/channel.h"

namespace kvc {
namespace {

class DirectLink final : public StageLink {
 public:
  DirectLink(std::uint32_t rank, std::shared_ptr<StageRank> stage, std::weak_ptr<StageSink> sink)
      : rank_(rank), stage_(std::move(stage)), sink_(std::move(sink)) {}

  bool connected() const override { return true; }
  bool stage(StageOrder order) override {
    StageRank::Report report;
    try {
      report = [rank = rank_, sink = sink_](const StageProgress& progress) {
        if (const std::shared_ptr<StageSink> held = sink.lock()) held->on_progress(rank, progress);
      };
    } catch (const std::bad_alloc&) {
      return false;
    }
    stage_->stage(std::move(order), std::move(report));
    return true;
  }
  void release(HoldRelease release) override { stage_->release(release); }

 private:
  const std::uint32_t rank_;
  const std::shared_ptr<StageRank> stage_;
  const std::weak_ptr<StageSink> sink_;
};

}  // namespace

std::shared_ptr<StageLink> make_direct_link(std::uint32_t rank, std::shared_ptr<StageRank> stage,
                                            std::weak_ptr<StageSink> sink, HoldId newest_before) {
  if (stage == nullptr) return nullptr;
  if (newest_before != 0) stage->keep_only({}, newest_before);
  return std::make_shared<DirectLink>(rank, std::move(stage), std::move(sink));
}

}  // namespace kvc
