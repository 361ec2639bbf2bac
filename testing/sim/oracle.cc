#include "testing/sim/oracle.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace kvc::sim {
namespace {

std::byte byte_at(Content content, std::uint32_t rank, std::uint32_t part, std::size_t offset) {
  // A plain mixing of its own: odd multipliers, and the upper bits.
  std::uint64_t x = content * 0x9e3779b97f4a7c15u + rank * 0xd1b54a32d192ed03u +
                    part * 0xaef17502108ef2d9u + offset * 0x8cb92ba72f3d8dd7u + 0x1234567u;
  x ^= x >> 29;
  x *= 0xbf58476d1ce4e5b9u;
  return static_cast<std::byte>(x >> 56);
}

std::string described(const Tag& tag) {
  constexpr std::array<const char*, 3> kinds{"shard", "READY", "manifest"};
  return std::string(kinds[static_cast<std::size_t>(tag.is)]) + " of block " +
         std::to_string(tag.content) + " rank " + std::to_string(tag.rank) + " part " +
         std::to_string(tag.part);
}

}  // namespace

void Oracle::rule_broken(std::string what) {
  if (rules_ == Rules::kAll) violation(std::move(what));
}

void Oracle::violation(std::string what) {
  if (violation_.empty()) violation_ = "at tick " + std::to_string(loop_.now()) + ": " + what;
}

Content Oracle::content(std::uint32_t keyspace, std::uint32_t salt,
                        std::span<const std::int32_t> prefix) {
  std::vector<std::int32_t> key{static_cast<std::int32_t>(keyspace),
                                static_cast<std::int32_t>(salt)};
  key.insert(key.end(), prefix.begin(), prefix.end());
  const auto next = static_cast<Content>(contents_.size());
  return contents_.emplace(std::move(key), next).first->second;
}

void Oracle::named(std::uint32_t keyspace, Content content, std::span<const std::byte> name) {
  std::array<std::byte, 33> full{};
  full[0] = static_cast<std::byte>(keyspace + 1);
  std::memcpy(full.data() + 1, name.data(), std::min<std::size_t>(name.size(), 32));
  const auto [known, added] = by_name_.emplace(full, content);
  if (known->second != content) {
    violation("blocks " + std::to_string(known->second) + " and " + std::to_string(content) +
              " have one name");
  }
  if (names_.size() <= content) names_.resize(content + 1);
  if (names_[content][0] != std::byte{0} && names_[content] != full) {
    violation("block " + std::to_string(content) + " has two names");
  }
  names_[content] = full;
}

void Oracle::fill(Content content, std::uint32_t rank, std::uint32_t part,
                  std::span<std::byte> payload) {
  for (std::size_t i = 0; i < payload.size(); ++i) payload[i] = byte_at(content, rank, part, i);
}

bool Oracle::is_right(Content content, std::uint32_t rank, std::uint32_t part,
                      std::span<const std::byte> payload) {
  for (std::size_t i = 0; i < payload.size(); ++i) {
    if (payload[i] != byte_at(content, rank, part, i)) return false;
  }
  return true;
}

std::size_t Oracle::index(const Tag& tag) {
  const auto is = static_cast<std::size_t>(tag.is);
  return ((tag.content * std::size_t{3} + is) * kMaxRanks + tag.rank) * kMaxParts + tag.part;
}

Oracle::Presence& Oracle::at(const Tag& tag) {
  const std::size_t i = index(tag);
  if (presence_.size() <= i) presence_.resize(i + 1);
  return presence_[i];
}

bool Oracle::is_there(const Tag& tag) const {
  const std::size_t i = index(tag);
  return i < presence_.size() && presence_[i].there;
}

bool Oracle::was_there(const Tag& tag, std::uint64_t since) const {
  const std::size_t i = index(tag);
  if (i >= presence_.size()) return false;
  return presence_[i].there || (presence_[i].gone_at > 0 && presence_[i].gone_at >= since);
}

Tag Oracle::marker_of(Content content, std::uint32_t rank) const {
  return {content, shape_.needs_ready() ? ObjectIs::kReady : ObjectIs::kShard,
          static_cast<std::uint8_t>(rank)};
}

void Oracle::visible(const Tag& tag) {
  at(tag).there = true;
  if (tag.is == ObjectIs::kManifest) check_manifest(tag);
  if (tag.is == ObjectIs::kReady) check_ready(tag);
}

void Oracle::check_ready(const Tag& tag) {
  for (std::uint32_t part = 0; part < shape_.parts; ++part) {
    const Tag shard{tag.content, ObjectIs::kShard, tag.rank, static_cast<std::uint8_t>(part)};
    if (!at(shard).ever_complete) {
      violation(described(tag) + " although part " + std::to_string(part) +
                " of the shard was never complete");
    }
    if (tag.seen_since != UINT64_MAX && !was_there(shard, tag.seen_since)) {
      violation(described(tag) + " although its writer cannot have seen part " +
                std::to_string(part));
    }
  }
}

void Oracle::complete(const Tag& tag, std::span<const std::byte> object) {
  if (tag.is != ObjectIs::kShard) return;
  if (object.size() < kObjectHeaderBytes ||
      !is_right(tag.content, tag.rank, tag.part, object.subspan(kObjectHeaderBytes))) {
    return violation(described(tag) + " is stored with bytes that are not its own");
  }
  at(tag).ever_complete = true;
}

void Oracle::gone(const Tag& tag) {
  Presence& presence = at(tag);
  presence.there = false;
  presence.gone_at = loop_.steps() + 1;
}

void Oracle::check_manifest(const Tag& tag) {
  ++manifests_;
  for (std::uint32_t rank = 0; rank < shape_.ranks; ++rank) {
    for (std::uint32_t part = 0; part < shape_.parts; ++part) {
      const Tag shard{tag.content, ObjectIs::kShard, static_cast<std::uint8_t>(rank),
                      static_cast<std::uint8_t>(part)};
      if (!at(shard).ever_complete) {
        return violation(described(tag) + " although rank " + std::to_string(rank) +
                         "'s shard was never complete");
      }
    }
    if (tag.seen_since == UINT64_MAX || !was_there(marker_of(tag.content, rank), tag.seen_since)) {
      return violation(described(tag) +
                       " although its writer cannot have seen the marker of rank " +
                       std::to_string(rank));
    }
  }
}

void Oracle::check_probe(std::span<const Content> blocks, std::uint64_t since) {
  for (const Content content : blocks) {
    for (std::uint32_t rank = 0; rank < shape_.ranks; ++rank) {
      for (std::uint32_t part = 0; part < shape_.parts; ++part) {
        const Tag shard{content, ObjectIs::kShard, static_cast<std::uint8_t>(rank),
                        static_cast<std::uint8_t>(part)};
        if (was_there(shard, since)) continue;
        return violation("a probe found block " + std::to_string(content) + ", of which rank " +
                         std::to_string(rank) + " has no shard");
      }
    }
  }
}

void Oracle::check_loaded(Content content, std::uint32_t rank, std::uint32_t part,
                          std::span<const std::byte> payload, const char* where) {
  ++loaded_;
  if (is_right(content, rank, part, payload)) return;
  violation(std::string(where) + ": wrong bytes of block " + std::to_string(content) + " rank " +
            std::to_string(rank) + " part " + std::to_string(part));
}

}  // namespace kvc::sim
