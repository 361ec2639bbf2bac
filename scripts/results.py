"""Counts of test results, read from and written to JUnit XML files in build/results."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "build" / "results"


@dataclass
class Counts:
    """Tests that ran, by outcome. A test that did not run at all counts as failed."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def add(self, other: Counts) -> None:
        """Add the counts of `other` to these."""
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped

    def ok(self) -> bool:
        """Return whether tests ran and all of them passed; a skipped test is a claim unproven."""
        return self.passed > 0 and self.failed == 0 and self.skipped == 0

    def line(self) -> str:
        """Return the closing line of a run."""
        line = f"{self.passed} passed, {self.failed} failed"
        return f"{line}, {self.skipped} skipped" if self.skipped else line


def outcome(case: ET.Element) -> str:
    """Return "passed", "failed" or "skipped" for one test case element."""
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    status = case.get("status")
    if case.find("skipped") is not None:
        # ctest reports a test whose executable is missing as skipped with status "notrun".
        return "failed" if status == "notrun" else "skipped"
    return "passed" if status in (None, "run") else "failed"


def read_counts(path: Path) -> Counts:
    """Count the cases of one file; a missing or broken file is one failed test."""
    counts = Counts()
    try:
        cases = list(ET.parse(path).getroot().iter("testcase"))
    except (OSError, ET.ParseError):
        return Counts(failed=1)
    for case in cases:
        counts.add(Counts(**{outcome(case): 1}))
    return counts


def failed_names(path: Path) -> list[str]:
    """Return the names of the failed and skipped cases of one file."""
    try:
        cases = list(ET.parse(path).getroot().iter("testcase"))
    except (OSError, ET.ParseError):
        return [f"{path.name}: no results"]
    return [
        f"{path.stem}: {case.get('classname')}::{case.get('name')} {outcome(case)}"
        for case in cases
        if outcome(case) != "passed"
    ]


def write_cases(path: Path, suite: str, cases: dict[str, str]) -> None:
    """Write one case per entry; the value is the failure message, empty for a pass."""
    root = ET.Element("testsuite", name=suite, tests=str(len(cases)))
    for name, message in cases.items():
        case = ET.SubElement(root, "testcase", classname=suite, name=name)
        if message:
            ET.SubElement(case, "failure").text = message
    path.parent.mkdir(parents=True, exist_ok=True)
    ET.ElementTree(root).write(path, encoding="unicode")
