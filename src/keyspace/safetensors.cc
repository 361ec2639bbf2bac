#include "keyspace/safetensors.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

namespace kvc {
namespace {

using Json = nlohmann::json;

/// Collects the offsets while the text is parsed, so that a header of many megabytes needs no tree
/// of them in memory. Depth 1 is inside the outermost object, 2 inside a tensor, 3 inside a list.
class OffsetsReader final : public nlohmann::json_sax<Json> {
 public:
  bool start_object(std::size_t) override { return enter(true); }
  bool start_array(std::size_t) override { return enter(false); }

  bool key(string_t& name) override {
    if (depth_ == 1) {
      tensor_ = name;
      in_metadata_ = name == "__metadata__";
    } else if (depth_ == 2) {
      in_offsets_ = !in_metadata_ && name == "data_offsets";
      if (in_offsets_) offsets_.clear();
    }
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (!in_offsets_) return outermost_is_object();
    if (depth_ != 3 || offsets_.size() == 2) return fail("data_offsets is not a pair");
    offsets_.push_back(value);
    return true;
  }

  bool end_object() override {
    --depth_;
    if (depth_ == 1 && !in_metadata_) {
      if (offsets_.size() != 2) return fail("data_offsets is missing or not a pair");
      ranges.push_back({offsets_[0], offsets_[1]});
      offsets_.clear();
      in_offsets_ = false;
    }
    return true;
  }

  bool end_array() override {
    --depth_;
    if (depth_ == 2) in_offsets_ = false;
    return true;
  }

  bool null() override { return other(); }
  bool boolean(bool) override { return other(); }
  bool number_integer(number_integer_t) override { return other(); }
  bool number_float(number_float_t, const string_t&) override { return other(); }
  bool string(string_t&) override { return other(); }
  bool binary(binary_t&) override { return other(); }

  bool parse_error(std::size_t, const std::string&,
                   const nlohmann::detail::exception& error) override {
    problem = error.what();
    return false;
  }

  std::vector<ByteRange> ranges;
  std::string problem;

 private:
  bool fail(const std::string& why) {
    problem = "tensor '" + tensor_ + "': " + why;
    return false;
  }

  bool outermost_is_object() {
    if (depth_ > 1) return true;
    return depth_ == 0 ? fail_outermost() : fail("it is not an object");
  }

  bool fail_outermost() {
    problem = "it is not a JSON object";
    return false;
  }

  bool other() {
    if (in_offsets_) return fail("data_offsets is not a pair of numbers");
    return outermost_is_object();
  }

  bool enter(bool object) {
    if (depth_ == 0 && !object) return fail_outermost();
    if (depth_ == 1 && !object && !in_metadata_) return fail("it is not an object");
    if (in_offsets_ && (depth_ != 2 || object)) return fail("data_offsets is not a pair");
    ++depth_;
    return true;
  }

  std::size_t depth_ = 0;
  std::string tensor_;
  bool in_metadata_ = false;
  bool in_offsets_ = false;
  std::vector<std::uint64_t> offsets_;
};

}  // namespace

Result<std::vector<ByteRange>> parse_safetensors_header(const std::string& json,
                                                        std::uint64_t data_bytes) {
  OffsetsReader reader;
  if (!Json::sax_parse(json, &reader)) return invalid("malformed header: " + reader.problem);
  for (const ByteRange& range : reader.ranges) {
    if (range.first > range.end || range.end > data_bytes) {
      return invalid("malformed header: a tensor at [" + std::to_string(range.first) + ", " +
                     std::to_string(range.end) + ") does not lie within the " +
                     std::to_string(data_bytes) + " bytes of data");
    }
  }
  std::sort(reader.ranges.begin(), reader.ranges.end(), [](const ByteRange& a, const ByteRange& b) {
    return std::pair(a.first, a.end) < std::pair(b.first, b.end);
  });
  return std::move(reader.ranges);
}

}  // namespace kvc
