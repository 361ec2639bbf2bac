// What the world knows and the product does not: which bytes every block must have, when each
// object was complete, and so whether what the product did was right. It shares no code with the
// codec, the hashing or the connector; it is told what was stored by the simulated store itself.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "testing/sim/event_loop.h"

namespace kvc::sim {

inline constexpr std::uint32_t kMaxRanks = 4;
inline constexpr std::uint32_t kMaxParts = 2;
/// As docs/format/block.md has it.
inline constexpr std::size_t kObjectHeaderBytes = 128;

/// A block as the oracle names it: everything that decides its bytes, numbered.
using Content = std::uint32_t;

enum class ObjectIs : std::uint8_t { kShard, kReady, kManifest };

/// Which object a call to the store is about. Told to the simulated store beside the key.
struct Tag {
  Content content = 0;
  ObjectIs is = ObjectIs::kShard;
  std::uint8_t rank = 0;
  std::uint8_t part = 0;
  /// Of a manifest: the step in which its writer began to look for all ranks' markers. Of a READY
  /// marker: the one in which it began to look for the layers, where it has to.
  std::uint64_t seen_since = UINT64_MAX;
};

/// Which objects make a block, in this world.
struct Shape {
  std::uint32_t ranks = 2;
  std::uint32_t parts = 1;  ///< Objects of one shard.
  bool by_layer = false;
  bool atomic_publish = true;

  bool needs_ready() const { return by_layer || !atomic_publish; }
};

/// What counts as a violation.
enum class Rules : std::uint8_t {
  kAll,
  /// Harm: not that a rule is broken which keeps it away. What a bug must come to if somebody who
  /// does not know the rule is to notice.
  kHarm,
};

class Oracle {
 public:
  Oracle(const EventLoop& loop, const Shape& shape, Rules rules = Rules::kAll)
      : loop_(loop), shape_(shape), rules_(rules) {}

  // Contents.
  Content content(std::uint32_t keyspace, std::uint32_t salt, std::span<const std::int32_t> prefix);
  /// A name that the product gave a block: one name for one content, and one content for one name.
  void named(std::uint32_t keyspace, Content content, std::span<const std::byte> name);
  static void fill(Content content, std::uint32_t rank, std::uint32_t part,
                   std::span<std::byte> payload);
  static bool is_right(Content content, std::uint32_t rank, std::uint32_t part,
                       std::span<const std::byte> payload);

  // The store.
  void visible(const Tag& tag);
  /// All bytes of an object are there. `object` with its header.
  void complete(const Tag& tag, std::span<const std::byte> object);
  void gone(const Tag& tag);
  bool has_manifest(Content content) const { return is_there({content, ObjectIs::kManifest}); }

  // What the product claims.
  /// A probe that began at `since` says that these blocks are complete on every rank.
  void check_probe(std::span<const Content> blocks, std::uint64_t since);
  void check_loaded(Content content, std::uint32_t rank, std::uint32_t part,
                    std::span<const std::byte> payload, const char* where);

  void violation(std::string what);
  /// A rule is broken that keeps harm away; no harm is done yet.
  void rule_broken(std::string what);
  const std::string& first_violation() const { return violation_; }
  bool violated() const { return !violation_.empty(); }

  std::uint32_t manifests() const { return manifests_; }
  std::uint32_t loaded() const { return loaded_; }

 private:
  struct Presence {
    bool there = false;
    bool ever_complete = false;
    std::uint64_t gone_at = 0;
  };

  Presence& at(const Tag& tag);
  bool is_there(const Tag& tag) const;
  /// At some instant from step `since` on.
  bool was_there(const Tag& tag, std::uint64_t since) const;
  static std::size_t index(const Tag& tag);
  void check_manifest(const Tag& tag);
  void check_ready(const Tag& tag);
  Tag marker_of(Content content, std::uint32_t rank) const;

  const EventLoop& loop_;
  const Shape shape_;
  const Rules rules_;
  std::map<std::vector<std::int32_t>, Content> contents_;
  std::map<std::array<std::byte, 33>, Content> by_name_;
  std::vector<std::array<std::byte, 33>> names_;  // By content; empty if the first byte is 0.
  std::vector<Presence> presence_;
  std::string violation_;
  std::uint32_t manifests_ = 0;
  std::uint32_t loaded_ = 0;
};

}  // namespace kvc::sim
