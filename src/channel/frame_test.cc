#include "channel/frame.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "base/random.h"
#include "testing/seed.h"

namespace kvc {
namespace {

BlockHash random_block(Random& random) {
  BlockHash block;
  random.fill(block.bytes);
  return block;
}

/// One of every kind, and of those with lists an empty and a long one.
std::vector<Message> some_of_each(Random& random) {
  Hello hello{.instance = random.next(), .client = random.next(), .world_size = 4, .rank = 3};
  random.fill(hello.nonce);
  random.fill(hello.keyspace);
  StageOrder order{.hold = 9, .blocks = {}, .fetch_budget = std::chrono::seconds(3)};
  for (int i = 0; i < 300; ++i) order.blocks.push_back(random_block(random));
  Welcome welcome{{.live = {}, .newest = 40}};
  for (HoldId hold = 1; hold < 40; hold += 3) welcome.holds.live.push_back(hold);
  return {hello,
          welcome,
          Welcome{},
          Refusal::kNonce,
          Refusal::kDuplicate,
          order,
          StageOrder{.hold = ~HoldId{0}, .blocks = {}, .fetch_budget = Duration::max()},
          HoldRelease{.hold = 5, .from_block = 17},
          StageProgress{.hold = 5, .staged = 17},
          StageProgress{.hold = 6, .staged = 0, .done = true, .end = StageEnd::kUnavailable},
          Ping{},
          Pong{},
          Bye{}};
}

/// Reads all that can be read. Broken: the status.
Status read_all(FrameReader& reader, std::vector<Message>* out) {
  for (;;) {
    std::optional<Message> next;
    if (const Status status = reader.next(&next); !status.ok()) return status;
    if (!next.has_value()) return {};
    out->push_back(std::move(*next));
  }
}

Status read_one(FrameReader& reader) {
  std::optional<Message> message;
  return reader.next(&message);
}

TEST(Frame, EveryMessageComesBackHoweverItsBytesAreCut) {
  Random random(testlib::test_seed(1));
  const std::vector<Message> sent = some_of_each(random);
  std::vector<std::byte> stream;
  for (const Message& message : sent) {
    const std::vector<std::byte> frame = encode_frame(message);
    stream.insert(stream.end(), frame.begin(), frame.end());
  }
  for (const std::size_t piece :
       {std::size_t{1}, std::size_t{2}, std::size_t{7}, std::size_t{4096}, stream.size()}) {
    FrameReader reader(kFrameBytesOfLeader);
    std::vector<Message> got;
    for (std::size_t at = 0; at < stream.size(); at += piece) {
      reader.feed(std::span(stream).subspan(at, std::min(piece, stream.size() - at)));
      ASSERT_TRUE(read_all(reader, &got).ok());
    }
    ASSERT_EQ(got.size(), sent.size());
    for (std::size_t i = 0; i < sent.size(); ++i) {
      EXPECT_EQ(got[i].index(), sent[i].index());
      EXPECT_EQ(encode_frame(got[i]), encode_frame(sent[i])) << "message " << i;
    }
  }
}

TEST(Frame, BytesAreAsWritten) {
  const std::vector<std::byte> frame = encode_frame(HoldRelease{.hold = 0x0102, .from_block = 3});
  EXPECT_EQ(hex_encode(frame),
            "0e0000000105"
            "0201000000000000"
            "03000000");
}

TEST(Frame, ACutOffFrameIsAwaitedAndNeverHalfRead) {
  Random random(testlib::test_seed(2));
  for (const Message& message : some_of_each(random)) {
    const std::vector<std::byte> frame = encode_frame(message);
    for (std::size_t size = 0; size < frame.size(); ++size) {
      FrameReader reader(kFrameBytesOfLeader);
      reader.feed(std::span(frame).first(size));
      std::vector<Message> got;
      ASSERT_TRUE(read_all(reader, &got).ok());
      ASSERT_TRUE(got.empty());
    }
  }
}

TEST(Frame, AFrameThatIsTooLongIsRefusedByItsLengthAlone) {
  for (const std::uint32_t size : {0u, 1u, 129u, 0x7fffffffu, 0xffffffffu}) {
    std::array<std::byte, 4> length{};
    put_le(length.data(), size);
    FrameReader reader(kFrameBytesOfRank);
    reader.feed(length);
    const Status status = read_one(reader);
    EXPECT_EQ(status.code(), Code::kInvalid) << size;
    EXPECT_NE(status.message().find(std::to_string(size)), std::string::npos);
  }
}

TEST(Frame, AnotherVersionIsRefusedByNameBeforeItsBodyComes) {
  std::vector<std::byte> frame = encode_frame(Ping{});
  put_le(frame.data(), std::uint32_t{100});
  frame[4] = std::byte{9};
  FrameReader reader(kFrameBytesOfRank);
  reader.feed(std::span(frame).first(5));
  const Status status = read_one(reader);
  EXPECT_EQ(status.code(), Code::kInvalid);
  EXPECT_NE(status.message().find("version 9"), std::string::npos);
}

TEST(Frame, BodiesOfWrongSizeOrMeaningAreRefused) {
  const auto refused = [](std::vector<std::byte> frame) {
    put_le(frame.data(), static_cast<std::uint32_t>(frame.size() - 4));
    FrameReader reader(kFrameBytesOfLeader);
    reader.feed(frame);
    return !read_one(reader).ok();
  };
  Random random(testlib::test_seed(3));
  for (const Message& message : some_of_each(random)) {
    std::vector<std::byte> longer = encode_frame(message);
    longer.push_back(std::byte{0});
    EXPECT_TRUE(refused(longer)) << message.index();
    std::vector<std::byte> shorter = encode_frame(message);
    shorter.pop_back();
    EXPECT_TRUE(refused(shorter)) << message.index();
  }
  for (const Message& no_hold :
       {Message(StageOrder{}), Message(HoldRelease{}), Message(StageProgress{})}) {
    EXPECT_TRUE(refused(encode_frame(no_hold)));
  }
  EXPECT_TRUE(
      refused(encode_frame(StageOrder{.hold = 1, .blocks = {}, .fetch_budget = Duration(-1)})));
  EXPECT_TRUE(refused(encode_frame(StageProgress{.hold = 1, .end = StageEnd::kLate})));
  EXPECT_TRUE(refused(encode_frame(StageProgress{.hold = 1, .end = StageEnd::kTooMany})));
  std::vector<std::byte> unknown = encode_frame(Ping{});
  for (const unsigned type : {0u, 10u, 255u}) {
    unknown[5] = static_cast<std::byte>(type);
    EXPECT_TRUE(refused(unknown)) << type;
  }
}

TEST(Frame, WhatFitsNoFrameIsNotWritten) {
  constexpr std::size_t kMost = (std::size_t{4} << 20) / sizeof(BlockHash);
  StageOrder order{.hold = 1, .blocks = std::vector<BlockHash>(kMost - 2)};
  const std::vector<std::byte> frame = encode_frame(order);
  ASSERT_FALSE(frame.empty());
  FrameReader reader(kFrameBytesOfLeader);
  reader.feed(frame);
  EXPECT_TRUE(read_one(reader).ok());
  order.blocks.resize(kMost);
  EXPECT_TRUE(encode_frame(order).empty());
}

TEST(Frame, NoBytesBreakTheReader) {
  Random random(testlib::test_seed(4));
  const std::vector<Message> messages = some_of_each(random);
  std::size_t refused = 0;
  std::size_t read = 0;
  for (int round = 0; round < 20'000; ++round) {
    // A good stream with some bytes altered, cut out or doubled; every fourth is noise alone.
    std::vector<std::byte> stream;
    if (round % 4 == 0) {
      stream.resize(random.below(200));
      random.fill(stream);
    } else {
      for (std::uint64_t i = random.below(4) + 1; i > 0; --i) {
        const std::vector<std::byte> frame = encode_frame(messages[random.below(messages.size())]);
        stream.insert(stream.end(), frame.begin(), frame.end());
      }
      for (std::uint64_t i = random.below(4); i > 0 && !stream.empty(); --i) {
        stream[random.below(stream.size())] ^= static_cast<std::byte>(1 + random.below(255));
      }
      if (random.below(3) == 0) stream.resize(random.below(stream.size() + 1));
    }
    FrameReader reader(random.below(2) == 0 ? kFrameBytesOfRank : kFrameBytesOfLeader);
    std::vector<Message> got;
    Status status;
    while (!stream.empty()) {
      const std::size_t piece = 1 + random.below(stream.size());
      reader.feed(std::span(stream).first(piece));
      stream.erase(stream.begin(), stream.begin() + static_cast<std::ptrdiff_t>(piece));
      const Status now = read_all(reader, &got);
      EXPECT_TRUE(status.ok() || !now.ok()) << "broken is for good";
      if (!now.ok()) status = now;
    }
    if (!status.ok()) {
      EXPECT_EQ(status.code(), Code::kInvalid);
      EXPECT_FALSE(status.message().empty());
      ++refused;
    }
    // What was read is what somebody could have written.
    for (const Message& message : got) {
      FrameReader again(kFrameBytesOfLeader);
      again.feed(encode_frame(message));
      EXPECT_TRUE(read_one(again).ok());
    }
    read += got.size();
  }
  EXPECT_GT(refused, 1000u);
  EXPECT_GT(read, 1000u);
}

}  // namespace
}  // namespace kvc
