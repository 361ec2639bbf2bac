#include "connector/tracked_request.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <utility>

#include "base/planted.h"

namespace kvc {
namespace {

std::vector<SlotIndex> sorted_pages(std::span<const SlotIndex> slots) {
  std::vector<SlotIndex> pages;
  pages.reserve(slots.size());
  std::ranges::copy_if(slots, std::back_inserter(pages), [](SlotIndex s) { return s >= 0; });
  std::ranges::sort(pages);
  return pages;
}

}  // namespace

TrackedRequest::TrackedRequest(const BlockHashOptions& hashing, BlockChain chain, Identity identity)
    : hashing_(&hashing), chain_(std::move(chain)), identity_(std::move(identity)) {}

void TrackedRequest::set_promise(const Promise& promise) {
  promised_ = promise.blocks;
  promised_tokens_ = promise.blocks.size() * hashing_->tokens_per_block;
  probed_at_ = promise.probed_at;
  hold_ = promise.hold;
}

void TrackedRequest::set_decision(const Decision& decision) {
  decision_ = decision;
  absent_from_ = decision.absent_from;
  if (absent_from_ != Decision::kNothingAbsent) absent_from_ += promised_.first;
}

std::size_t TrackedRequest::needed_blocks() const {
  if (!allocated_) return promised_.size();
  return owes_loads_ ? loaded_.size() : 0;
}

bool TrackedRequest::is_decoding(const StepRequest& step) const {
  return !step.is_new && step.scheduled_tokens > 0 &&
         step.computed_tokens >= identity_.prompt_tokens;
}

bool TrackedRequest::is_same_question(const BlockChain& other, const Identity& identity) const {
  // Equal names cover scope and media, as far as any block of the request is concerned.
  return !allocated_ && !reported_ && identity_.prompt_tokens == identity.prompt_tokens &&
         identity_.computed_tokens == identity.computed_tokens &&
         std::ranges::equal(chain_.blocks(), other.blocks()) &&
         std::ranges::equal(chain_.tokens(), other.tokens());
}

bool TrackedRequest::is_of(const RequestScope& scope, const std::vector<MediaItem>& media) const {
  return same_scope(identity_.scope, scope) && same_media(identity_.media, media);
}

void TrackedRequest::keep_names(ChainCache* cache) {
  try {
    cache->keep(std::move(chain_), std::move(identity_.scope), std::move(identity_.media));
  } catch (const std::exception&) {
    // Without memory for it the next prompt is hashed anew, nothing more.
  }
}

bool TrackedRequest::has_page(std::size_t block) const {
  return block < slots_.size() && slots_[block] >= 0;
}

/// The pages of a prompt tell whether the engine's blocks have the size that names assume.
bool TrackedRequest::pages_fit_prompt() const {
  const std::size_t block_tokens = hashing_->tokens_per_block;
  const std::size_t needed =
      identity_.prompt_tokens / block_tokens + (identity_.prompt_tokens % block_tokens != 0);
  return exact_pages_ ? needed == slots_.size() : needed <= slots_.size();
}

/// A page that stands for two blocks holds what was written last.
bool TrackedRequest::pages_differ() const {
  const std::vector<SlotIndex> pages = sorted_pages(slots_);
  return std::ranges::adjacent_find(pages) == pages.end();
}

/// Whether one of `slots` is a page of this request already, or comes twice. Looks through the
/// pages once, however many are new.
bool TrackedRequest::has_any_of(std::span<const SlotIndex> slots) const {
  const std::vector<SlotIndex> added = sorted_pages(slots);
  if (added.empty()) return false;
  if (std::ranges::adjacent_find(added) != added.end()) return true;
  return std::ranges::any_of(slots_, [&added](SlotIndex slot) {
    return slot >= added.front() && slot <= added.back() && std::ranges::binary_search(added, slot);
  });
}

bool TrackedRequest::allocated(std::span<const SlotIndex> slots, bool exact_pages) {
  slots_.assign(slots.begin(), slots.end());
  exact_pages_ = exact_pages;
  const bool first_time = !allocated_;
  allocated_ = true;
  reported_ = false;
  next_save_ = 0;
  computed_without_page_.clear();

  std::size_t end = promised_.first;
  while (end < promised_.end && has_page(end)) ++end;
  const bool reaches = promised_.empty() || end == promised_.end;
  // Told twice without a query between: the same promise, so its loads are not owed twice.
  if (first_time) {
    loaded_ = {promised_.first, end};
    owes_loads_ = !loaded_.empty();
  } else if (owes_loads_) {
    loaded_.end = std::min(loaded_.end, end);
    owes_loads_ = !loaded_.empty();
  } else {
    promised_tokens_ = 0;
  }
  pages_fit_ = pages_fit_prompt() && pages_differ();
  savable_ = reaches && pages_fit_;
  return savable_;
}

void TrackedRequest::take_loads(RequestId id, std::vector<PageTask>* loads) {
  if (!owes_loads_) return;
  const std::span<const BlockHash> blocks = chain_.blocks();
  for (std::size_t b = loaded_.first; b < loaded_.end; ++b) {
    loads->push_back({id, blocks[b], slots_[b]});
  }
  owes_loads_ = false;
}

void TrackedRequest::cancel_from(std::size_t start_tokens) {
  const std::size_t block_tokens = hashing_->tokens_per_block;
  const std::size_t first_token = promised_.first * block_tokens;
  const std::size_t used = start_tokens > first_token ? start_tokens - first_token : 0;
  promised_tokens_ = std::min(promised_tokens_, used);
  const std::size_t end =
      promised_.first + promised_tokens_ / block_tokens + (promised_tokens_ % block_tokens != 0);
  promised_.end = std::min(promised_.end, end);
  if (!owes_loads_) return;
  loaded_.end = std::min(loaded_.end, promised_.end);
  owes_loads_ = !loaded_.empty();
}

void TrackedRequest::report(const StepRequest& step, std::vector<PageTask>* saves) {
  const bool first_report = step.is_new && !reported_;
  begin_report(step);
  // Tokens beyond those that are known cannot have been computed: nothing of this fits together.
  if (step.computed_tokens > chain_.tokens().size()) never_save();
  if (!savable_) return;

  const std::size_t valid = tokens_valid_after(step, first_report);
  mark_blocks_without_page(std::min(step.computed_tokens, valid), valid);
  const std::span<const BlockHash> blocks = chain_.blocks();
  const std::size_t complete = valid / hashing_->tokens_per_block;
  for (; next_save_ < complete; ++next_save_) {
    const std::size_t b = next_save_;
    const bool orphan = b < computed_without_page_.size() && computed_without_page_[b];
    if (orphan || !has_page(b) || loaded_.contains(b)) continue;
    saves->push_back({step.id, blocks[b], slots_[b], b >= absent_from_});
  }
}

/// Brings tokens and pages up to date.
void TrackedRequest::begin_report(const StepRequest& step) {
  if (step.is_new) {
    // A promise whose allocation was never told was not loaded: pages that count as computed hold
    // nothing.
    if (has_open_promise()) never_save();
    if (reported_) {
      // Announced once more: another allocation, of which no query and no promise is known.
      promised_ = loaded_ = {};
      promised_tokens_ = 0;
      owes_loads_ = false;
      next_save_ = 0;
      computed_without_page_.clear();
      savable_ = pages_fit_;
    }
    reported_ = true;
    slots_.assign(step.new_slots.begin(), step.new_slots.end());
    if (!adopt_tokens(step.new_tokens) || !pages_differ()) never_save();
    return;
  }
  // A delta to a report that never came cannot be placed.
  if (!reported_) never_save();
  if (has_any_of(step.new_slots)) never_save();
  slots_.insert(slots_.end(), step.new_slots.begin(), step.new_slots.end());
  if (savable_ && !chain_.append(step.new_tokens).ok()) never_save();
}

/// Makes `tokens` all that is known. False if they cannot be named, or contradict what was loaded.
bool TrackedRequest::adopt_tokens(std::span<const Token> tokens) {
  if (tokens.size() < identity_.prompt_tokens) return false;
  const std::span<const Token> known = chain_.tokens();
  if (tokens.size() >= known.size() && std::ranges::equal(known, tokens.first(known.size()))) {
    return chain_.append(tokens.subspan(known.size())).ok();
  }
  Result<BlockChain> rebuilt = BlockChain::create(*hashing_, identity_.scope, identity_.media);
  if (!rebuilt.ok() || !rebuilt->append(tokens).ok()) return false;
  const std::span<const BlockHash> before = chain_.blocks();
  const std::span<const BlockHash> after = rebuilt->blocks();
  const bool fits = loaded_.empty() || (after.size() >= loaded_.end &&
                                        after[loaded_.end - 1] == before[loaded_.end - 1]);
  chain_ = std::move(rebuilt).value();
  return fits;
}

/// Positions below the result hold valid KV of known tokens once the pass is over.
std::size_t TrackedRequest::tokens_valid_after(const StepRequest& step, bool first_report) const {
  const std::size_t known = chain_.tokens().size();
  const std::size_t prompt = identity_.prompt_tokens;
  std::size_t from = step.computed_tokens;
  // A first report begins where the load begins, not where the pass does. The promise is added only
  // if the pass then ends exactly with the prompt: had the engine taken less of it, this pass would
  // be longer, or its pages would end earlier. Otherwise the next report, which is absolute,
  // catches up.
  if (first_report && promised_tokens_ > 0 && from == identity_.computed_tokens && from <= prompt &&
      promised_tokens_ <= prompt - from &&
      step.scheduled_tokens == prompt - from - promised_tokens_) {
    from += promised_tokens_;
  }
  if (KVC_PLANTED("trust_offer") && first_report) {
    from = step.computed_tokens + promised_tokens_;
  }
  if (from >= known) return known;
  return from + std::min(step.scheduled_tokens, known - from);
}

/// What a pass computes for a block without a page goes nowhere; a page that comes later does not
/// bring it back.
void TrackedRequest::mark_blocks_without_page(std::size_t first_token, std::size_t end_token) {
  const std::size_t block_tokens = hashing_->tokens_per_block;
  if (first_token >= end_token) return;
  const std::size_t last = (end_token - 1) / block_tokens;
  for (std::size_t b = first_token / block_tokens; b <= last; ++b) {
    if (has_page(b)) continue;
    if (computed_without_page_.size() <= b) computed_without_page_.resize(b + 1);
    computed_without_page_[b] = true;
  }
}

}  // namespace kvc
