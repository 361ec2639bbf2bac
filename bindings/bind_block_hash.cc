#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>

#include "bindings/bind.h"
#include "bindings/convert.h"
#include "bindings/gil.h"
#include "bindings/status_error.h"
#include "kvc/block_hash.h"

namespace kvc::bindings {
namespace {

namespace nb = nanobind;
using nb::literals::operator""_a;

BlockChain make_chain(std::uint32_t tokens_per_block, nb::handle cache_salt, nb::handle lora,
                      nb::handle media, const nb::bytes& deployment_secret) {
  const BlockHashOptions options{
      .tokens_per_block = tokens_per_block,
      .deployment_secret = std::string(deployment_secret.c_str(), deployment_secret.size())};
  return value_or_throw(BlockChain::create(options, to_scope(cache_salt, lora), to_media(media)));
}

void append(BlockChain& chain, nb::handle tokens) {
  const std::vector<Token> converted = to_tokens(tokens);
  throw_if_failed([&] {
    const GilRelease release;
    return chain.append(converted);
  }());
}

nb::list blocks(const BlockChain& chain) {
  nb::list hashes;
  for (const BlockHash& hash : chain.blocks()) hashes.append(to_bytes(hash.bytes));
  return hashes;
}

}  // namespace

void bind_block_hash(nb::module_& m) {
  nb::class_<BlockChain>(m, "BlockChain")
      .def(nb::new_(&make_chain), "tokens_per_block"_a, nb::kw_only(),
           "cache_salt"_a.none() = nb::none(), "lora"_a.none() = nb::none(),
           "media"_a = nb::make_tuple(), "deployment_secret"_a = nb::bytes(""),
           "Media items are (digest, start, length).")
      .def("append", &append, "tokens"_a)
      .def("blocks", &blocks, nb::sig("def blocks(self) -> list[bytes]"),
           "Names of the complete blocks, in order.");
}

}  // namespace kvc::bindings
