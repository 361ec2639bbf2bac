// kvc_simulate: deterministic worlds by seed. See docs/contract/simulation.md.
//
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>

#include "kvc/clock.h"
#include "testing/sim/runner.h"
#include "tests/sim/planted_switch.h"

namespace kvc::sim {
namespace {

constexpr const char* kHelp =
    "usage: %s [--seeds N] [--first S] [--threads T] [--failures F]\n"
    "       %s --replay S\n"
    "       %s --hunt N [--first S]\n"
    "\n"
    "Simulated worlds with faults, one by each seed.\n"
    "\n"
    "  --seeds N       run until N schedules count (default 1000). One counts if a fault fired\n"
    "                  and a block was stored, so that this takes more than N seeds\n"
    "  --first S       the first seed (default: KVC_SIMULATION_FIRST, or 1)\n"
    "  --threads T     at the same time (default: one for each core)\n"
    "  --failures F    end after so many violations (default 1)\n"
    "  --replay S      one seed, event by event\n"
    "  --planted NAME  with this bug in the product (kvc_simulate_planted)\n"
    "  --hunt N        each planted bug, until it is caught or N schedules count, then as many\n"
    "                  seeds without a bug (kvc_simulate_planted)\n"
    "  --help          this text\n"
    "\n"
    "Exit code 0: no violation, and every bug was caught; 1: otherwise; 2: wrong arguments.\n";

void print_help(const char* program, std::FILE* out) {
  std::fprintf(out, kHelp, program, program, program);
}

struct Arguments {
  RunOptions run;
  bool replay = false;
  bool hunt = false;
  std::string planted;
};

bool parse_number(const char* text, std::uint64_t* number) {
  const char* end = text + std::strlen(text);
  return std::from_chars(text, end, *number).ptr == end && end != text;
}

/// Seeds change with the commit where somebody says which it is (scripts/run_tests.py does).
std::uint64_t first_seed() {
  const char* text = std::getenv("KVC_SIMULATION_FIRST");
  std::uint64_t first = 1;
  return text != nullptr && parse_number(text, &first) ? first : 1;
}

bool parse(int count, char** words, Arguments* arguments) {
  arguments->run.first = first_seed();
  arguments->run.threads = std::max(std::thread::hardware_concurrency(), 1u);
  for (int i = 1; i + 1 < count; i += 2) {
    const std::string_view name = words[i];
    const char* value = words[i + 1];
    std::uint64_t number = 0;
    if (name == "--planted") {
      arguments->planted = value;
      continue;
    }
    if (!parse_number(value, &number)) return false;
    if (name == "--seeds") {
      arguments->run.schedules = number;
    } else if (name == "--first") {
      arguments->run.first = number;
    } else if (name == "--threads") {
      arguments->run.threads = static_cast<std::uint32_t>(number);
    } else if (name == "--failures") {
      arguments->run.failures_max = number;
    } else if (name == "--hunt") {
      arguments->run.schedules = number;
      arguments->hunt = true;
    } else if (name == "--replay") {
      arguments->run.first = number;
      arguments->replay = true;
    } else {
      return false;
    }
  }
  // Without a schedule, nothing would be tried and nothing found.
  const RunOptions& run = arguments->run;
  return count % 2 == 1 && run.schedules > 0 && run.threads > 0 && run.failures_max > 0;
}

/// A bug must be noticed by the harm that it does. A report that is sent twice does none but that
/// of its bytes: there is only the rule that it breaks.
Rules rules_for(std::string_view bug) {
  return bug.empty() || bug == "report_twice" ? Rules::kAll : Rules::kHarm;
}

int replay(std::uint64_t seed, Rules rules) {
  const WorldResult result = run_seed(seed, nullptr, stdout, rules);
  std::printf("seed %llu: %llu events, digest %016llx\n", static_cast<unsigned long long>(seed),
              static_cast<unsigned long long>(result.events),
              static_cast<unsigned long long>(result.digest));
  std::printf("%s\n", result.violation.empty() ? "no violation" : result.violation.c_str());
  return result.violation.empty() ? 0 : 1;
}

int run(const Arguments& arguments, const char* program) {
  const auto clock = system_clock();
  const Instant began = clock->now();
  const RunTotals totals = run_seeds(arguments.run);
  const double seconds = std::chrono::duration<double>(clock->now() - began).count();
  std::printf("first seed %llu\n", static_cast<unsigned long long>(arguments.run.first));
  print_totals(totals, stdout);
  std::printf("%.1f s, %.0f schedules a second on %u threads\n", seconds,
              static_cast<double>(totals.schedules) / seconds, arguments.run.threads);
  for (const Failure& failure : totals.failures) {
    std::printf("VIOLATION, seed %llu: %s\n  replay: %s%s%s --replay %llu\n",
                static_cast<unsigned long long>(failure.seed), failure.what.c_str(), program,
                arguments.planted.empty() ? "" : " --planted ", arguments.planted.c_str(),
                static_cast<unsigned long long>(failure.seed));
  }
  std::printf("%zu violation%s\n", totals.failures.size(), totals.failures.size() == 1 ? "" : "s");
  return totals.failures.empty() ? 0 : 1;
}

/// Each bug in turn, for at most so many schedules; then the same seeds without it must pass.
int hunt(const Arguments& arguments) {
  int missed = 0;
  std::uint64_t longest = 0;
  for (const std::string_view bug : planted_bugs()) {
    plant(bug);
    RunOptions options = arguments.run;
    options.rules = rules_for(bug);
    const RunTotals totals = run_seeds(options);
    const bool caught = !totals.failures.empty();
    missed += caught ? 0 : 1;
    longest = std::max(longest, totals.seeds);
    std::printf("%-24s %s after %llu seeds: %s\n", std::string(bug).c_str(),
                caught ? "caught" : "MISSED", static_cast<unsigned long long>(totals.seeds),
                caught ? totals.failures[0].what.c_str() : "");
  }
  plant({});
  RunOptions twin = arguments.run;
  twin.schedules = longest;
  const RunTotals totals = run_seeds(twin);
  for (const Failure& failure : totals.failures) {
    std::printf("without a bug, seed %llu: %s\n", static_cast<unsigned long long>(failure.seed),
                failure.what.c_str());
  }
  std::printf("without a bug: %llu seeds, %zu violations\n",
              static_cast<unsigned long long>(totals.seeds), totals.failures.size());
  return missed > 0 || planted_bugs().empty() || !totals.failures.empty() ? 1 : 0;
}

}  // namespace
}  // namespace kvc::sim

int main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "--help") {
    kvc::sim::print_help(argv[0], stdout);
    return 0;
  }
  kvc::sim::Arguments arguments;
  if (!kvc::sim::parse(argc, argv, &arguments)) {
    kvc::sim::print_help(argv[0], stderr);
    return 2;
  }
  if (!kvc::sim::plant(arguments.planted) || (arguments.hunt && kvc::sim::planted_bugs().empty())) {
    std::fprintf(stderr, "%s has no bugs in reach: use kvc_simulate_planted\n", argv[0]);
    return 2;
  }
  arguments.run.rules = kvc::sim::rules_for(arguments.planted);
  if (arguments.hunt) return kvc::sim::hunt(arguments);
  if (arguments.replay) return kvc::sim::replay(arguments.run.first, arguments.run.rules);
  return kvc::sim::run(arguments, argv[0]);
}
