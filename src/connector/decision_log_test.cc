#include "connector/decision_log.h"

#include <gtest/gtest.h>

#include <numeric>

namespace kvc {
namespace {

Decision decision_of(RequestId request, std::size_t wanted) {
  Decision decision{.request = request};
  decision.want(wanted);
  return decision;
}

TEST(Decision, BlocksAreOfferedOrMissedForOneReason) {
  Decision decision = decision_of(7, 10);
  decision.matched = 2;
  EXPECT_EQ(to_line(decision),
            "request 7: matched 2, offered 10 of 10, ended by: the end of the prompt");
  decision.cut(10, PrefixEnd::kNoManifest);
  EXPECT_EQ(decision.end, PrefixEnd::kAll) << "nothing was missed for it";
  decision.cut(8, PrefixEnd::kNoManifest);
  decision.resident = 1;
  decision.cut(3, PrefixEnd::kLate, 4);
  decision.cut(5, PrefixEnd::kUntracked);
  EXPECT_EQ(to_line(decision),
            "request 7: matched 2, offered 3 of 10 (1 resident), ended by: late on rank 4");
  EXPECT_EQ(decision.absent_from, 8u) << "the store has those before, whatever else was missed";
  EXPECT_EQ(decision.missed[static_cast<std::size_t>(PrefixEnd::kNoManifest)], 2u);
  EXPECT_EQ(decision.missed[static_cast<std::size_t>(PrefixEnd::kLate)], 5u);
  EXPECT_EQ(std::accumulate(decision.missed.begin(), decision.missed.end(), decision.offered),
            decision.wanted);
}

TEST(Decision, EveryEndHasWords) {
  for (std::size_t end = 0; end < kPrefixEnds; ++end) {
    Decision decision = decision_of(1, 1);
    decision.cut(0, static_cast<PrefixEnd>(end));
    EXPECT_FALSE(to_line(decision).ends_with(": ")) << end;
  }
  Decision decision = decision_of(1, 9);
  decision.blocks_per_second = 99.6;
  decision.prefill_tokens_per_s = 20'000;
  decision.running_decodes = 3;
  decision.cut(0, PrefixEnd::kRecomputeCheaper);
  EXPECT_EQ(to_line(decision),
            "request 1: matched 0, offered 0 of 9, ended by: recompute cheaper (fetch 100 "
            "blocks/s, prefill 20000 tokens/s, 3 decodes running)");
  decision.end = PrefixEnd::kOptedOut;
  decision.why = "no digest";
  EXPECT_TRUE(to_line(decision).ends_with("ended by: opted out: no digest"));
}

TEST(DecisionLog, KeepsTheNewestOfEachRequest) {
  DecisionLog log(3);
  for (RequestId id = 1; id <= 5; ++id) log.add(decision_of(id, id));
  const auto requests = [&log] {
    std::vector<RequestId> ids;
    for (const Decision& entry : log.entries()) ids.push_back(entry.request);
    return ids;
  };
  EXPECT_EQ(requests(), (std::vector<RequestId>{3, 4, 5}));

  Decision again = decision_of(3, 30);
  again.repeats = 2;
  log.add(again);
  EXPECT_EQ(requests(), (std::vector<RequestId>{4, 5, 3})) << "one line a request, by its last one";
  EXPECT_EQ(to_line(log.entries().back()),
            "request 3: matched 0, offered 30 of 30, asked 3 times, ended by: the end of the "
            "prompt");
  log.add(decision_of(6, 6));
  EXPECT_EQ(requests(), (std::vector<RequestId>{5, 3, 6}));

  DecisionLog none(0);
  none.add(decision_of(1, 1));
  EXPECT_TRUE(none.entries().empty());
}

}  // namespace
}  // namespace kvc
