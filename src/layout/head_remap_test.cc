#include "kvc/head_remap.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>

#include "base/random.h"
#include "testing/seed.h"

namespace kvc {
namespace {

using Bytes = std::vector<std::byte>;
using Payloads = std::vector<Bytes>;

HeadLayout layout_of(InnerOrder order, std::uint32_t heads) {
  return {.order = order,
          .layers = 2,
          .kv_heads = heads,
          .tokens_per_block = 4,
          .head_dim = 8,
          .element_bits = 16};
}

/// The model: every element is a function of where it stands in the whole model, and is written
/// into a rank's payload bit by bit, at the place that its indices give.
std::uint32_t element(std::uint64_t layer, std::uint64_t kv, std::uint64_t head,
                      std::uint64_t token, std::uint64_t at) {
  const std::uint64_t place = (((layer * 2 + kv) * 4099 + head) * 4099 + token) * 4099 + at;
  return static_cast<std::uint32_t>(mix_bits(place + 1));
}

void write_bits(Bytes& out, std::uint64_t index, std::uint32_t bits, std::uint32_t value) {
  for (std::uint32_t bit = 0; bit < bits; ++bit) {
    const std::uint64_t at = index * bits + bit;
    const auto one = static_cast<std::byte>(1u << (at % 8));
    if ((value >> bit & 1u) != 0) out[at / 8] |= one;
  }
}

/// The heads of each rank, as the text of the format page says it: h on rank h / (heads / ranks),
/// or on the ranks whose number divided by the replicas is h.
bool holds(std::uint64_t head, std::uint64_t heads, std::uint64_t rank, std::uint64_t ranks) {
  return ranks <= heads ? head / (heads / ranks) == rank : rank / (ranks / heads) == head;
}

Payloads model_payloads(const HeadLayout& layout, std::uint32_t ranks) {
  Payloads payloads;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    std::vector<std::uint32_t> heads;
    for (std::uint32_t h = 0; h < layout.kv_heads; ++h) {
      if (holds(h, layout.kv_heads, rank, ranks)) heads.push_back(h);
    }
    const std::uint64_t tokens = layout.tokens_per_block;
    const std::uint64_t dim = layout.head_dim;
    const std::uint64_t elements = layout.layers * 2 * heads.size() * tokens * dim;
    Bytes payload((elements * layout.element_bits + 7) / 8);
    for (std::uint64_t outer = 0; outer < layout.layers * 2; ++outer) {
      for (std::uint64_t h = 0; h < heads.size(); ++h) {
        for (std::uint64_t t = 0; t < tokens; ++t) {
          for (std::uint64_t d = 0; d < dim; ++d) {
            const std::uint64_t row = layout.order == InnerOrder::kHeadTokenVector
                                          ? h * tokens + t
                                          : t * heads.size() + h;
            const std::uint64_t index = (outer * heads.size() * tokens + row) * dim + d;
            write_bits(payload, index, layout.element_bits,
                       element(outer / 2, outer % 2, heads[h], t, d));
          }
        }
      }
    }
    payloads.push_back(std::move(payload));
  }
  return payloads;
}

std::vector<std::span<const std::byte>> spans(const Payloads& payloads) {
  return {payloads.begin(), payloads.end()};
}

Payloads remap_all(const HeadRemap& remap, const Payloads& sources) {
  Payloads targets;
  for (std::uint32_t rank = 0; rank < remap.to_ranks(); ++rank) {
    Bytes target(remap.target_bytes());
    const Status status = remap.remap(spans(sources), rank, target);
    EXPECT_TRUE(status.ok()) << status.to_string();
    targets.push_back(std::move(target));
  }
  return targets;
}

void expect_refused(const HeadLayout& layout, std::uint32_t from, std::uint32_t to, Code code,
                    const std::string& part) {
  const Result<HeadRemap> remap = HeadRemap::create(layout, from, to);
  ASSERT_FALSE(remap.ok()) << part;
  EXPECT_EQ(remap.status().code(), code) << remap.status().to_string();
  EXPECT_NE(remap.status().message().find(part), std::string::npos) << remap.status().message();
}

constexpr InnerOrder kOrders[] = {InnerOrder::kHeadTokenVector, InnerOrder::kTokenHeadVector};

TEST(HeadRemap, EqualsTheModelForEverySplit) {
  for (const InnerOrder order : kOrders) {
    for (const std::uint32_t heads : {1u, 2u, 3u, 6u, 8u, 12u}) {
      const HeadLayout layout = layout_of(order, heads);
      std::size_t served = 0;
      for (std::uint32_t from = 1; from <= 24; ++from) {
        for (std::uint32_t to = 1; to <= 24; ++to) {
          const auto even = [heads](std::uint32_t n) { return heads % n == 0 || n % heads == 0; };
          const Result<HeadRemap> remap = HeadRemap::create(layout, from, to);
          ASSERT_EQ(remap.ok(), even(from) && even(to)) << heads << ": " << from << "->" << to;
          if (!remap.ok()) continue;
          ++served;
          const Payloads before = model_payloads(layout, from);
          ASSERT_EQ(remap->source_bytes(), before[0].size());
          ASSERT_EQ(remap_all(*remap, before), model_payloads(layout, to))
              << to_string(order) << ", " << heads << " heads: " << from << "->" << to;
        }
      }
      EXPECT_GE(served, 16u);
    }
  }
}

TEST(HeadRemap, RandomLayoutsThereAndBackAgain) {
  Random random(testlib::test_seed(4));
  constexpr std::uint32_t kBits[] = {4, 8, 16, 32};
  for (int i = 0; i < 400; ++i) {
    const auto up_to = [&random](std::uint64_t n) {
      return static_cast<std::uint32_t>(1 + random.below(n));
    };
    HeadLayout layout{.order = kOrders[random.below(2)],
                      .layers = up_to(4),
                      .kv_heads = up_to(3) * (1u << random.below(3)),
                      .tokens_per_block = up_to(9),
                      .head_dim = up_to(12),
                      .element_bits = kBits[random.below(4)]};
    const auto ranks = [&random, &layout, &up_to] {
      if (random.chance(400'000)) return layout.kv_heads * up_to(3);
      std::uint32_t n = up_to(layout.kv_heads);
      while (layout.kv_heads % n != 0) --n;
      return n;
    };
    const std::uint32_t from = ranks();
    const std::uint32_t to = ranks();
    const std::uint32_t run = layout.order == InnerOrder::kHeadTokenVector
                                  ? layout.tokens_per_block * layout.head_dim
                                  : layout.head_dim;
    if (run * layout.element_bits % 8 != 0) {
      expect_refused(layout, from, to, Code::kUnsupported, "ends inside a byte");
      continue;
    }
    const Result<HeadRemap> forth = HeadRemap::create(layout, from, to);
    const Result<HeadRemap> back = HeadRemap::create(layout, to, from);
    ASSERT_TRUE(forth.ok() && back.ok()) << forth.status().to_string();
    const Payloads before = model_payloads(layout, from);
    const Payloads after = remap_all(*forth, before);
    ASSERT_EQ(after, model_payloads(layout, to));
    ASSERT_EQ(remap_all(*back, after), before);
  }
}

// The example of docs/format/head_remap.md.
TEST(HeadRemap, GoldenExample) {
  const auto bytes = [](std::string_view text) {
    Bytes out;
    for (const char c : text) out.push_back(static_cast<std::byte>(c));
    return out;
  };
  HeadLayout layout{.order = InnerOrder::kHeadTokenVector,
                    .layers = 1,
                    .kv_heads = 4,
                    .tokens_per_block = 2,
                    .head_dim = 1,
                    .element_bits = 8};
  Result<HeadRemap> remap = HeadRemap::create(layout, 2, 4);
  ASSERT_TRUE(remap.ok());
  EXPECT_EQ(remap_all(*remap, {bytes("aAbBeEfF"), bytes("cCdDgGhH")}),
            (Payloads{bytes("aAeE"), bytes("bBfF"), bytes("cCgG"), bytes("dDhH")}));
  layout.order = InnerOrder::kTokenHeadVector;
  remap = HeadRemap::create(layout, 2, 4);
  ASSERT_TRUE(remap.ok());
  EXPECT_EQ(remap_all(*remap, {bytes("abABefEF"), bytes("cdCDghGH")}),
            (Payloads{bytes("aAeE"), bytes("bBfF"), bytes("cCgG"), bytes("dDhH")}));
  remap = HeadRemap::create(layout, 2, 1);
  ASSERT_TRUE(remap.ok());
  EXPECT_EQ(remap_all(*remap, {bytes("abABefEF"), bytes("cdCDghGH")}),
            (Payloads{bytes("abcdABCDefghEFGH")}));
}

TEST(HeadRemap, NeedsOnlyTheRanksThatHoldItsHeads) {
  const HeadLayout layout = layout_of(InnerOrder::kTokenHeadVector, 4);
  const Result<HeadRemap> remap = HeadRemap::create(layout, 8, 2);
  ASSERT_TRUE(remap.ok());
  EXPECT_EQ(remap->sources_of(0), (std::vector<std::uint32_t>{0, 2}));
  EXPECT_EQ(remap->sources_of(1), (std::vector<std::uint32_t>{4, 6}));
  const Payloads all = model_payloads(layout, 8);
  Payloads some(8);
  for (const std::uint32_t rank : {4u, 6u}) some[rank] = all[rank];
  Bytes target(remap->target_bytes());
  ASSERT_TRUE(remap->remap(spans(some), 1, target).ok());
  EXPECT_EQ(target, model_payloads(layout, 2)[1]);
  const Status status = remap->remap(spans(some), 0, target);
  EXPECT_EQ(status.code(), Code::kInvalid);
  EXPECT_NE(status.message().find("the payload of rank 0 is missing"), std::string::npos);
}

TEST(HeadRemap, RefusesReplicasThatDiffer) {
  const HeadLayout layout = layout_of(InnerOrder::kHeadTokenVector, 2);
  const Result<HeadRemap> remap = HeadRemap::create(layout, 4, 2);
  ASSERT_TRUE(remap.ok());
  Payloads sources = model_payloads(layout, 4);
  sources[3].back() ^= std::byte{1};
  Bytes target(remap->target_bytes(), std::byte{7});
  const Status status = remap->remap(spans(sources), 1, target);
  EXPECT_EQ(status.code(), Code::kRejected);
  EXPECT_NE(status.message().find("ranks 2 and 3"), std::string::npos) << status.message();
  EXPECT_EQ(target, Bytes(remap->target_bytes(), std::byte{7}));
  EXPECT_TRUE(remap->remap(spans(sources), 0, target).ok()) << "rank 0 takes other heads";
}

TEST(HeadRemap, RefusesByNameWhatHasNoWholeHeads) {
  const HeadLayout good = layout_of(InnerOrder::kHeadTokenVector, 8);
  HeadLayout layout = good;
  layout.order = InnerOrder::kUnknown;
  expect_refused(layout, 2, 4, Code::kUnsupported, "not declared");
  layout = good;
  layout.kv_factor = 1;
  expect_refused(layout, 2, 4, Code::kUnsupported, "latent");
  layout = good;
  layout.packed_scales = true;
  expect_refused(layout, 2, 4, Code::kUnsupported, "scales are packed");
  expect_refused(good, 3, 4, Code::kUnsupported, "8 KV heads cannot be shared out evenly among 3");
  expect_refused(good, 4, 12, Code::kUnsupported, "12 ranks (to_ranks)");
  layout = good;
  layout.order = InnerOrder::kTokenHeadVector;
  layout.element_bits = 4;
  layout.head_dim = 7;
  expect_refused(layout, 2, 4, Code::kUnsupported, "ends inside a byte");
  layout.head_dim = 8;
  EXPECT_TRUE(HeadRemap::create(layout, 2, 4).ok()) << "whole bytes per head move";
}

TEST(HeadRemap, NamesEveryFieldAtFault) {
  const HeadLayout good = layout_of(InnerOrder::kHeadTokenVector, 8);
  const struct {
    const char* name;
    std::uint32_t HeadLayout::*field;
  } fields[] = {{"layers", &HeadLayout::layers},
                {"kv_heads", &HeadLayout::kv_heads},
                {"tokens_per_block", &HeadLayout::tokens_per_block},
                {"head_dim", &HeadLayout::head_dim},
                {"element_bits", &HeadLayout::element_bits},
                {"kv_factor", &HeadLayout::kv_factor}};
  for (const auto& field : fields) {
    HeadLayout layout = good;
    layout.*field.field = 0;
    expect_refused(layout, 2, 4, Code::kInvalid, std::string(field.name) + " is 0");
  }
  HeadLayout layout = good;
  layout.element_bits = 12;
  expect_refused(layout, 2, 4, Code::kInvalid, "element_bits is 12");
  expect_refused(good, 0, 4, Code::kInvalid, "from_ranks is 0");
  expect_refused(good, 2, HeadRemap::kMaxRanks + 8, Code::kInvalid, "to_ranks is 4104");
  constexpr std::uint32_t kMax = std::numeric_limits<std::uint32_t>::max();
  layout = good;
  layout.layers = layout.tokens_per_block = layout.head_dim = kMax;
  for (const InnerOrder order : kOrders) {
    layout.order = order;
    expect_refused(layout, 2, 4, Code::kInvalid, "exceeds the address space");
  }
}

TEST(HeadRemap, RefusesWrongBuffersAndLeavesTheTarget) {
  const HeadLayout layout = layout_of(InnerOrder::kHeadTokenVector, 4);
  const Result<HeadRemap> remap = HeadRemap::create(layout, 2, 4);
  ASSERT_TRUE(remap.ok());
  const Payloads good = model_payloads(layout, 2);
  const Bytes untouched(remap->target_bytes(), std::byte{7});
  Bytes target = untouched;
  const auto expect_invalid = [&](const Payloads& sources, std::uint32_t rank,
                                  std::span<std::byte> out, const std::string& part) {
    const Status status = remap->remap(spans(sources), rank, out);
    EXPECT_EQ(status.code(), Code::kInvalid);
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
    EXPECT_EQ(target, untouched);
  };
  expect_invalid(good, 4, target, "rank is 4: must be below to_ranks 4");
  expect_invalid({good[0]}, 0, target, "1 payloads were given");
  expect_invalid({good[0], good[1], good[1]}, 0, target, "3 payloads were given");
  expect_invalid(good, 0, std::span(target).first(target.size() - 1), "the target has");
  for (const std::size_t bytes : {good[1].size() - 1, good[1].size() + 1, std::size_t{1}}) {
    expect_invalid({good[0], Bytes(bytes)}, 0, target, "the payload of rank 1 has");
  }
  expect_invalid({{}, good[1]}, 0, target, "the payload of rank 0 is missing");
  Bytes both(remap->source_bytes() + remap->target_bytes() - 1);
  const std::span<std::byte> memory(both);
  const std::vector<std::span<const std::byte>> aliased = {memory.first(remap->source_bytes()),
                                                           good[1]};
  const Status status = remap->remap(aliased, 0, memory.last(remap->target_bytes()));
  EXPECT_EQ(status.code(), Code::kInvalid);
  EXPECT_NE(status.message().find("overlaps the payload of rank 0"), std::string::npos);
}

TEST(HeadRemap, RandomCallsNeverReachOutside) {
  Random random(testlib::test_seed(5));
  std::size_t served = 0;
  for (int i = 0; i < 5000; ++i) {
    const auto some = [&random] { return static_cast<std::uint32_t>(random.below(6)); };
    const HeadLayout layout{.order = static_cast<InnerOrder>(random.below(4)),
                            .layers = some(),
                            .kv_factor = 2 - static_cast<std::uint32_t>(random.chance(100'000)),
                            .kv_heads = some(),
                            .tokens_per_block = some(),
                            .head_dim = some(),
                            .element_bits = 4u << random.below(4),
                            .packed_scales = random.chance(100'000)};
    const Result<HeadRemap> remap = HeadRemap::create(layout, some(), some());
    if (!remap.ok()) continue;
    ASSERT_LT(remap->source_bytes() + remap->target_bytes(), std::size_t{1} << 16);
    Payloads sources(random.chance(800'000) ? remap->from_ranks() : some());
    for (Bytes& source : sources) {
      const std::size_t bytes = random.chance(900'000) ? remap->source_bytes() : some();
      source = Bytes(bytes, std::byte{1});  // Equal everywhere, so that replicas are.
    }
    Bytes target(random.chance(900'000) ? remap->target_bytes() : some());
    const Status status = remap->remap(spans(sources), some(), target);
    if (!status.ok()) {
      EXPECT_EQ(target, Bytes(target.size()));
      continue;
    }
    ++served;
    EXPECT_EQ(target, Bytes(remap->target_bytes(), std::byte{1}));
  }
  EXPECT_GT(served, 20u);
}

TEST(HeadRemap, OrdersHaveNames) {
  for (const InnerOrder order : kOrders) EXPECT_EQ(inner_order_of(to_string(order)), order);
  for (const char* name : {"", "unknown", "hnd", "NHDX"}) {
    EXPECT_EQ(inner_order_of(name), InnerOrder::kUnknown) << name;
  }
}

}  // namespace
}  // namespace kvc
