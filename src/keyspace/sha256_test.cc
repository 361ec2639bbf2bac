#include "keyspace/sha256.h"

#include <gtest/gtest.h>

#include "base/bytes.h"

namespace kvc {
namespace {

std::string digest_of(std::string_view text) {
  Sha256 hash;
  Sha256Digest digest;
  hash.digest(as_bytes(text), &digest);
  return hex_encode(digest);
}

// The published examples of FIPS 180-4 and RFC 4231.
TEST(Sha256, AgreesWithTheStandardsExamples) {
  EXPECT_EQ(digest_of(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(digest_of("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(digest_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

TEST(Sha256, HmacAgreesWithTheStandardsExamples) {
  EXPECT_EQ(hex_encode(hmac_sha256(as_bytes("Jefe"), as_bytes("what do ya want for nothing?"))),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  const std::vector<std::byte> long_key(131, std::byte{0xaa});
  EXPECT_EQ(hex_encode(hmac_sha256(
                long_key, as_bytes("Test Using Larger Than Block-Size Key - Hash Key First"))),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(Sha256, PiecesGiveTheDigestOfTheWholeAndTheContextStartsAnew) {
  Sha256 hash;
  for (const char* piece : {"a", "", "bc"}) hash.add(as_bytes(piece));
  EXPECT_EQ(hex_encode(hash.take()), digest_of("abc"));
  hash.add(as_bytes("abc"));
  EXPECT_EQ(hex_encode(hash.take()), digest_of("abc"));
  EXPECT_EQ(hex_encode(hash.take()), digest_of(""));
}

}  // namespace
}  // namespace kvc
