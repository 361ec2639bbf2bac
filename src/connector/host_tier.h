// The host tier of one rank: verified blocks in staging pages, kept warm (L1), held for promises,
// and the fetches that bring them. A state machine without threads, clock or I/O.
//
//   stage()           an order: what is resident is held at once, the rest is wanted
//   begin_fetches()   what the driver is to fetch now, each block into a page of its own
//   fetched()         how that ended; whoever waits for the block is served
//   take_reports()    what the leader is to be told
//
// Invariants
//   * A page enters with fetched(kVerified) or put(), and its payload never changes while it is
//     resident.
//   * A block is fetched at most once at a time (single flight); later orders join.
//   * A page that is held is never evicted, and none is evicted that somebody else has a lease on:
//     a save that is still queued, a load that is copying, a transfer that was given up.
//   * `staged` of a hold counts leading blocks that are resident and held; it never shrinks until
//     the leader releases something, and `done` is told at most once.
//   * A hold ends by release(), keep_only() or close() alone, never by time.
//   * Orders whose hold was let go before they were fetched go on without holding anything
//     ("loose"), until they give up. They evict only what was last used before they came, so that
//     the beginning of a prefix is not pushed out by its end.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "connector/fetch_end.h"
#include "connector/staging.h"
#include "kvc/block_hash.h"
#include "kvc/clock.h"
#include "kvc/stage.h"

namespace kvc {

struct HostTierOptions {
  std::size_t holds_max = kHoldsMax;  ///< One more order is refused (kNoRoom).
  std::size_t loose_max = 16;       ///< Orders that go on without a hold; beyond, the oldest ends.
  std::size_t releases_max = 4096;  ///< Remembered, in case their order comes later.
  std::size_t spare_pages = 0;      ///< Free pages that neither fetches nor saves take.
};

/// Not thread-safe. Where memory runs out, stage(), keep_only() and put() throw std::bad_alloc and
/// have changed nothing, pages that are asked for are not given, and a block that cannot be written
/// down counts as one without room. Whatever ends something needs no memory.
class HostTier {
 public:
  struct Fetch {
    BlockHash block;
    StagingLease page;   ///< To fetch into; kept by the caller until fetched().
    Instant give_up_at;  ///< Of the order for which it is fetched.
  };

  explicit HostTier(std::shared_ptr<StagingPool> pages, HostTierOptions options = {});

  // What the leader says ----------------------------------------------------------------------

  /// An order that is known, or whose release came first, is ignored. Past `give_up_at` nothing
  /// more is fetched for it.
  void stage(StageOrder order, Instant give_up_at);
  /// Of a hold that is not known: its order may be on the way, and is cut when it comes.
  void release(const HoldRelease& release);
  /// Ends all holds up to `newest` but those of `live`. Of the former no order is taken any more;
  /// that of a live one may come yet.
  void keep_only(std::span<const HoldId> live, HoldId newest);
  /// One for each hold of which there is news. A hold that was released in part, as far as it is
  /// staged, has none any more.
  std::vector<StageProgress> take_reports();

  // Fetches -----------------------------------------------------------------------------------

  /// At most `max` blocks that holds wait for, earlier orders first; each is in flight until
  /// fetched(). Evicts; a block for which there is no page ends its order.
  std::vector<Fetch> begin_fetches(std::size_t max, Instant now);
  /// As above, for orders that have lost their hold.
  std::vector<Fetch> begin_loose_fetches(std::size_t max, Instant now);
  /// `page` is taken if the end is kVerified. A block that is not in flight is ignored.
  void fetched(const BlockHash& block, FetchEnd end, StagingLease page);
  /// Nothing can be fetched at all (no executor): what is wanted and not in flight has ended.
  void give_up_wanted();
  /// Blocks that holds wait for and that may have to be fetched. Counts to `at_most`: what looks at
  /// no more than that need not look through all orders.
  std::size_t wanted(std::size_t at_most = kAll) const { return count_wanted(wanting_, at_most); }
  std::size_t wanted_loose(std::size_t at_most = kAll) const {
    return count_wanted(wanting_loose_, at_most);
  }

  // Pages -------------------------------------------------------------------------------------

  /// Null if it is not resident. The lease keeps the page as it is.
  StagingLease find(const BlockHash& block);
  bool contains(const BlockHash& block) const { return entries_.contains(block); }
  /// Leading blocks that are resident.
  std::size_t resident_prefix(std::span<const BlockHash> blocks) const;
  /// A block whose payload is right by other means than a fetch: it was just saved, or its load has
  /// verified it. Serves whoever waits for it.
  void put(const BlockHash& block, StagingLease page);
  /// A page for a save, evicting others; null if saves have all that they may have, or none is
  /// left.
  StagingLease borrow_for_save();
  /// Evicts the page that was not used for longest. False if there is none to evict.
  bool make_room();
  /// Everything ends; later orders are answered with kUnavailable.
  void close();

  // Figures -----------------------------------------------------------------------------------

  std::size_t resident() const { return entries_.size(); }
  std::size_t held() const { return entries_.size() - idle_.size(); }
  std::size_t holds() const { return by_hold_.size(); }
  bool has_hold(HoldId hold) const { return by_hold_.contains(hold); }
  std::size_t in_flight() const { return flights_.size(); }
  std::uint64_t evictions() const { return evictions_; }
  /// Orders that ended before their last block, by StageEnd.
  std::uint64_t ended(StageEnd end) const { return ended_by_[static_cast<std::size_t>(end)]; }

 private:
  static constexpr std::size_t kAll = static_cast<std::size_t>(-1);
  using Sequence = std::uint64_t;  // Of orders, by arrival.
  enum class Place : std::uint8_t { kWanted, kInFlight, kHere };

  struct Entry {
    StagingLease page;
    std::size_t pins = 0;
    std::uint64_t used = 0;             // When it became idle, while it is.
    std::list<BlockHash>::iterator at;  // In idle_ or held_.
  };
  using Entries = std::unordered_map<BlockHash, Entry, BlockHashHasher>;
  struct Order {
    HoldId hold = 0;  // 0: loose.
    std::vector<BlockHash> blocks;
    std::vector<Place> places;  // By block. kHere: and held, unless the order is loose.
    Instant give_up_at{};
    std::uint64_t arrived = 0;  // On the scale of Entry::used.
    std::size_t limit = 0;      // Blocks from here on are of no use.
    std::size_t next = 0;       // Blocks before this are here or in flight.
    std::size_t staged = 0;     // Leading blocks that are here.
    StageEnd end = StageEnd::kAll;
    bool is_done = false;
    bool is_quiet = false;     // The leader has decided.
    std::list<Sequence> news;  // Its place in news_, as long as there are none.

    bool is_loose() const { return hold == 0; }
  };
  struct Waiter {
    Sequence order = 0;
    std::size_t block = 0;
  };

  void begin(Sequence sequence, Order& order);
  void prepare(Sequence sequence, Order& order);
  void take_back(Sequence sequence) noexcept;
  void go_on_loose_if_possible(const Order& order, std::size_t from) noexcept;
  bool begin_next_if_possible(Sequence sequence, Order& order, std::vector<Fetch>& fetches);
  StagingLease take_page_for(Sequence sequence, Order& order);
  void end_hold(Sequence sequence);
  void go_on_loose(const Order& order, std::size_t from);
  void end_loose(Sequence sequence);
  void fail(Sequence sequence, std::size_t block, StageEnd end);
  void cut(Sequence sequence, Order& order, std::size_t limit);
  void proceed(Sequence sequence, Order& order);
  void note_news(Order& order);
  void remember_release(const HoldRelease& release);
  /// Whether an order of that hold comes too late.
  bool is_settled(HoldId hold) const { return hold <= settled_up_to_ && !awaited_.contains(hold); }

  std::vector<Fetch> begin_of(std::set<Sequence>& wanting, std::size_t max, Instant now);
  bool begin_next(Sequence sequence, Order& order, std::vector<Fetch>& fetches);
  void serve(const BlockHash& block, const std::vector<Waiter>& waiters);
  std::size_t count_wanted(const std::set<Sequence>& wanting, std::size_t at_most) const;

  StagingLease take_page(StagingPool::Use use, std::uint64_t used_before);
  void insert(const BlockHash& block, StagingLease page);
  void touch(Entry& entry);
  void pin(Entry& entry);
  void unpin(const BlockHash& block);
  bool evict(std::uint64_t used_before);
  void discard(Entries::iterator idle);

  const std::shared_ptr<StagingPool> pages_;
  const HostTierOptions options_;
  Entries entries_;
  std::list<BlockHash> idle_;  // Of the entries that no hold needs, least recently used first.
  std::list<BlockHash> held_;  // Of all others.
  // Others had leases on all of them when they were last looked through; whoever relies on it knows
  // why that is still so.
  bool all_idle_leased_ = false;
  std::uint64_t claims_ended_ = 0;  // Of saves, when one last asked for a page.
  std::unordered_map<BlockHash, std::vector<Waiter>, BlockHashHasher> flights_;
  std::map<Sequence, Order> orders_;
  std::unordered_map<HoldId, Sequence> by_hold_;
  std::set<Sequence> wanting_;        // Holds that have something to fetch.
  std::set<Sequence> wanting_loose_;  // All loose orders.
  std::list<Sequence> news_;
  std::vector<StageProgress> refused_;
  std::unordered_map<HoldId, std::uint32_t> releases_;  // Of holds that are over, or not here yet.
  std::deque<HoldId> releases_by_age_;
  HoldId settled_up_to_ = 0;  // Of orders up to it, none is to come any more, ...
  std::set<HoldId> awaited_;  // ... but of these. Bounded by what the leader told last.
  Sequence last_sequence_ = 0;
  std::uint64_t uses_ = 0;
  std::uint64_t evictions_ = 0;
  std::array<std::uint64_t, 6> ended_by_{};  // By StageEnd.
  bool closed_ = false;
};

}  // namespace kvc
