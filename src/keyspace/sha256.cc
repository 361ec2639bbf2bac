#include "keyspace/sha256.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <limits>

#include "base/check.h"

namespace kvc {
namespace {

unsigned char* writable(Sha256Digest* digest) {
  return reinterpret_cast<unsigned char*>(digest->data());
}

}  // namespace

void Sha256::Free::operator()(evp_md_ctx_st* context) const { EVP_MD_CTX_free(context); }

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  KVC_CHECK(context_ != nullptr, "OpenSSL gives no digest context");
  KVC_CHECK(EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1,
            "OpenSSL has no SHA-256");
}

void Sha256::digest(std::span<const std::byte> message, Sha256Digest* out) {
  add(message);
  finish(out);
}

void Sha256::add(std::span<const std::byte> bytes) {
  KVC_CHECK(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1, "SHA-256 failed");
}

Sha256Digest Sha256::take() {
  Sha256Digest digest;
  finish(&digest);
  return digest;
}

void Sha256::finish(Sha256Digest* out) {
  KVC_CHECK(EVP_DigestFinal_ex(context_.get(), writable(out), nullptr) == 1, "SHA-256 failed");
  // Without a type the context keeps its algorithm, which spares the look-up of the provider.
  KVC_CHECK(EVP_DigestInit_ex(context_.get(), nullptr, nullptr) == 1, "SHA-256 failed");
}

Sha256Digest hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> message) {
  KVC_CHECK(key.size() <= static_cast<std::size_t>(std::numeric_limits<int>::max()),
            "the key is too long");
  Sha256Digest digest;
  KVC_CHECK(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                 reinterpret_cast<const unsigned char*>(message.data()), message.size(),
                 writable(&digest), nullptr) != nullptr,
            "HMAC failed");
  return digest;
}

}  // namespace kvc
