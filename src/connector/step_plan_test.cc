#include "kvc/step_plan.h"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "kvc/replication.h"
#include "testing/seed.h"

namespace kvc {
namespace {

constexpr std::size_t kChecksumBytes = 8;

PageTask random_task(Random& random) {
  PageTask task;
  // Small and huge numbers, runs and jumps.
  const std::uint64_t mask = ~std::uint64_t{0} >> random.below(64);
  task.request = random.next() & mask;
  task.slot = static_cast<SlotIndex>(random.next() & mask);
  if (random.chance(100'000)) task.slot = -1;
  random.fill(task.block.bytes);
  return task;
}

StepPlan random_plan(Random& random, std::size_t tasks_max) {
  StepPlan plan;
  random.fill(plan.keyspace);
  plan.loads_in_batch = random.chance(500'000);
  plan.loads_lost = random.chance(500'000);
  plan.loads.resize(random.below(tasks_max + 1));
  plan.saves.resize(random.below(tasks_max + 1));
  for (PageTask& task : plan.loads) task = random_task(random);
  const auto absent = static_cast<std::uint32_t>(random.below(1'000'001));
  for (PageTask& task : plan.saves) {
    task = random_task(random);
    task.absent = random.chance(absent);
  }
  plan.hot.resize(random.below(tasks_max + 1));
  for (HotBlock& hot : plan.hot) {
    random.fill(hot.block.bytes);
    hot.replicas = 2 + static_cast<std::uint32_t>(random.below(kReplicasMax - 1));
  }
  plan.released.resize(random.below(tasks_max + 1));
  for (HoldRelease& release : plan.released) {
    release.hold = random.next() >> random.below(64);
    release.from_block = static_cast<std::uint32_t>(random.next() >> random.below(64));
  }
  plan.done_holds.resize(random.below(tasks_max + 1));
  for (HoldId& hold : plan.done_holds) hold = random.next() >> random.below(64);
  if (random.chance(500'000)) {
    plan.live_holds.newest = 1 + (random.next() >> (1 + random.below(63)));
    plan.live_holds.live.resize(random.below(tasks_max + 1));
    for (HoldId& hold : plan.live_holds.live) hold = random.next() >> random.below(64);
  }
  plan.rendezvous.resize(random.below(3 * tasks_max + 1));
  random.fill(std::as_writable_bytes(std::span<char>(plan.rendezvous)));
  return plan;
}

/// `body` with a checksum that fits, so that damage reaches the decoder behind it.
std::string sealed(std::string body) {
  std::byte checksum[kChecksumBytes];
  put_le<std::uint64_t>(checksum, XXH3_64bits(body.data(), body.size()));
  return body + std::string(as_text(checksum));
}

std::string body_of(const std::string& encoded) {
  return encoded.substr(0, encoded.size() - kChecksumBytes);
}

TEST(StepPlan, RoundTrips) {
  Random random(testlib::test_seed(1));
  for (int i = 0; i < 500; ++i) {
    const StepPlan plan = random_plan(random, 20);
    const Result<StepPlan> decoded = decode_step_plan(as_bytes(encode_step_plan(plan)));
    ASSERT_TRUE(decoded.ok()) << decoded.status().to_string();
    EXPECT_EQ(*decoded, plan);
  }
}

TEST(StepPlan, KeepsExtremes) {
  StepPlan plan;
  for (const SlotIndex slot : {std::numeric_limits<SlotIndex>::max(),
                               std::numeric_limits<SlotIndex>::min(), SlotIndex{-1}}) {
    for (const RequestId request : {std::numeric_limits<RequestId>::max(), RequestId{0}}) {
      plan.loads.push_back({request, {}, slot});
      plan.saves.push_back({~request, {}, -(slot + 1)});
    }
  }
  const Result<StepPlan> decoded = decode_step_plan(as_bytes(encode_step_plan(plan)));
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(*decoded, plan);
}

TEST(StepPlan, IsCompact) {
  StepPlan plan;
  for (SlotIndex slot = 0; slot < 1000; ++slot) {
    plan.saves.push_back({123456, {}, slot + 700, slot >= 300});
  }
  EXPECT_LE(encode_step_plan(plan).size(), 64 + 1000 * (sizeof(BlockHash) + 2));
  EXPECT_LE(encode_step_plan(StepPlan{}).size(), 40u);
}

TEST(StepPlan, RefusesEveryTruncationAndEveryLongerForm) {
  Random random(testlib::test_seed(2));
  const std::string encoded = encode_step_plan(random_plan(random, 4));
  for (std::size_t length = 0; length < encoded.size(); ++length) {
    const Result<StepPlan> decoded = decode_step_plan(as_bytes(encoded.substr(0, length)));
    ASSERT_FALSE(decoded.ok()) << length;
    EXPECT_EQ(decoded.status().code(), Code::kInvalid);
  }
  EXPECT_FALSE(decode_step_plan(as_bytes(encoded + '\0')).ok());
}

TEST(StepPlan, RefusesEveryFlippedBit) {
  Random random(testlib::test_seed(3));
  const std::string encoded = encode_step_plan(random_plan(random, 3));
  for (std::size_t bit = 0; bit < encoded.size() * 8; ++bit) {
    std::string damaged = encoded;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    EXPECT_FALSE(decode_step_plan(as_bytes(damaged)).ok()) << bit;
  }
}

TEST(StepPlan, RefusesAnotherVersionByName) {
  std::string encoded = encode_step_plan(StepPlan{});
  encoded[3] = 9;
  const Result<StepPlan> decoded = decode_step_plan(as_bytes(sealed(body_of(encoded))));
  ASSERT_FALSE(decoded.ok());
  EXPECT_NE(decoded.status().message().find("version"), std::string::npos);
}

TEST(StepPlan, RefusesTruncationBehindAFittingChecksum) {
  Random random(testlib::test_seed(4));
  StepPlan plan = random_plan(random, 4);
  plan.saves.push_back(random_task(random));
  const std::string body = body_of(encode_step_plan(plan));
  for (std::size_t length = 0; length < body.size(); ++length) {
    EXPECT_FALSE(decode_step_plan(as_bytes(sealed(body.substr(0, length)))).ok()) << length;
  }
  EXPECT_FALSE(decode_step_plan(as_bytes(sealed(body + '\0'))).ok());
}

TEST(StepPlan, AcceptsOnlyWhatItWouldHaveWritten) {
  Random random(testlib::test_seed(5));
  std::size_t accepted = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string body = body_of(encode_step_plan(random_plan(random, 3)));
    for (std::uint64_t edits = random.below(4); edits > 0; --edits) {
      body[random.below(body.size())] = static_cast<char>(random.next());
    }
    const std::string bytes = sealed(body);
    const Result<StepPlan> decoded = decode_step_plan(as_bytes(bytes));
    if (!decoded.ok()) continue;
    ++accepted;
    ASSERT_EQ(encode_step_plan(*decoded), bytes);
  }
  EXPECT_GT(accepted, 1000u);
}

TEST(StepPlan, RefusesNumbersOfCopiesThatNobodyCanWant) {
  for (const std::uint32_t replicas : {0u, 1u, 2u, kReplicasMax, kReplicasMax + 1, 300u, ~0u}) {
    StepPlan plan;
    plan.hot = {{{}, 2}, {{}, replicas}};
    const bool fits = replicas >= 2 && replicas <= kReplicasMax;
    EXPECT_EQ(decode_step_plan(as_bytes(encode_step_plan(plan))).ok(), fits) << replicas;
  }
}

TEST(StepPlan, HoldsCostLittle) {
  StepPlan plan;
  for (HoldId hold = 1; hold <= 1000; ++hold) {
    plan.released.push_back({(HoldId{1} << 40) + hold, 3});
    plan.done_holds.push_back((HoldId{1} << 40) + hold);
  }
  EXPECT_LE(encode_step_plan(plan).size(), 64u + 3 * 1000);
}

TEST(StepPlan, RefusesAReleaseFromABlockThatNoOrderHas) {
  const std::string body = body_of(encode_step_plan(StepPlan{}));
  const auto with_release = [&](const std::string& from_block) {
    std::string bytes = body.substr(0, 25) + '\x01' + '\x02' + from_block + std::string(3, '\0');
    return decode_step_plan(as_bytes(sealed(bytes)));
  };
  const Result<StepPlan> largest = with_release("\xff\xff\xff\xff\x0f");
  ASSERT_TRUE(largest.ok());
  EXPECT_EQ(largest->released, (std::vector<HoldRelease>{{1, 0xffffffffu}}));
  EXPECT_FALSE(with_release("\x80\x80\x80\x80\x10").ok());
}

TEST(StepPlan, RefusesPlacesOfAbsentSavesThatAreNone) {
  StepPlan plan;
  plan.saves.resize(2);
  const std::string body = body_of(encode_step_plan(plan));
  const std::size_t absent_at = 22 + 1 + 2 * (2 + sizeof(BlockHash));
  const auto absent = [&](const std::string& turns) {
    const std::string bytes = body.substr(0, absent_at) + turns + body.substr(absent_at + 1);
    return decode_step_plan(as_bytes(sealed(bytes)));
  };
  using namespace std::string_literals;
  const Result<StepPlan> second = absent("\x01\x01"s);
  ASSERT_TRUE(second.ok());
  EXPECT_TRUE(!second->saves[0].absent && second->saves[1].absent);
  const Result<StepPlan> first = absent("\x02\x00\x01"s);
  ASSERT_TRUE(first.ok());
  EXPECT_TRUE(first->saves[0].absent && !first->saves[1].absent);
  for (const std::string& wrong : {"\x01\x02"s, "\x02\x00\x00"s, "\x02\x01\x01"s,
                                   "\x03\x00\x01\x01"s, "\x01\xff\xff\xff\xff\x0f"s}) {
    EXPECT_FALSE(absent(wrong).ok());
  }
}

TEST(StepPlan, SurvivesRandomBytes) {
  Random random(testlib::test_seed(6));
  const std::string head = encode_step_plan(StepPlan{}).substr(0, 4);
  for (int i = 0; i < 20'000; ++i) {
    std::string noise(random.below(200), '\0');
    random.fill(std::as_writable_bytes(std::span<char>(noise)));
    EXPECT_FALSE(decode_step_plan(as_bytes(noise)).ok());
    const std::string bytes = sealed(head + noise);
    const Result<StepPlan> decoded = decode_step_plan(as_bytes(bytes));
    if (!decoded.ok()) continue;
    EXPECT_EQ(encode_step_plan(*decoded), bytes);
  }
}

TEST(StepPlan, ForgedCountReservesNothing) {
  std::string body = body_of(encode_step_plan(StepPlan{}));
  ASSERT_EQ(body.size(), 4u + 16u + 9u);
  body.resize(21);                          // Magic, keyspace, step 0.
  body += std::string(9, '\xff') + '\x01';  // 2^64 - 1 loads
  EXPECT_FALSE(decode_step_plan(as_bytes(sealed(body))).ok());
  // Saves and which are absent, hot blocks, released, done and live holds, and the rendezvous.
  for (int empty_lists = 1; empty_lists <= 7; ++empty_lists) {
    body.insert(21, 1, '\0');
    EXPECT_FALSE(decode_step_plan(as_bytes(sealed(body))).ok());
  }
  body[27] = '\x01';  // Live holds are told.
  EXPECT_FALSE(decode_step_plan(as_bytes(sealed(body))).ok());
}

}  // namespace
}  // namespace kvc
