#include "testing/sim/runner.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "base/check.h"
#include "os/thread.h"

namespace kvc::sim {

void RunTotals::add(const WorldResult& result) {
  ++seeds;
  if (result.counts()) ++schedules;
  events += result.events;
  committed += result.committed;
  loaded += result.loaded;
  for (std::size_t i = 0; i < kFaults; ++i) by_fault[i] += result.by_fault[i];
  for (std::size_t i = 0; i < kMarks; ++i) marks[i] += result.marks[i];
}

void RunTotals::merge(const RunTotals& other) {
  seeds += other.seeds;
  schedules += other.schedules;
  run_twice += other.run_twice;
  events += other.events;
  committed += other.committed;
  loaded += other.loaded;
  for (std::size_t i = 0; i < kFaults; ++i) by_fault[i] += other.by_fault[i];
  for (std::size_t i = 0; i < kMarks; ++i) marks[i] += other.marks[i];
  states.merge(other.states);
  failures.insert(failures.end(), other.failures.begin(), other.failures.end());
  std::ranges::sort(failures, {}, &Failure::seed);
}

WorldResult run_seed(std::uint64_t seed, StateCount* states, std::FILE* text, Rules rules) {
  SeededChoice choice(mix_bits(seed));
  WorldOptions options = WorldOptions::draw(choice);
  options.rules = rules;
  if (text != nullptr) std::fprintf(text, "%s\n", options.to_string().c_str());
  World world(options, choice, text);
  return world.run([states](std::uint64_t state) {
    if (states != nullptr) states->add(state);
  });
}

namespace {

struct Shared {
  std::atomic<std::uint64_t> next_seed;
  std::atomic<std::uint64_t> schedules{0};
  std::atomic<std::uint64_t> failures{0};
};

void run_some(const RunOptions& options, Shared& shared, RunTotals& totals) {
  while (shared.schedules < options.schedules && shared.failures < options.failures_max) {
    const std::uint64_t seed = shared.next_seed++;
    WorldResult result = run_seed(seed, &totals.states, nullptr, options.rules);
    if (result.violation.empty() && options.twice_every != 0 && seed % options.twice_every == 0) {
      ++totals.run_twice;
      if (run_seed(seed, nullptr, nullptr, options.rules).digest != result.digest) {
        result.violation = "two runs of this seed differ";
      }
    }
    if (result.counts()) ++shared.schedules;
    totals.add(result);
    if (result.violation.empty()) continue;
    ++shared.failures;
    totals.failures.push_back({seed, std::move(result.violation)});
  }
}

}  // namespace

RunTotals run_seeds(const RunOptions& options) {
  Shared shared{.next_seed = options.first};
  std::vector<RunTotals> totals(std::max(options.threads, 1u));
  {
    std::vector<Thread> threads;
    for (std::size_t i = 1; i < totals.size(); ++i) {
      Result<Thread> thread =
          Thread::start("simulate", [&, i] { run_some(options, shared, totals[i]); });
      if (thread.ok()) threads.push_back(std::move(thread).value());
    }
    run_some(options, shared, totals[0]);
  }
  for (std::size_t i = 1; i < totals.size(); ++i) totals[0].merge(totals[i]);
  return std::move(totals[0]);
}

void print_totals(const RunTotals& totals, std::FILE* out) {
  const auto number = [](std::uint64_t value) { return static_cast<unsigned long long>(value); };
  std::fprintf(out, "schedules in which a fault fired and a block was stored: %llu of %llu seeds\n",
               number(totals.schedules), number(totals.seeds));
  std::fprintf(out, "events %llu, distinct states about %.0f, run twice with equal digests %llu\n",
               number(totals.events), totals.states.estimate(), number(totals.run_twice));
  std::fprintf(out, "manifests %llu, blocks staged or loaded and compared %llu\n",
               number(totals.committed), number(totals.loaded));
  std::fprintf(out, "faults:");
  for (std::size_t i = 0; i < kFaults; ++i) {
    std::fprintf(out, " %s %llu", std::string(to_string(static_cast<Fault>(i))).c_str(),
                 number(totals.by_fault[i]));
  }
  std::fprintf(out, "\nmarks:");
  std::string never;
  for (std::size_t i = 0; i < kMarks; ++i) {
    const std::string name(to_string(static_cast<Mark>(i)));
    if (totals.marks[i] == 0) never += (never.empty() ? "" : ", ") + name;
    std::fprintf(out, " [%s] %llu", name.c_str(), number(totals.marks[i]));
  }
  std::fprintf(out, "\nmarks never hit: %s\n", never.empty() ? "none" : never.c_str());
}

}  // namespace kvc::sim
