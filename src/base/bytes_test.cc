#include "base/bytes.h"

#include <gtest/gtest.h>

#include <limits>

namespace kvc {
namespace {

using namespace std::string_view_literals;

std::vector<std::byte> bytes_of(std::initializer_list<int> values) {
  std::vector<std::byte> bytes;
  for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

TEST(Bytes, IntegersAreLeastSignificantByteFirst) {
  std::vector<std::byte> bytes;
  ByteWriter writer(&bytes);
  writer.u8(0x01);
  writer.u16(0x0203);
  writer.u32(0x04050607);
  writer.u64(0x08090a0b0c0d0e0full);
  EXPECT_EQ(bytes, bytes_of({0x01, 0x03, 0x02, 0x07, 0x06, 0x05, 0x04, 0x0f, 0x0e, 0x0d, 0x0c, 0x0b,
                             0x0a, 0x09, 0x08}));
}

TEST(Bytes, ReaderGivesBackWhatTheWriterTook) {
  std::vector<std::byte> bytes;
  ByteWriter writer(&bytes);
  writer.u8(255);
  writer.i64(std::numeric_limits<std::int64_t>::min());
  writer.text("");
  writer.text("text\0with zero"sv);
  writer.u64(std::numeric_limits<std::uint64_t>::max());
  ByteReader reader(bytes);
  EXPECT_EQ(reader.u8(), 255);
  EXPECT_EQ(reader.i64(), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(reader.text(), "");
  EXPECT_EQ(reader.text(), "text\0with zero"sv);
  EXPECT_FALSE(reader.done());
  EXPECT_EQ(reader.u64(), std::numeric_limits<std::uint64_t>::max());
  EXPECT_TRUE(reader.done());
}

TEST(Bytes, ReaderRefusesEveryTruncationAndStaysRefused) {
  std::vector<std::byte> bytes;
  ByteWriter writer(&bytes);
  writer.u32(7);
  writer.text("payload");
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    ByteReader reader(std::span<const std::byte>(bytes).first(size));
    static_cast<void>(reader.u32());
    static_cast<void>(reader.text());
    EXPECT_FALSE(reader.ok()) << size;
    EXPECT_FALSE(reader.done()) << size;
    EXPECT_EQ(reader.u8(), 0) << size;
    EXPECT_TRUE(reader.raw(0).empty()) << size;
    EXPECT_FALSE(reader.ok()) << size;
  }
}

TEST(Bytes, ReaderRefusesALengthBeyondTheEndWithoutOverflow) {
  const std::vector<std::byte> bytes = bytes_of({0xff, 0xff, 0xff, 0xff, 1, 2, 3});
  ByteReader reader(bytes);
  EXPECT_TRUE(reader.blob().empty());
  EXPECT_FALSE(reader.ok());
  ByteReader other(bytes);
  EXPECT_TRUE(other.raw(std::numeric_limits<std::size_t>::max()).empty());
  EXPECT_FALSE(other.ok());
}

TEST(Bytes, HexadecimalOfEveryByteGoesThereAndBack) {
  std::vector<std::byte> bytes(256);
  for (std::size_t value = 0; value < 256; ++value) bytes[value] = static_cast<std::byte>(value);
  const std::string text = hex_encode(bytes);
  EXPECT_EQ(text.substr(0, 8), "00010203");
  EXPECT_EQ(text.substr(504), "fcfdfeff");
  std::vector<std::byte> back(256);
  ASSERT_TRUE(hex_decode(text, back));
  EXPECT_EQ(back, bytes);
}

TEST(Bytes, HexadecimalOfEveryLengthWritesItsDigitsAndNoMore) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  for (std::size_t length = 0; length < 20; ++length) {
    std::vector<std::byte> bytes(length);
    std::string expected;
    for (std::size_t i = 0; i < length; ++i) {
      const std::size_t value = (i * 57 + length * 19) % 256;
      bytes[i] = static_cast<std::byte>(value);
      expected += kDigits[value / 16];
      expected += kDigits[value % 16];
    }
    std::string out(2 * length + 4, '#');
    hex_encode(bytes, out.data());
    EXPECT_EQ(out, expected + "####");
  }
}

TEST(Bytes, HexadecimalRefusesOtherLengthsAndOtherLetters) {
  std::array<std::byte, 2> out{};
  EXPECT_TRUE(hex_decode("aBCd", out));
  EXPECT_FALSE(hex_decode("abc", out));
  EXPECT_FALSE(hex_decode("abcde", out));
  EXPECT_FALSE(hex_decode("", out));
  for (const char* text : {"abcg", "ab d", "/bcd", ":bcd", "@bcd", "Gbcd", "`bcd"}) {
    EXPECT_FALSE(hex_decode(text, out)) << text;
  }
}

}  // namespace
}  // namespace kvc
