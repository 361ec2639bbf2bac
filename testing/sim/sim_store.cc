#include "testing/sim/sim_store.h"

#include <algorithm>
#include <utility>

#include "base/random.h"

namespace kvc::sim {

void TransferWatch::end(const void* page) {
  const auto found = count_.find(page);
  if (found != count_.end() && --found->second == 0) count_.erase(found);
}

/// A call under way. Its items are worked on one after another, each in its own step, so that a
/// batch is no snapshot.
template <typename Answer>
struct SimStore::Call {
  Process& caller;
  std::uint32_t life;
  Answer lost;  // What the caller is told of an item whose outcome is not known.
  std::vector<Answer> answers;
  Reply<Answer> reply;  // Empty once it was used.
  /// Works on one item. False: it takes another step.
  std::function<bool(Call&, std::size_t)> work;
  std::function<void()> over;  // No transfer touches the caller's memory any more.
  std::size_t next = 0;
  bool reply_is_lost = false;

  bool caller_died() const { return !caller.up() || caller.life() != life; }
};

template <typename Answer>
void SimStore::answer(Call<Answer>& call, std::vector<Answer> answers) {
  if (!call.reply) return;
  const Reply<Answer> reply = std::exchange(call.reply, nullptr);
  if (call.caller_died()) return;
  if (!answers.empty() && faults_.strikes(Fault::kWrongLength)) answers.pop_back();
  reply(std::move(answers));
}

template <typename Answer>
void SimStore::begin(CallPtr<Answer> call, Tick delay) {
  const bool timed = loop_.order() == EventOrder::kByTime;
  const auto give_up = [this, call] {
    if (call->reply) journal_.note(loop_.now(), "store: deadline", call->answers.size());
    answer(*call, std::vector<Answer>(call->answers.size(), call->lost));
  };
  if (down() || faults_.strikes(Fault::kRequestLost)) {
    loop_.after(down() ? loop_.some_delay(options_.latency) : options_.deadline, [call, give_up] {
      call->over();
      give_up();
    });
    return;
  }
  if (timed) loop_.after(options_.deadline, give_up);
  if (faults_.strikes(Fault::kStall)) {
    if (!timed) {
      loop_.after(0, [this, call, give_up] {
        loop_.after(0, [this, call] { carry_on(call); });
        give_up();
      });
      return;
    }
    delay += options_.deadline * (1 + choice_.below(4));
  }
  loop_.after(delay, [this, call] { carry_on(call); });
}

template <typename Answer>
void SimStore::carry_on(CallPtr<Answer> call) {
  // A dead process sends nothing more; what it has sent may still arrive.
  if (call->caller_died() && choice_.below(2) == 1) return call->over();
  do {
    if (call->next == call->answers.size()) break;
    if (!call->work(*call, call->next)) {
      loop_.after(loop_.some_delay(options_.latency), [this, call] { carry_on(call); });
      return;
    }
    ++call->next;
  } while (options_.whole_batches);
  if (call->next < call->answers.size()) {
    loop_.after(loop_.some_delay(3), [this, call] { carry_on(call); });
    return;
  }
  finish(call);
}

template <typename Answer>
void SimStore::finish(CallPtr<Answer> call) {
  call->over();
  call->reply_is_lost = faults_.strikes(Fault::kReplyLost);
  if (loop_.order() == EventOrder::kAny) {
    return answer(*call, call->reply_is_lost ? std::vector<Answer>(call->answers.size(), call->lost)
                                             : std::move(call->answers));
  }
  if (call->reply_is_lost) return;  // The deadline answers.
  Tick delay = loop_.some_delay(options_.latency);
  if (faults_.strikes(Fault::kReplyLate)) delay += options_.deadline;
  loop_.after(delay, [this, call] {
    if (call->reply) answer(*call, std::move(call->answers));
  });
}

void SimStore::exists(Process& caller, std::vector<std::string> keys, Reply<Reaction> reply) {
  const std::size_t count = keys.size();
  auto call = std::make_shared<Call<Reaction>>(
      Call<Reaction>{caller, caller.life(), Reaction::kDown, {}, std::move(reply), {}, {}});
  call->answers.assign(count, Reaction::kDown);
  call->work = [this, keys = std::move(keys)](Call<Reaction>& self, std::size_t i) {
    Object* object = find(keys[i]);
    self.answers[i] = object != nullptr ? Reaction::kOk : Reaction::kMiss;
    if (object != nullptr && options_.lease > 0)
      object->leased_until = loop_.now() + options_.lease;
    journal_.note(loop_.now(), "store: exists", object != nullptr ? object->tag.content : 999,
                  object != nullptr ? static_cast<unsigned>(object->tag.is) : 0,
                  object != nullptr ? object->tag.rank : 0);
    return true;
  };
  call->over = [] {};
  begin(std::move(call), loop_.some_delay(options_.latency));
}

void SimStore::remove(Process& caller, std::vector<std::string> keys, Reply<Reaction> reply) {
  const std::size_t count = keys.size();
  auto call = std::make_shared<Call<Reaction>>(
      Call<Reaction>{caller, caller.life(), Reaction::kDown, {}, std::move(reply), {}, {}});
  call->answers.assign(count, Reaction::kDown);
  call->work = [this, keys = std::move(keys)](Call<Reaction>& self, std::size_t i) {
    const auto found = index_.find(keys[i]);
    self.answers[i] = found == index_.end() ? Reaction::kMiss : Reaction::kOk;
    journal_.note(loop_.now(), "store: remove", found != index_.end());
    if (found != index_.end()) erase(found->second);
    return true;
  };
  call->over = [] {};
  begin(std::move(call), loop_.some_delay(options_.latency));
}

void SimStore::put(Process& caller, std::vector<Put> items, BufferHold hold,
                   Reply<PutResult> reply) {
  const PutResult lost{Reaction::kDown, PutEffect::kUnknown};
  auto call = std::make_shared<Call<PutResult>>(
      Call<PutResult>{caller, caller.life(), lost, {}, std::move(reply), {}, {}});
  call->answers.assign(items.size(), lost);
  for (const Put& item : items) watch_.begin(item.data.data());
  auto shared = std::make_shared<const std::vector<Put>>(std::move(items));
  auto began = std::make_shared<std::vector<std::uint64_t>>(shared->size(), 0);
  call->work = [this, shared, began](Call<PutResult>& self, std::size_t i) {
    return put_step(self, (*shared)[i], &(*began)[i], &self.answers[i]);
  };
  call->over = [this, shared, held = std::move(hold)]() mutable {
    if (loop_.order() == EventOrder::kByTime && faults_.strikes(Fault::kRequestRepeated)) {
      repeat(*shared);
    }
    for (const Put& item : *shared) watch_.end(item.data.data());
    held.reset();
  };
  begin(std::move(call), loop_.some_delay(options_.latency));
}

bool SimStore::put_step(Call<PutResult>& call, const Put& item, std::uint64_t* began,
                        PutResult* result) {
  if (*began != 0) {  // The second half of a put that is visible in parts.
    const bool done = !call.caller_died() && complete(item, *began);
    *result = done ? PutResult{Reaction::kOk,
                               options_.tells_existing ? PutEffect::kStored : PutEffect::kUnknown}
                   : PutResult{Reaction::kStale, PutEffect::kNone};
    return true;
  }
  if (faults_.strikes(Fault::kBackOff)) {
    *result = {Reaction::kBackOff, PutEffect::kNone};
    return true;
  }
  *result = add(item, began);
  return *began == 0;
}

PutResult SimStore::add(const Put& item, std::uint64_t* began) {
  journal_.note(loop_.now(), "store: put", item.tag.content, static_cast<unsigned>(item.tag.is),
                item.tag.rank);
  if (find(item.key) != nullptr) {
    return {Reaction::kOk, options_.tells_existing ? PutEffect::kExisted : PutEffect::kUnknown};
  }
  if (!make_room()) return {Reaction::kBackOff, PutEffect::kNone};
  Object object{.key = item.key, .tag = item.tag, .bytes = {}, .id = next_id_++};
  object.bytes.assign(item.data.begin(), item.data.end());
  object.visible = object.bytes.size();
  // A marker is small; in worlds that are tried in full it is there at once.
  const bool at_once =
      atomic_ || (loop_.order() == EventOrder::kAny && item.tag.is != ObjectIs::kShard);
  if (!at_once) {
    object.whole = false;
    std::fill(object.bytes.begin() + static_cast<std::ptrdiff_t>(object.bytes.size() / 2),
              object.bytes.end(), std::byte{0});
    const bool timed = loop_.order() == EventOrder::kByTime;
    if (timed && choice_.below(2) == 1) object.visible = object.bytes.size() / 2;
    *began = object.id;
  }
  index_.emplace(item.key, objects_.size());
  objects_.push_back(std::move(object));
  oracle_.visible(item.tag);
  ++writes_;
  if (at_once) oracle_.complete(item.tag, item.data);
  return {Reaction::kOk, options_.tells_existing ? PutEffect::kStored : PutEffect::kUnknown};
}

void SimStore::preload(std::string key, const Tag& tag, std::span<const std::byte> object) {
  std::uint64_t began = 0;
  const Put item{std::move(key), tag, object};
  add(item, &began);
  if (began != 0) complete(item, began);
}

/// False: it was removed, and perhaps begun anew, by somebody else.
bool SimStore::complete(const Put& item, std::uint64_t began) {
  Object* object = find(item.key);
  if (object == nullptr || object->id != began) return false;
  object->bytes.assign(item.data.begin(), item.data.end());
  object->visible = object->bytes.size();
  object->whole = true;
  ++writes_;
  oracle_.complete(item.tag, item.data);
  return true;
}

/// The same request once more, from a copy on its way: it may bring back what was removed.
void SimStore::repeat(const std::vector<Put>& items) {
  for (const Put& item : items) {
    std::vector<std::byte> bytes(item.data.begin(), item.data.end());
    loop_.after(choice_.below(static_cast<std::uint32_t>(options_.deadline)),
                [this, key = item.key, tag = item.tag, bytes = std::move(bytes)] {
                  const Put again{key, tag, bytes};
                  std::uint64_t began = 0;
                  if (add(again, &began).reaction == Reaction::kOk && began != 0) {
                    complete(again, began);
                  }
                });
  }
}

bool SimStore::make_room() {
  if (options_.capacity == 0 || objects_.size() < options_.capacity) return true;
  for (std::size_t i = 0; i < objects_.size(); ++i) {
    if (objects_[i].leased_until > loop_.now()) continue;
    erase(i);
    return true;
  }
  return false;
}

void SimStore::get(Process& caller, std::vector<Get> items, BufferHold hold,
                   Reply<GetResult> reply) {
  auto call = std::make_shared<Call<GetResult>>(
      Call<GetResult>{caller, caller.life(), {Reaction::kDown, 0}, {}, std::move(reply), {}, {}});
  call->answers.assign(items.size(), {Reaction::kDown, 0});
  for (const Get& item : items) watch_.begin(item.into.data());
  auto shared = std::make_shared<const std::vector<Get>>(std::move(items));
  call->work = [this, shared](Call<GetResult>& self, std::size_t i) {
    self.answers[i] = read((*shared)[i]);
    return true;
  };
  call->over = [this, shared, held = std::move(hold)]() mutable {
    for (const Get& item : *shared) watch_.end(item.into.data());
    held.reset();
  };
  begin(std::move(call), loop_.some_delay(options_.latency));
}

GetResult SimStore::read(const Get& item) {
  const Object* object = find(item.key);
  if (object == nullptr) return {Reaction::kMiss, 0};
  if (faults_.strikes(Fault::kBackOff)) return {Reaction::kBackOff, 0};
  if (faults_.strikes(Fault::kStaleRead)) return {Reaction::kStale, 0};
  if (faults_.strikes(Fault::kMisdirectedRead)) object = other_object(item.key);
  journal_.note(loop_.now(), "store: get", object->tag.content, object->tag.rank, object->visible);
  if (object->visible > item.into.size()) return {Reaction::kCallerBug, 0};
  std::copy_n(object->bytes.begin(), object->visible, item.into.begin());
  if (object->visible > 0 && faults_.strikes(Fault::kDamagedRead)) {
    damage_read(item.into.first(object->visible));
  }
  return {Reaction::kOk, object->visible};
}

/// In worlds that are tried in full: the first byte, or the last one.
void SimStore::damage_read(std::span<std::byte> bytes) {
  if (loop_.order() == EventOrder::kAny) {
    bytes[choice_.below(2) == 0 ? 0 : bytes.size() - 1] ^= std::byte{1};
    return;
  }
  const std::size_t at = choice_.below(static_cast<std::uint32_t>(bytes.size()));
  bytes[at] ^= static_cast<std::byte>(1u << choice_.below(8));
}

SimStore::Object* SimStore::find(const std::string& key) {
  const auto found = index_.find(key);
  return found == index_.end() ? nullptr : &objects_[found->second];
}

SimStore::Object* SimStore::find(const Tag& tag) {
  for (Object& object : objects_) {
    const Tag& of = object.tag;
    if (of.content == tag.content && of.is == tag.is && of.rank == tag.rank &&
        of.part == tag.part) {
      return &object;
    }
  }
  return nullptr;
}

bool SimStore::evict(const Tag& tag) {
  const Object* object = find(tag);
  if (object != nullptr) erase(static_cast<std::size_t>(object - objects_.data()));
  return object != nullptr;
}

bool SimStore::damage(const Tag& tag) {
  Object* object = find(tag);
  if (object == nullptr) return false;
  object->bytes.back() ^= std::byte{1};
  object->spoiled = true;
  return true;
}

SimStore::Object* SimStore::some_object() {
  if (objects_.empty()) return nullptr;
  return &objects_[choice_.below(static_cast<std::uint32_t>(objects_.size()))];
}

/// Whatever a wrong turn may find: at times the same block of another keyspace.
SimStore::Object* SimStore::other_object(const std::string& key) {
  constexpr std::size_t kKeyspaceEnd = 38;  // "kvc1/<32 hex>/"
  if (choice_.below(2) == 1) return some_object();
  for (Object& object : objects_) {
    if (object.key != key && object.key.compare(kKeyspaceEnd, std::string::npos, key, kKeyspaceEnd,
                                                std::string::npos) == 0) {
      return &object;
    }
  }
  return some_object();
}

void SimStore::erase(std::size_t at) {
  oracle_.gone(objects_[at].tag);
  index_.erase(objects_[at].key);
  objects_.erase(objects_.begin() + static_cast<std::ptrdiff_t>(at));
  for (std::size_t i = at; i < objects_.size(); ++i) index_[objects_[i].key] = i;
}

bool SimStore::evict_one() {
  const Object* object = some_object();
  if (object == nullptr || object->leased_until > loop_.now()) return false;
  journal_.note(loop_.now(), "store: evict", object->tag.content,
                static_cast<unsigned>(object->tag.is), object->tag.rank);
  erase(static_cast<std::size_t>(object - objects_.data()));
  return true;
}

bool SimStore::damage_one() {
  Object* object = some_object();
  if (object == nullptr || !object->whole) return false;
  const std::size_t at = choice_.below(static_cast<std::uint32_t>(object->bytes.size()));
  object->bytes[at] ^= static_cast<std::byte>(1u << choice_.below(8));
  object->spoiled = true;
  journal_.note(loop_.now(), "store: damage", object->tag.content, object->tag.rank, at);
  return true;
}

bool SimStore::truncate_one() {
  Object* object = some_object();
  if (object == nullptr || !object->whole) return false;
  object->visible = choice_.below(static_cast<std::uint32_t>(object->bytes.size()));
  object->spoiled = true;
  journal_.note(loop_.now(), "store: truncate", object->tag.content, object->tag.rank);
  return true;
}

bool SimStore::wipe() {
  if (objects_.empty()) return false;
  journal_.note(loop_.now(), "store: wipe", objects_.size());
  while (!objects_.empty()) erase(objects_.size() - 1);
  return true;
}

std::uint64_t SimStore::state() const {
  std::uint64_t state = 0;
  for (const Object& object : objects_) {
    const std::uint64_t tag = (std::uint64_t{object.tag.content} << 16) |
                              (static_cast<std::uint64_t>(object.tag.is) << 12) |
                              (std::uint64_t{object.tag.rank} << 8) |
                              (std::uint64_t{object.tag.part} << 4) | (object.whole ? 1u : 0u) |
                              (object.spoiled ? 2u : 0u);
    state += mix_bits(tag + 1);  // In no order: what matters is what is there.
  }
  return state;
}

}  // namespace kvc::sim
