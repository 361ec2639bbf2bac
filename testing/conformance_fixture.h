// The fixture behind testing/store_conformance.h: keys, payloads and calls in short form.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "testing/store_conformance.h"

namespace kvc::testlib {

using Bytes = std::vector<std::byte>;

/// Bytes that depend on `name` and on nothing else.
Bytes payload_for(std::string_view name, std::size_t bytes);

class ConformanceTest : public ::testing::Test {
 public:
  explicit ConformanceTest(std::shared_ptr<const StoreConformance> parameters)
      : parameters_(std::move(parameters)) {}

  void SetUp() override;
  /// Removes every key that key() made, so that a shared store stays usable, and closes.
  void TearDown() override;

  const StoreConformance& parameters() const { return *parameters_; }
  Store& store() { return *store_; }

  /// A full key that no other test uses. Safe to call from any thread.
  std::string key(std::string_view name);

  PutResult put(const std::string& key, const Bytes& payload);
  /// Expects the object to be there and to be `payload`.
  void expect_object(const std::string& key, const Bytes& payload);
  Reaction exists(const std::string& key);
  Reaction remove(const std::string& key);
  /// Expects every call to be answered kDown for one item.
  void expect_down();

 private:
  const std::shared_ptr<const StoreConformance> parameters_;
  std::shared_ptr<Store> store_;
  Mutex mutex_;
  std::vector<std::string> keys_ KVC_GUARDED_BY(mutex_);
};

struct ConformanceCase {
  const char* name;
  void (*body)(ConformanceTest& test);
  /// Null: always.
  bool (*applies)(const StoreConformance& parameters) = nullptr;
};

/// The claims about one caller (store_conformance.cc) and about several (conformance_threads.cc).
std::vector<ConformanceCase> single_caller_cases();
std::vector<ConformanceCase> concurrent_cases();

/// What a GetItem for `buffer` is.
inline GetItem get_item(std::string key, Bytes& buffer) {
  return {std::move(key), buffer.data(), buffer.size()};
}
inline PutItem put_item(std::string key, const Bytes& payload) {
  return {std::move(key), payload.data(), payload.size()};
}

}  // namespace kvc::testlib
