// Random lives of requests on one or two ranks: an engine in miniature drives one scheduler and two
// workers over pages whose every byte follows from the tokens before it. It chunks, reuses,
// preempts, cancels, loses and replays, hands freed pages on at once, while the store loses and
// damages objects and saves run whenever the executor gets a turn. Where blocks are stored layer by
// layer, passes call the hooks in ways of all kinds.
//
// What must hold: before a pass reads a position, the position holds its bytes (I1); whatever is in
// the store in the end has the bytes of its name; nothing is left over (I6); counters are true
// (I7).

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "connector/worker_fixture.h"
#include "kvc/scheduler.h"
#include "store/wrap/fault_store.h"
#include "testing/seed.h"

namespace kvc {
namespace {

constexpr std::size_t B = 4;
constexpr std::size_t kPositionBytes = 24;
constexpr std::size_t kPageBytes = B * kPositionBytes;
constexpr std::size_t kSlots = 160;

struct Options {
  bool atomic = true;
  bool faults = false;
  bool honours_less = false;
  std::uint32_t ranks = 2;
  std::uint32_t layers = 0;  // 0: blocks are stored whole.
  bool staged = false;       // With a host tier that has less room than is used.
};

struct Request {
  RequestId id = 0;
  std::int64_t salt = 0;
  std::vector<Token> tokens;
  std::size_t prompt = 0;
  std::vector<std::uint64_t> digests;  // By position: all that decides its KV.
  std::vector<SlotIndex> slots;
  std::size_t local = 0;     // The engine's own match.
  std::size_t honoured = 0;  // Of the offer, in tokens.
  std::size_t offered = 0;
  std::size_t valid = 0;  // Positions whose KV is in the pages.
  std::size_t reported_tokens = 0;
  std::size_t reported_slots = 0;
  std::size_t decode_left = 0;
  bool reported = false;
};

class Engine {
 public:
  Engine(std::uint64_t seed, Options options) : random_(seed), options_(options) {
    memory_ = make_memory_store({.capacity_bytes = std::size_t{64} << 20,
                                 .max_objects = std::size_t{1} << 20,
                                 .atomic_publish = options.atomic,
                                 .between_steps = {}});
    store_ = memory_;
    if (options.faults) {
      const auto fault = [](FaultKind kind, StoreOp op, std::uint32_t chance, Reaction reaction) {
        FaultRule rule;
        rule.kind = kind;
        rule.op = op;
        rule.chance = chance;
        rule.reaction = reaction;
        return rule;
      };
      store_ = make_fault_store(
          memory_, {.seed = seed,
                    .rules = {fault(FaultKind::kCorrupt, StoreOp::kGet, 8'000, Reaction::kOk),
                              fault(FaultKind::kShorten, StoreOp::kGet, 4'000, Reaction::kOk),
                              fault(FaultKind::kError, StoreOp::kGet, 4'000, Reaction::kStale),
                              fault(FaultKind::kCorrupt, StoreOp::kPut, 4'000, Reaction::kOk),
                              fault(FaultKind::kLoseReply, StoreOp::kPut, 8'000, Reaction::kOk),
                              fault(FaultKind::kError, StoreOp::kPut, 8'000, Reaction::kDown),
                              fault(FaultKind::kError, StoreOp::kExists, 4'000, Reaction::kDown)},
                    .before_item = {}});
    }
    for (std::uint32_t rank = 0; rank < options_.ranks; ++rank) {
      pools_.push_back(std::make_unique<TestPool>(kSlots, kPageBytes));
      if (options_.layers > 0) {
        PageGroup& group = pools_.back()->layout.groups.front();
        group.layers.clear();
        for (std::uint32_t layer = 0; layer < layers(); ++layer) group.layers.push_back(layer);
        group.layer_bytes = kPageBytes / layers();
      }
      workers_.push_back(make_worker(rank));
    }
    scheduler_ = std::move(Scheduler::create({.tokens_per_block = B,
                                              .world_size = options_.ranks,
                                              .deployment_secret = "",
                                              .lookup_deadline = std::chrono::seconds(1),
                                              .layers = options_.layers,
                                              .max_tracked_requests = 64},
                                             kTestKeyspace, store_, clock_, logger_))
                     .value();
    for (std::size_t slot = kSlots; slot > 0; --slot) {
      free_.push_back(static_cast<SlotIndex>(slot - 1));
    }
  }

  void run(std::size_t steps) {
    for (std::size_t i = 0; i < steps && !::testing::Test::HasFailure(); ++i) {
      clock_->advance(std::chrono::milliseconds(random_.below(4000)));
      disturb();
      if (options_.staged) order_at_random();
      while (live_.size() < 6 && chance(70)) admit();
      step();
      for (std::uint64_t turns = random_.below(4); turns > 0; --turns) {
        if (executor_->pending() > 0) (void)executor_->step_at(random_.below(executor_->pending()));
      }
    }
    finish_all();
  }

  std::uint64_t loaded() const { return loaded_; }
  std::uint64_t failures() const { return load_failures_; }
  std::uint64_t tier_hits() const { return tier_hits_; }
  std::uint64_t tier_evictions() const { return tier_evictions_; }

 private:
  std::unique_ptr<Worker> make_worker(std::uint32_t rank) {
    WorkerOptions options;
    options.rank = rank;
    options.world_size = options_.ranks;
    options.tokens_per_block = B;
    options.granularity = options_.layers > 0 ? Granularity::kLayer : Granularity::kBlock;
    options.staging_bytes = std::size_t{300} << 10;
    options.save_queue_bytes = 30 * kPageBytes;
    options.batch_blocks = 5;
    options.staged = options_.staged;
    if (options.staged) options.staging_bytes = std::size_t{100} << 10;
    std::unique_ptr<Worker> worker =
        std::move(Worker::create(options, {.store = store_,
                                           .executor = executor_,
                                           .clock = clock_,
                                           .logger = logger_,
                                           .copier = make_host_page_copier()}))
            .value();
    EXPECT_TRUE(worker->register_layout(kTestKeyspace, pools_[rank]->layout).ok());
    return worker;
  }

  bool chance(std::uint32_t percent) { return random_.chance(percent * 10'000); }

  /// The store loses an object now and then.
  void disturb() {
    if (!options_.faults || !chance(20)) return;
    const std::vector<std::string> keys = memory_->keys();
    if (!keys.empty()) (void)memory_->remove({keys[random_.below(keys.size())]}, {});
  }

  /// What a leader might say: any blocks, any release, nothing that the plans rest on. The loads
  /// find room beside one hold.
  void order_at_random() {
    for (const auto& worker : workers_) {
      const std::shared_ptr<StageRank> rank = worker->stage_rank();
      if (chance(70)) {
        const auto from = static_cast<std::uint32_t>(random_.below(4));
        rank->release({.hold = last_hold_, .from_block = from});
      }
      if (!chance(40) || live_.empty()) continue;
      rank->keep_only({}, last_hold_);
      const Request& request = live_[random_.below(live_.size())];
      Result<BlockChain> chain =
          BlockChain::create({.tokens_per_block = B, .deployment_secret = ""}, scope(request), {});
      ASSERT_TRUE(chain.ok() && chain->append(request.tokens).ok());
      rank->stage({.hold = ++last_hold_,
                   .blocks = {chain->blocks().begin(), chain->blocks().end()},
                   .fetch_budget = std::chrono::seconds(random_.below(20))},
                  [](const StageProgress&) {});
    }
  }

  void set_tokens(Request& request, std::vector<Token> tokens) {
    request.tokens = std::move(tokens);
    while (request.digests.size() < request.tokens.size()) {
      const std::size_t at = request.digests.size();
      const std::uint64_t before = at == 0 ? mix_bits(static_cast<std::uint64_t>(request.salt) + 99)
                                           : request.digests.back();
      request.digests.push_back(
          mix_bits(before ^ mix_bits(static_cast<std::uint64_t>(request.tokens[at]) + 1)));
    }
    remember_names(request);
  }

  void remember_names(const Request& request) {
    Result<BlockChain> chain =
        BlockChain::create({.tokens_per_block = B, .deployment_secret = ""}, scope(request), {});
    ASSERT_TRUE(chain.ok() && chain->append(request.tokens).ok());
    for (std::size_t b = 0; b < chain->blocks().size(); ++b) {
      const auto first = request.digests.begin() + static_cast<std::ptrdiff_t>(b * B);
      std::copy_n(first, B, names_[to_hex(chain->blocks()[b])].begin());
    }
  }

  RequestScope scope(const Request& request) const {
    RequestScope scope;
    if (request.salt != 0) scope.cache_salt = request.salt;
    return scope;
  }

  void admit() {
    Request request;
    request.id = ++last_id_;
    request.salt = static_cast<std::int64_t>(random_.below(2));
    // Few different beginnings, so that prefixes meet.
    std::vector<Token> tokens;
    const std::size_t length = 1 + random_.below(9 * B);
    const auto family = static_cast<Token>(random_.below(3));
    const std::size_t shared = random_.below(length + 1);
    for (std::size_t i = 0; i < length; ++i) {
      const bool in_family = i < shared;
      tokens.push_back(in_family ? family * 1000 + static_cast<Token>(i)
                                 : static_cast<Token>(random_.below(100'000)));
    }
    request.prompt = length;
    request.decode_left = random_.below(3 * B);
    set_tokens(request, std::move(tokens));
    if (allocate(request)) live_.push_back(std::move(request));
  }

  /// Query, pages, and what the engine has of its own. False if there are no pages.
  bool allocate(Request& request) {
    const std::size_t pages = (request.tokens.size() + B - 1) / B;
    if (free_.size() < pages + 8) return false;
    request.local = chance(30) ? random_.below(request.prompt) : 0;
    if (chance(70)) request.local -= request.local % B;
    const RequestContent content{request.tokens, request.prompt, scope(request), {}};
    const Result<Offer> offer = scheduler_->query(request.id, content, request.local);
    EXPECT_TRUE(offer.ok());
    offered_blocks_ += offer->blocks;
    EXPECT_TRUE(offer->blocks == 0 || request.local + offer->tokens < request.prompt);
    request.offered = request.honoured = offer->tokens;
    if (chance(5)) return false;  // Dropped after the query; an allocation never follows.
    if (offer->tokens > 0 && chance(10)) {
      request.honoured = random_.below(offer->tokens + 1);
      scheduler_->cancel_load(request.id, request.local + request.honoured);
    } else if (options_.honours_less && offer->blocks > 0 && chance(30)) {
      request.honoured = random_.below(offer->blocks) * B;
    }
    request.slots.clear();
    for (std::size_t i = 0; i < pages; ++i) request.slots.push_back(take_slot());
    request.valid = request.local;
    for (std::size_t p = 0; p < request.local; ++p) write(request, p);
    request.reported = false;
    request.reported_tokens = request.reported_slots = 0;
    scheduler_->allocated(request.id, request.slots);
    return true;
  }

  SlotIndex take_slot() {
    const SlotIndex slot = free_.back();
    free_.pop_back();
    return slot;
  }

  void free_slots(Request& request) {
    for (const SlotIndex slot : request.slots) {
      for (auto& pool : pools_) pool->poison(slot);
      free_.push_back(slot);  // The next one to be handed out.
    }
    request.slots.clear();
  }

  std::uint32_t layers() const { return std::max(options_.layers, 1u); }
  std::size_t chunk_bytes() const { return kPositionBytes / layers(); }

  /// One layer of a position: a page is its layers, a layer its positions.
  std::span<std::byte> position(std::uint32_t rank, const Request& request, std::size_t p,
                                std::uint32_t layer) {
    const std::size_t at = (layer * B + p % B) * chunk_bytes();
    return pools_[rank]->page(request.slots[p / B]).subspan(at, chunk_bytes());
  }
  std::span<const std::byte> chunk(const std::vector<std::byte>& bytes, std::uint32_t layer) const {
    return std::span(bytes).subspan(layer * chunk_bytes(), chunk_bytes());
  }
  static std::vector<std::byte> bytes_of(std::uint64_t digest, std::uint32_t rank) {
    std::vector<std::byte> bytes(kPositionBytes);
    Random(digest + rank).fill(bytes);
    return bytes;
  }
  void write(std::uint32_t rank, const Request& request, std::size_t p, std::uint32_t layer) {
    const std::vector<std::byte> bytes = bytes_of(request.digests[p], rank);
    std::ranges::copy(chunk(bytes, layer), position(rank, request, p, layer).begin());
  }
  void write(const Request& request, std::size_t p) {
    for (std::uint32_t rank = 0; rank < options_.ranks; ++rank) {
      for (std::uint32_t layer = 0; layer < layers(); ++layer) write(rank, request, p, layer);
    }
  }
  bool is_right(std::uint32_t rank, const Request& request, std::size_t p, std::uint32_t layer) {
    const std::vector<std::byte> bytes = bytes_of(request.digests[p], rank);
    return std::ranges::equal(chunk(bytes, layer), position(rank, request, p, layer));
  }

  struct Pass {
    std::size_t index = 0;  // In live_.
    std::size_t from = 0;
    std::size_t count = 0;
  };

  void step() {
    leave_at_random();
    std::vector<Pass> passes;
    std::vector<StepRequest> batch;
    std::vector<std::vector<SlotIndex>> slot_deltas(live_.size());
    for (std::size_t i = 0; i < live_.size(); ++i) {
      if (chance(15)) continue;  // Not in this batch, perhaps not even for its first time.
      schedule(i, &slot_deltas[i], &passes, &batch);
    }
    const Result<StepPlan> plan = decode_step_plan(
        std::as_bytes(std::span<const char>(encode_step_plan(scheduler_->plan_step(batch)))));
    ASSERT_TRUE(plan.ok());
    for (const Pass& pass : passes) mark_reported(live_[pass.index]);

    std::set<RequestId> failed;
    const auto note = [&failed, this](const std::vector<LoadFailure>& failures) {
      load_failures_ += failures.size();
      for (const LoadFailure& failure : failures) failed.insert(failure.request);
      return failures.empty();
    };
    for (auto& worker : workers_) {
      worker->bind(*plan);
      const std::vector<LoadFailure> failures = worker->load(0);
      pages_loaded_ += plan->loads.size() - failures.size();
      (void)note(failures);
    }
    EXPECT_TRUE(options_.faults || failed.empty());
    // A load that fails on one rank of several ends the step for all of them. A single rank may
    // fail the request alone and go on with the others.
    const auto may_go_on = [&] { return failed.empty() || options_.ranks == 1; };
    read_wrong_.clear();
    if (may_go_on()) {
      for (std::uint32_t rank = 0; rank < options_.ranks; ++rank) {
        compute(rank, passes, failed, note);
      }
      EXPECT_TRUE(options_.faults || failed.empty());
    }
    if (may_go_on()) {
      finish_loads(*plan);
      for (std::uint32_t rank = 0; rank < options_.ranks; ++rank) {
        (void)note(workers_[rank]->save(0));
      }
      for (const Pass& pass : passes) {
        Request& request = live_[pass.index];
        if (!failed.contains(request.id)) request.valid = pass.from + pass.count;
      }
    }
    const bool goes_on = may_go_on();
    for (const RequestId id : read_wrong_) {
      EXPECT_TRUE(!goes_on || failed.contains(id)) << id << " has read what was not there";
    }
    for (const RequestId id : failed) end(id, true);
    if (!goes_on) {
      while (!live_.empty()) end(live_.back().id, true);
      return;
    }
    sample(passes);
  }

  /// What was loaded is valid now, also for requests that are not in the batch.
  void finish_loads(const StepPlan& plan) {
    for (Request& request : live_) {
      const bool loads = std::ranges::any_of(
          plan.loads, [&request](const PageTask& task) { return task.request == request.id; });
      if (loads) request.valid = std::max(request.valid, request.local + request.honoured);
    }
  }

  void schedule(std::size_t index, std::vector<SlotIndex>* slot_delta, std::vector<Pass>* passes,
                std::vector<StepRequest>* batch) {
    Request& request = live_[index];
    const bool first = !request.reported;
    const std::size_t from = first ? request.local + request.honoured : request.valid;
    const std::size_t known = request.tokens.size();
    if (from >= known) return;
    std::size_t count = known - from;
    if (from + 1 < known && chance(60)) count = 1 + random_.below(count);
    const bool took_less = request.honoured < request.offered;
    // An engine that took less than it was offered tells so by its pages, or runs the whole prompt.
    if (first && took_less && count == request.prompt - request.local - request.offered) {
      if (--count == 0) return;
    }
    while (request.slots.size() * B < from + count) request.slots.push_back(take_slot());
    slot_delta->assign(request.slots.begin() + static_cast<std::ptrdiff_t>(request.reported_slots),
                       request.slots.end());
    passes->push_back({index, from, count});
    batch->push_back({.id = request.id,
                      .is_new = first,
                      .new_tokens = std::span(request.tokens).subspan(request.reported_tokens),
                      .new_slots = *slot_delta,
                      .computed_tokens = first ? request.local : from,
                      .scheduled_tokens = count});
  }

  static void mark_reported(Request& request) {
    request.reported = true;
    request.reported_tokens = request.tokens.size();
    request.reported_slots = request.slots.size();
  }

  /// How often the hooks of a layer are called, and in which order layers come.
  struct Hooks {
    bool backwards = false;
    std::vector<int> calls;
  };
  Hooks draw_hooks() {
    Hooks hooks{.calls = std::vector<int>(layers(), 1)};
    if (options_.layers == 0 || chance(75)) return hooks;
    hooks.backwards = chance(30);
    const bool none = chance(40);
    for (int& calls : hooks.calls) calls = none ? 0 : static_cast<int>(random_.below(3));
    return hooks;
  }

  /// The pass of one rank. Whether it reads what is not there is known to the worker at its end.
  template <typename Note>
  void compute(std::uint32_t rank, const std::vector<Pass>& passes,
               const std::set<RequestId>& failed, const Note& note) {
    Worker& worker = *workers_[rank];
    const std::set<RequestId> before = failed;
    const Hooks hooks = draw_hooks();
    for (std::uint32_t n = 0; n < layers(); ++n) {
      const std::uint32_t layer = hooks.backwards ? layers() - 1 - n : n;
      for (int i = 0; i < hooks.calls[layer]; ++i) {
        if (!note(worker.wait_for_layer(layer, 0)) && options_.ranks > 1) return;
      }
      for (const Pass& pass : passes) {
        const Request& request = live_[pass.index];
        if (before.contains(request.id)) continue;
        for (std::size_t p = 0; p < pass.from; ++p) {
          if (!is_right(rank, request, p, layer)) read_wrong_.insert(request.id);
        }
        for (std::size_t p = pass.from; p < pass.from + pass.count; ++p) {
          write(rank, request, p, layer);
        }
      }
      for (int i = 0; i < hooks.calls[layer]; ++i) worker.layer_computed(layer, 0);
      if (chance(20) && executor_->pending() > 0) (void)executor_->step();
    }
  }

  /// New tokens, ends and preemptions.
  void sample(const std::vector<Pass>& passes) {
    std::vector<RequestId> ran;
    for (const Pass& pass : passes) {
      if (pass.index < live_.size()) ran.push_back(live_[pass.index].id);
    }
    for (const RequestId id : ran) {
      const auto at = std::ranges::find(live_, id, &Request::id);
      if (at == live_.end() || at->valid < at->tokens.size()) continue;
      if (at->decode_left == 0 || free_.size() < 8) {
        end(id, true);
        continue;
      }
      --at->decode_left;
      std::vector<Token> tokens = at->tokens;
      tokens.push_back(static_cast<Token>(at->digests.back() % 1000));
      set_tokens(*at, std::move(tokens));
    }
  }

  void leave_at_random() {
    if (live_.empty() || !chance(15)) return;
    Request& request = live_[random_.below(live_.size())];
    if (chance(50)) return end(request.id, chance(60));  // Cancelled, not always with a word.
    // Preempted: the allocation goes, the request is queried and announced as new again.
    free_slots(request);
    if (chance(60)) scheduler_->finished(request.id);
    if (!allocate(request)) end(request.id, true);
  }

  void end(RequestId id, bool told) {
    const auto at = std::ranges::find(live_, id, &Request::id);
    if (at == live_.end()) return;
    free_slots(*at);
    if (told) {
      scheduler_->finished(id);
    } else {
      silent_.push_back(id);
    }
    live_.erase(at);
  }

  void finish_all() {
    while (!live_.empty()) end(live_.back().id, true);
    for (const RequestId id : silent_) scheduler_->finished(id);
    for (RequestId id = 0; id <= last_id_; ++id) scheduler_->finished(id);
    EXPECT_EQ(scheduler_->stats().requests_tracked, 0u);
    EXPECT_EQ(scheduler_->stats().blocks_offered, offered_blocks_);
    EXPECT_TRUE(scheduler_->plan_step({}).empty());
    executor_->run_all();
    std::uint64_t loaded = 0;
    std::uint64_t saved = 0;
    for (auto& worker : workers_) {
      EXPECT_TRUE(worker->drain(Deadline{}));
      if (options_.staged) worker->stage_rank()->keep_only({}, last_hold_);
      const WorkerStats stats = worker->stats();
      EXPECT_EQ(stats.holds_open + stats.tier_blocks_held + stats.fetches_in_flight, 0u);
      tier_hits_ += stats.tier_hits;
      tier_evictions_ += stats.tier_evictions;
      EXPECT_EQ(stats.save_queue_bytes, 0u);
      EXPECT_EQ(stats.pages_out_of_range, 0u);
      EXPECT_EQ(stats.bytes_loaded, stats.blocks_loaded * kPageBytes);
      loaded += stats.blocks_loaded;
      saved += stats.blocks_saved;
    }
    // Loads that go on behind a pass may be broken off.
    EXPECT_TRUE(options_.layers > 0 ? loaded <= pages_loaded_ : loaded == pages_loaded_);
    loaded_ = loaded;
    check_store(saved);
    for (auto& pool : pools_) EXPECT_TRUE(pool->guards_intact());
  }

  /// Every object has the bytes of its name, except for damage that the fault store did: that must
  /// be refused.
  void check_store(std::uint64_t saved) {
    std::uint64_t objects = 0;
    for (const std::string& key : memory_->keys()) {
      // kvc1/<32 hex>/<64 hex>/r<rank> or .../layers/r<rank>/<layer>, and the markers
      const std::string name = key.substr(38, 64);
      ASSERT_TRUE(names_.contains(name)) << "nobody computed " << key;
      const std::string rest = key.substr(38 + 64);
      const std::string_view head = options_.layers > 0 ? "/layers/r" : "/r";
      ASSERT_TRUE(rest.starts_with(head) || rest.ends_with("/manifest")) << key;
      if (rest.size() != head.size() + (options_.layers > 0 ? 3 : 1)) continue;
      ++objects;
      const auto rank = static_cast<std::uint32_t>(rest[head.size()] - '0');
      const auto layer = options_.layers > 0 ? static_cast<std::uint32_t>(rest.back() - '0') : 0;
      std::vector<std::byte> object(kBlockHeaderBytes + kPageBytes / layers());
      const GetResult got = memory_->get({{key, object.data(), object.size()}}, {}).front();
      BlockDescription claims;
      std::uint16_t version = 0;
      const bool readable = got.reaction == Reaction::kOk && got.bytes == object.size() &&
                            read_block_description(object, &claims, &version);
      if (!readable || verify_block(claims, object) != Rejection::kNone) {
        ASSERT_TRUE(options_.faults) << key;
        continue;
      }
      std::vector<std::byte> expected;
      for (const std::uint64_t digest : names_[name]) {
        const std::vector<std::byte> bytes = bytes_of(digest, rank);
        const std::span<const std::byte> part = chunk(bytes, layer);
        expected.insert(expected.end(), part.begin(), part.end());
      }
      ASSERT_TRUE(std::ranges::equal(expected, std::span(object).subspan(kBlockHeaderBytes)))
          << "wrong bytes under " << key;
    }
    EXPECT_TRUE(options_.faults || saved * layers() == objects) << saved << " " << objects;
  }

  Random random_;
  const Options options_;
  std::shared_ptr<testlib::SimClock> clock_ = std::make_shared<testlib::SimClock>();
  std::shared_ptr<testlib::CollectingLogger> logger_ =
      std::make_shared<testlib::CollectingLogger>();
  std::shared_ptr<testlib::SteppableExecutor> executor_ =
      std::make_shared<testlib::SteppableExecutor>();
  std::shared_ptr<MemoryStore> memory_;
  std::shared_ptr<Store> store_;
  std::vector<std::unique_ptr<TestPool>> pools_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::unique_ptr<Scheduler> scheduler_;

  std::vector<SlotIndex> free_;
  std::vector<Request> live_;
  std::vector<RequestId> silent_;
  std::map<std::string, std::array<std::uint64_t, B>> names_;
  RequestId last_id_ = 0;
  HoldId last_hold_ = 0;
  std::uint64_t tier_hits_ = 0;
  std::uint64_t tier_evictions_ = 0;
  std::uint64_t offered_blocks_ = 0;
  std::uint64_t pages_loaded_ = 0;
  std::uint64_t loaded_ = 0;        // By the workers' counters.
  std::set<RequestId> read_wrong_;  // In this step.
  std::uint64_t load_failures_ = 0;
};

struct Totals {
  std::uint64_t loaded = 0;
  std::uint64_t failures = 0;
  std::uint64_t tier_hits = 0;
  std::uint64_t tier_evictions = 0;
};

Totals live_many(Options options) {
  const std::uint64_t seed = testlib::test_seed(20);
  Totals totals;
  for (std::uint64_t i = 0; i < 12 && !::testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE("seed " + std::to_string(seed + i));
    Engine engine(seed + i, options);
    engine.run(150);
    totals.loaded += engine.loaded();
    totals.failures += engine.failures();
    totals.tier_hits += engine.tier_hits();
    totals.tier_evictions += engine.tier_evictions();
  }
  return totals;
}

class RequestLives : public OnBothKinds {};
INSTANTIATE_TEST_SUITE_P(, RequestLives, ::testing::Bool(), kind_name);

TEST_P(RequestLives, EveryByteIsRight) {
  const Totals totals = live_many({.atomic = GetParam()});
  EXPECT_GT(totals.loaded, 1000u) << "the test must load something";
  EXPECT_EQ(totals.failures, 0u);
}

TEST_P(RequestLives, EveryByteIsRightWhenOffersAreHonouredInPart) {
  EXPECT_GT(live_many({.atomic = GetParam(), .honours_less = true}).loaded, 1000u);
}

TEST_P(RequestLives, EveryByteIsRightWhenTheStoreLosesAndDamagesObjects) {
  for (const std::uint32_t ranks : {1u, 2u}) {
    const Totals totals =
        live_many({.atomic = GetParam(), .faults = true, .honours_less = true, .ranks = ranks});
    EXPECT_GT(totals.loaded, 1000u);
    EXPECT_GT(totals.failures, 10u);
  }
}

TEST_P(RequestLives, EveryByteIsRightLayerByLayer) {
  EXPECT_GT(live_many({.atomic = GetParam(), .layers = 3}).loaded, 1000u);
}

TEST_P(RequestLives, EveryByteIsRightLayerByLayerWhenTheStoreLosesAndDamagesObjects) {
  for (const std::uint32_t ranks : {1u, 2u}) {
    const Totals totals = live_many(
        {.atomic = GetParam(), .faults = true, .honours_less = true, .ranks = ranks, .layers = 3});
    EXPECT_GT(totals.loaded, 500u);
    EXPECT_GT(totals.failures, 10u);
  }
}

TEST_P(RequestLives, EveryByteIsRightFromAHostTierThatIsTooSmall) {
  for (const bool faults : {false, true}) {
    const Totals totals = live_many({.atomic = GetParam(), .faults = faults, .staged = true});
    EXPECT_GT(totals.loaded, 1000u);
    EXPECT_GT(totals.tier_hits, 300u);
    EXPECT_LT(totals.tier_hits, totals.loaded);
    EXPECT_GT(totals.tier_evictions, 300u);
  }
}

}  // namespace
}  // namespace kvc
