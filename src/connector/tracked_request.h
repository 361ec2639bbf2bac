// What the scheduler knows of one request: its tokens and block names, its pages, what was promised
// to it, and which of its blocks have been handed out for saving.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "connector/decision_log.h"
#include "keyspace/chain_cache.h"
#include "kvc/block_hash.h"
#include "kvc/clock.h"
#include "kvc/scheduler.h"
#include "kvc/stage.h"
#include "kvc/step_plan.h"

namespace kvc {

/// Blocks [first, end) of a request.
struct BlockRange {
  std::size_t first = 0;
  std::size_t end = 0;

  bool empty() const { return end <= first; }
  std::size_t size() const { return empty() ? 0 : end - first; }
  bool contains(std::size_t block) const { return block >= first && block < end; }
};

struct Promise {
  BlockRange blocks;
  Instant probed_at{};  ///< When the store was asked; its lease counts from here.
  HoldId hold = 0;      ///< Keeps these blocks staged on every rank. 0: they are not staged.
};

/// Not thread-safe.
class TrackedRequest {
 public:
  struct Identity {
    RequestScope scope;
    std::vector<MediaItem> media;
    std::size_t prompt_tokens = 0;
    std::size_t computed_tokens = 0;  ///< The engine's own match at the query.
  };

  /// `chain` holds all tokens known at the query. `hashing` must outlive the request.
  TrackedRequest(const BlockHashOptions& hashing, BlockChain chain, Identity identity);

  /// REQUIRES: no allocation was told yet.
  void set_promise(const Promise& promise);
  Promise promise() const { return {.blocks = promised_, .probed_at = probed_at_, .hold = hold_}; }
  /// How the promise came about.
  const Decision& decision() const { return decision_; }
  /// Of the promise that was set.
  void set_decision(const Decision& decision);
  HoldId hold() const { return hold_; }
  /// The hold is over, or belongs to someone else.
  void forget_hold() { hold_ = 0; }
  /// Leading blocks of the promise that may still have to be loaded.
  std::size_t needed_blocks() const;
  /// Their names.
  std::span<const BlockHash> needed() const {
    return chain_.blocks().subspan(promised_.first, needed_blocks());
  }
  /// Whether a query for `other` would be the same question, asked before its answer was used.
  bool is_same_question(const BlockChain& other, const Identity& identity) const;

  bool is_of(const RequestScope& scope, const std::vector<MediaItem>& media) const;
  const BlockChain& chain() const { return chain_; }
  /// Hands the names over, for later requests. REQUIRES: the request is not used any more.
  void keep_names(ChainCache* cache);

  /// The pages of the prompt. False if they cannot be those of this prompt, or do not reach as far
  /// as the promise: then the request is served as far as they reach and never saved.
  bool allocated(std::span<const SlotIndex> slots, bool exact_pages);
  /// Names of the complete blocks of what is known of the request.
  std::span<const BlockHash> blocks() const { return chain_.blocks(); }
  bool has_pages() const { return allocated_; }
  /// Whether loads were promised and allocated, but not taken yet.
  bool owes_loads() const { return owes_loads_; }
  /// Whether an allocation may still come that relies on the promise.
  bool has_open_promise() const { return !allocated_ && !promised_.empty(); }
  /// Appends the promised loads, once per allocation.
  void take_loads(RequestId id, std::vector<PageTask>* loads);
  void cancel_from(std::size_t start_tokens);
  /// Whether a step computes beyond the prompt.
  bool is_decoding(const StepRequest& step) const;

  /// Takes in the report of one step and appends the blocks that its pass completes. Those that the
  /// query found to be absent from the store say so.
  void report(const StepRequest& step, std::vector<PageTask>* saves);
  /// Nothing of this allocation is saved from now on.
  void never_save() { savable_ = false; }

 private:
  void begin_report(const StepRequest& step);
  bool adopt_tokens(std::span<const Token> tokens);
  std::size_t tokens_valid_after(const StepRequest& step, bool first_report) const;
  void mark_blocks_without_page(std::size_t first_token, std::size_t end_token);
  bool pages_differ() const;
  bool has_any_of(std::span<const SlotIndex> slots) const;
  bool has_page(std::size_t block) const;
  bool pages_fit_prompt() const;

  const BlockHashOptions* hashing_;
  BlockChain chain_;
  Identity identity_;
  std::vector<SlotIndex> slots_;
  std::vector<bool> computed_without_page_;  // By block; shorter than the request when none.
  BlockRange promised_;
  std::size_t promised_tokens_ = 0;
  BlockRange loaded_;  // Handed out as loads for this allocation.
  Instant probed_at_{};
  HoldId hold_ = 0;
  Decision decision_;
  std::size_t absent_from_ = Decision::kNothingAbsent;  // Block of the request.
  std::size_t next_save_ = 0;                           // Blocks before it are decided.
  bool owes_loads_ = false;
  bool allocated_ = false;
  bool reported_ = false;
  bool exact_pages_ = false;
  bool pages_fit_ = true;
  bool savable_ = true;
};

}  // namespace kvc
