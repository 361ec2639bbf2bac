// An engine in miniature, a scheduler and its ranks, of which every call can run out of memory.
// What the engine does itself has all the memory that it wants.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "connector/scheduler_fixture.h"
#include "connector/worker_fixture.h"
#include "kvc/channel.h"
#include "kvc/scheduler.h"
#include "kvc/stage_leader.h"
#include "testing/passing_store.h"
#include "tests/out_of_memory/failing_new.h"

namespace kvc::testlib {

inline constexpr std::size_t kPagesOfRank = 32;
inline constexpr std::size_t kBytesOfPage = 600;
inline constexpr std::uint32_t kLayersOfPage = 3;

/// Counts what is registered, and grants leases if it is told to.
class OutsideStore final : public PassingStore {
 public:
  OutsideStore(std::shared_ptr<Store> inner, Duration lease)
      : PassingStore(std::move(inner)), lease_(lease) {}
  StoreCapabilities capabilities() const override {
    StoreCapabilities all = inner_->capabilities();
    all.lease = lease_;
    return all;
  }
  Status register_memory(std::span<std::byte> memory) override {
    Status status = inner_->register_memory(memory);
    if (status.ok()) ++registered_;
    return status;
  }
  Status unregister_memory(std::span<std::byte> memory) override {
    Status status = inner_->unregister_memory(memory);
    if (status.ok()) --registered_;
    return status;
  }
  int registered() const { return registered_; }

 private:
  const Duration lease_;
  int registered_ = 0;
};

/// Copies into pages when it is flushed, as a device may.
class LateCopier final : public PageCopier {
 public:
  Result<std::unique_ptr<StagingMemory>> allocate_staging(std::size_t bytes) override {
    return host_->allocate_staging(bytes);
  }
  Status copy_out(const PageGroup& group, SlotIndex slot, std::span<std::byte> staging,
                  StreamHandle stream) override {
    return host_->copy_out(group, slot, staging, stream);
  }
  Status copy_in(const PageGroup& group, SlotIndex slot, std::span<const std::byte> staging,
                 StreamHandle) override {
    if (count_ == issued_.size()) return {Code::kUnavailable, ""};
    issued_[count_++] = {&group, slot, staging};
    return {};
  }
  Status flush(StreamHandle stream) override {
    for (const Issued& copy : std::span(issued_).first(std::exchange(count_, 0))) {
      (void)host_->copy_in(*copy.group, copy.slot, copy.staging, stream);
    }
    return {};
  }
  std::size_t under_way() const { return count_; }

 private:
  struct Issued {
    const PageGroup* group = nullptr;
    SlotIndex slot = 0;
    std::span<const std::byte> staging;
  };
  const std::shared_ptr<PageCopier> host_ = make_host_page_copier();
  std::array<Issued, std::size_t{kPagesOfRank} * kLayersOfPage> issued_{};
  std::size_t count_ = 0;
};

struct WorldOptions {
  std::uint32_t ranks = 1;
  bool staged = false;
  bool by_layer = false;
  Duration lease{0};
  std::size_t staging_bytes = std::size_t{256} << 10;
  std::size_t save_queue_bytes = std::size_t{64} << 10;
  /// Of the rank and world of a process that comes later.
  std::shared_ptr<MemoryStore> memory = make_memory_store({});
  Shortage shortage = Shortage::kOnce;
};

/// What became of a request.
struct Served {
  std::size_t offered = 0;  // Blocks.
  bool failed = false;      // Whatever was promised, the engine was told that it is not there.
};

class World {
 public:
  explicit World(WorldOptions options);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  /// A whole life. Every byte that a pass reads is checked, unless it was told not to read it.
  Served serve(const std::vector<Token>& tokens);
  /// Lets background tasks come to their end.
  void run_tasks();
  /// Steps without requests, so that all that ends with a later plan does.
  void idle();
  /// Checks that nothing is held, and that it ends well.
  void end();
  /// Tier, queue and holds of every rank, and what the scheduler knows.
  void expect_nothing_held() const;

  /// One more worker, without a pool.
  std::unique_ptr<Worker> make_worker(
      std::uint32_t rank, std::shared_ptr<PageCopier> copier = make_host_page_copier()) const;

  Scheduler& scheduler() const { return *scheduler_; }
  Worker& worker(std::uint32_t rank) const { return *ranks_[rank].worker; }
  TestPool& pool(std::uint32_t rank) const { return *ranks_[rank].pool; }
  void advance(Duration by) { clock_->advance(by); }
  SteppableExecutor& executor() const { return *executor_; }
  int registered() const { return store_->registered(); }
  Instant now() const { return clock_->now(); }
  const WorldOptions& options() const { return options_; }

 private:
  struct Rank {
    std::unique_ptr<TestPool> pool;
    std::shared_ptr<LateCopier> copier;
    std::unique_ptr<Worker> worker;
  };

  void start_rank(std::uint32_t rank);
  void start_scheduler();
  /// False if the engine was told that a page is not filled.
  bool pass(std::uint32_t rank, const StepPlan& plan, std::span<const BlockHash> names,
            std::size_t promised, std::span<const SlotIndex> slots);
  template <typename Call>
  bool is_done(std::uint32_t rank, Call call);
  void expect_filled(std::uint32_t rank, std::span<const BlockHash> names,
                     std::span<const SlotIndex> slots, std::optional<std::uint32_t> layer);
  std::span<std::byte> layer_of(std::uint32_t rank, SlotIndex slot, std::uint32_t layer) const;
  void compute(std::uint32_t rank, std::span<const BlockHash> names,
               std::span<const SlotIndex> slots, std::uint32_t layer);

  const WorldOptions options_;
  const std::shared_ptr<SimClock> clock_ = std::make_shared<SimClock>(std::chrono::milliseconds(1));
  const std::shared_ptr<CollectingLogger> logger_ = std::make_shared<CollectingLogger>();
  const std::shared_ptr<SteppableExecutor> executor_ = std::make_shared<SteppableExecutor>();
  const std::shared_ptr<OutsideStore> store_;
  std::vector<Rank> ranks_;
  std::shared_ptr<StageLeader> leader_;
  std::unique_ptr<Scheduler> scheduler_;
  RequestId last_id_ = 0;
};

/// Fails the test if the product throws.
template <typename Call>
void must_not_throw(const char* what, Call call) {
  try {
    const Armed armed;
    call();
  } catch (const std::exception& error) {
    ADD_FAILURE() << what << " threw " << error.what();
  }
}

}  // namespace kvc::testlib
