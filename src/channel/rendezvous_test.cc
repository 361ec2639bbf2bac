#include "channel/rendezvous.h"

#include <gtest/gtest.h>

#include <string>

#include "base/bytes.h"
#include "base/random.h"
#include "testing/seed.h"

namespace kvc {
namespace {

Rendezvous unix_rendezvous() {
  Rendezvous rendezvous;
  rendezvous.world_size = 4;
  rendezvous.instance = 0x0123456789abcdefu;
  rendezvous.nonce.fill(std::byte{0xa5});
  rendezvous.unix_path = "/tmp/with a blank/kvc-stage-0011223344556677/leader";
  return rendezvous;
}

Rendezvous tcp_rendezvous(const std::string& address) {
  Rendezvous rendezvous = unix_rendezvous();
  rendezvous.unix_path.clear();
  rendezvous.address = address;
  rendezvous.port = 41233;
  return rendezvous;
}

TEST(Rendezvous, IsPrintableAndComesBack) {
  for (const Rendezvous& rendezvous :
       {unix_rendezvous(), tcp_rendezvous("10.0.0.1"), tcp_rendezvous("fe80::1")}) {
    const std::string text = format_rendezvous(rendezvous);
    EXPECT_TRUE(is_printable(text));
    EXPECT_LE(text.size(), kRendezvousBytesMax);
    const Result<Rendezvous> parsed = parse_rendezvous(text);
    ASSERT_TRUE(parsed.ok()) << text;
    EXPECT_EQ(*parsed, rendezvous);
  }
  std::string nonce;
  for (int i = 0; i < 32; ++i) nonce += "a5";
  EXPECT_EQ(
      format_rendezvous(tcp_rendezvous("fe80::1")),
      "kvc-stage/1 world=4 instance=0123456789abcdef nonce=" + nonce + " tcp=[fe80::1]:41233");
}

TEST(Rendezvous, TheLongestPathFits) {
  Rendezvous rendezvous = unix_rendezvous();
  rendezvous.world_size = ~std::uint32_t{0};
  rendezvous.unix_path = "/" + std::string(kUnixPathBytesMax - 1, 'p');
  const std::string text = format_rendezvous(rendezvous);
  EXPECT_LE(text.size(), kRendezvousBytesMax);
  EXPECT_TRUE(parse_rendezvous(text).ok());
  rendezvous.unix_path += "p";
  EXPECT_FALSE(parse_rendezvous(format_rendezvous(rendezvous)).ok());
}

TEST(Rendezvous, RefusesWhatIsNoneWithoutRepeatingIt) {
  const std::string good = format_rendezvous(tcp_rendezvous("10.0.0.1"));
  const auto with = [&good](const std::string& part, const std::string& other) {
    std::string text = good;
    return text.replace(text.find(part), part.size(), other);
  };
  for (const std::string& text : {std::string(),
                                  std::string("kvc-stage/1 "),
                                  with("stage/1", "stage/2"),
                                  with("world=4", "world="),
                                  with("world=4", "world=-4"),
                                  with("world=4", "world=04"),
                                  with("world=4", "world=4 4"),
                                  with("world=4", "world=99999999999"),
                                  with("nonce=a5", "nonce=A5"),
                                  with("nonce=a5", "nonce=5"),
                                  with("nonce=a5", "nonce=zz"),
                                  with("tcp=", "udp="),
                                  with("tcp=10.0.0.1:41233", "unix=tmp/leader"),
                                  with("tcp=10.0.0.1:41233", "unix=/"),
                                  with(":41233", ""),
                                  with(":41233", ":0"),
                                  with("instance=", "instance=0"),
                                  with(" nonce", "\nnonce"),
                                  good + " ",
                                  good + "\n",
                                  " " + good,
                                  good + std::string(600, '0'),
                                  good.substr(0, good.size() / 2)}) {
    const Result<Rendezvous> parsed = parse_rendezvous(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_EQ(parsed.status().code(), Code::kInvalid);
    EXPECT_EQ(parsed.status().message().find("a5a5"), std::string::npos);
  }
}

TEST(Rendezvous, NoTextBreaksTheParser) {
  Random random(testlib::test_seed(5));
  const std::string good = format_rendezvous(unix_rendezvous());
  std::size_t refused = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string text = good;
    for (std::uint64_t i = random.below(3) + 1; i > 0; --i) {
      const std::size_t at = random.below(text.size());
      switch (random.below(3)) {
        case 0:
          text[at] = static_cast<char>(random.below(256));
          break;
        case 1:
          text.erase(at, 1 + random.below(20));
          break;
        default:
          text.insert(at, text.substr(random.below(text.size()), random.below(40)));
      }
      if (text.empty()) break;
    }
    const Result<Rendezvous> parsed = parse_rendezvous(text);
    if (parsed.ok()) {
      EXPECT_EQ(format_rendezvous(*parsed), text);
    } else {
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000u);
}

TEST(Rendezvous, IsDescribedWithoutItsSecret) {
  const std::string text = describe(tcp_rendezvous("10.0.0.1"));
  EXPECT_EQ(text, "leader 0123456789abcdef at tcp 10.0.0.1:41233");
}

}  // namespace
}  // namespace kvc
