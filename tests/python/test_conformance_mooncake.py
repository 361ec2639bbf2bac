"""The conformance suite of stores, on a real Mooncake Store."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from support.processes import run_python

from mooncake_trtllm.local_store import LocalStore

SEGMENT_BYTES = 256 << 20
# In a process of its own, since GoogleTest runs once per process and a failure of the store can be
# a crash.
RUN = f"""
import sys
from mooncake_trtllm import _conformance
report, master = sys.argv[1:]
arguments = ["conformance", f"--gtest_output=xml:{{report}}"]
sys.exit(_conformance.run(arguments, master=master, capacity_bytes={SEGMENT_BYTES}))
"""


@pytest.mark.mooncake
@pytest.mark.slow
def test_conformance_on_a_real_store(tmp_path: Path) -> None:
    report = tmp_path / "conformance.xml"
    with LocalStore(segment_bytes=SEGMENT_BYTES) as store:
        run_python(RUN, str(report), store.master_address)
        keys = store.keys()
    left = [key for key in keys if "CloseEndsCalls" not in key]
    root = ET.parse(report).getroot()
    suites = {suite.get("name"): suite for suite in root}
    assert set(suites) == {"Mooncake", "BreakerOverDeadlineOverMooncake"}
    for suite in suites.values():
        assert len(suite) >= 28
        assert {case.get("status") for case in suite} == {"run"}
        assert (suite.get("failures"), suite.get("skipped")) == ("0", "0")
    assert left == [], "objects that a test, or a canary, left in the store"
