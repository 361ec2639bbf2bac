"""Runs the test suites, each to its end, and closes with one line of counts.

run_tests.py fast      in-process C++ tests and hermetic Python tests
run_tests.py all       every default suite: C++, Python with a real Mooncake Store, Python versions
run_tests.py summary   only the closing line of the last run
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

from results import RESULTS, ROOT, Counts, failed_names, read_counts, write_cases

PYTEST_PROCESSES = 3


@dataclass(frozen=True)
class Suite:
    """One command that leaves `results`, JUnit files whose names match a pattern, in RESULTS."""

    name: str
    command: list[str]
    results: str
    limit_s: int
    beside_next: bool = False
    """Compiles for the most part: runs at low priority while the next suite waits for servers."""


def suites(tier: str) -> list[Suite]:
    """Return the suites of a tier. The limits only end runs that hang; they are no targets."""
    fast = tier == "fast"
    ctest = ["ctest", "--preset", "dev", "--output-junit", str(RESULTS / "ctest.xml")]
    pytest = [sys.executable, "-m", "pytest", "-q", f"--junitxml={RESULTS / 'pytest.xml'}"]
    # A few files at a time: most tests wait for a server, a process or a deadline.
    pytest += ["-n", str(PYTEST_PROCESSES), "--dist", "loadfile"]
    if fast:
        return [
            Suite("ctest", [*ctest, "-L", "fast"], "ctest.xml", 300),
            Suite("pytest", [*pytest, "-m", "not mooncake and not slow"], "pytest.xml", 300),
        ]
    versions = [sys.executable, "scripts/python_versions.py"]
    return [
        Suite("ctest", ctest, "ctest.xml", 900),
        Suite("python versions", versions, "python-*.xml", 1800, beside_next=True),
        Suite("pytest", pytest, "pytest.xml", 1800),
    ]


def environment() -> dict[str, str]:
    """Return the environment of the suites: each commit simulates other seeds."""
    git = ["git", "rev-parse", "--short=8", "HEAD"]
    found = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=False)
    first = int(found.stdout, 16) if found.returncode == 0 else 1
    return {"KVC_SIMULATION_FIRST": str(first), **os.environ}


def start_suite(suite: Suite) -> subprocess.Popen[bytes]:
    """Start one suite in a process group of its own."""
    command = ["nice", *suite.command] if suite.beside_next else suite.command
    return subprocess.Popen(
        command, cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, start_new_session=True
    )


def end_suite(suite: Suite, process: subprocess.Popen[bytes]) -> str:
    """Wait for its end; return what is wrong, or nothing."""
    try:
        status = process.wait(timeout=suite.limit_s)
        return f"{suite.name} ended with status {status}" if status else ""
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return f"{suite.name} did not end within {suite.limit_s} s and was killed"
    except KeyboardInterrupt:
        os.killpg(process.pid, signal.SIGINT)
        process.wait(timeout=30)
        raise


def collect(suite: Suite, problem: str) -> Counts:
    """Count what a suite left. Trouble that no failed case explains becomes a failed case."""
    counts = Counts()
    files = sorted(RESULTS.glob(suite.results))
    for file in files:
        counts.add(read_counts(file))
    if not problem and counts.passed + counts.failed == 0:
        problem = f"{suite.name} ran no test"
    if problem and counts.failed == 0:
        file = RESULTS / f"{suite.name.replace(' ', '-')}-run.xml"
        write_cases(file, suite.name, {"run": problem})
        counts.failed += 1
        files.append(file)
    for name in [name for file in files for name in failed_names(file)]:
        print(f"   {name}", flush=True)
    return counts


def run(tier: str) -> int:
    """Run all suites of a tier and write the summary."""
    shutil.rmtree(RESULTS, ignore_errors=True)
    RESULTS.mkdir(parents=True)
    total = Counts()
    ok = True
    running: list[tuple[Suite, subprocess.Popen[bytes], float]] = []
    try:
        for suite in suites(tier):
            print(f"== {suite.name}", flush=True)
            running.append((suite, start_suite(suite), time.monotonic()))
            while running and not suite.beside_next:
                ended, process, start = running[-1]
                problem = end_suite(ended, process)
                running.pop()
                counts = collect(ended, problem)
                ok = ok and not problem and counts.ok()
                total.add(counts)
                seconds = time.monotonic() - start
                print(f"== {ended.name}: {counts.line()} in {seconds:.0f} s", flush=True)
    finally:
        for _, process, _ in running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    summary = {"passed": total.passed, "failed": total.failed, "skipped": total.skipped}
    (RESULTS / "summary.json").write_text(json.dumps(summary) + "\n")
    print(total.line(), flush=True)
    return 0 if ok else 1


def summary() -> int:
    """Print the closing line of the last run; without one, nothing passed."""
    try:
        counts = Counts(**json.loads((RESULTS / "summary.json").read_text()))
    except (OSError, ValueError, TypeError):
        counts = Counts()
    print(counts.line(), flush=True)
    return 0 if counts.ok() else 1


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tier", choices=["fast", "all", "summary"])
    tier: str = parser.parse_args().tier
    return summary() if tier == "summary" else run(tier)


if __name__ == "__main__":
    sys.exit(main())
