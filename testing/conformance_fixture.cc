#include "testing/conformance_fixture.h"

#include <algorithm>

#include "base/random.h"

namespace kvc::testlib {

Bytes payload_for(std::string_view name, std::size_t bytes) {
  Bytes payload(bytes);
  Random(mix_text(0, name)).fill(payload);
  return payload;
}

void ConformanceTest::SetUp() {
  store_ = parameters_->open();
  ASSERT_NE(store_, nullptr);
}

void ConformanceTest::TearDown() {
  if (store_ == nullptr) return;
  std::vector<std::string> keys;
  {
    const MutexLock lock(mutex_);
    keys.swap(keys_);
  }
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  store_->remove(std::move(keys), {});
  store_->close(Deadline::never());
}

std::string ConformanceTest::key(std::string_view name) {
  const ::testing::TestInfo* info = ::testing::UnitTest::GetInstance()->current_test_info();
  std::string key = parameters_->key_prefix + info->name() + "/" + std::string(name);
  const MutexLock lock(mutex_);
  keys_.push_back(key);
  return key;
}

PutResult ConformanceTest::put(const std::string& key, const Bytes& payload) {
  const std::vector<PutResult> results = store_->put({put_item(key, payload)}, {});
  EXPECT_EQ(results.size(), 1u);
  return results.empty() ? PutResult{} : results[0];
}

void ConformanceTest::expect_object(const std::string& key, const Bytes& payload) {
  Bytes buffer(payload.size(), std::byte{0xa5});
  const std::vector<GetResult> results = store_->get({get_item(key, buffer)}, {});
  ASSERT_EQ(results.size(), 1u);
  ASSERT_EQ(results[0].reaction, Reaction::kOk) << to_string(results[0].reaction) << " " << key;
  EXPECT_EQ(results[0].bytes, payload.size());
  EXPECT_TRUE(buffer == payload) << "other bytes than were put: " << key;
}

Reaction ConformanceTest::exists(const std::string& key) {
  const std::vector<Reaction> results = store_->exists({key}, {});
  EXPECT_EQ(results.size(), 1u);
  return results.empty() ? Reaction::kDown : results[0];
}

Reaction ConformanceTest::remove(const std::string& key) {
  const std::vector<Reaction> results = store_->remove({key}, {});
  EXPECT_EQ(results.size(), 1u);
  return results.empty() ? Reaction::kDown : results[0];
}

void ConformanceTest::expect_down() {
  const Bytes payload = payload_for("down", 100);
  Bytes buffer(100, std::byte{0xa5});
  const std::string name = key("down");
  const std::vector<PutResult> puts = store_->put({put_item(name, payload)}, {});
  ASSERT_EQ(puts.size(), 1u);
  EXPECT_EQ(puts[0].reaction, Reaction::kDown);
  EXPECT_EQ(puts[0].effect, PutEffect::kNone);
  const std::vector<GetResult> gets = store_->get({get_item(name, buffer)}, {});
  ASSERT_EQ(gets.size(), 1u);
  EXPECT_EQ(gets[0].reaction, Reaction::kDown);
  EXPECT_EQ(exists(name), Reaction::kDown);
  EXPECT_EQ(remove(name), Reaction::kDown);
}

}  // namespace kvc::testlib
