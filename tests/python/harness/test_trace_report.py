"""What a trace concludes from its figures: exit code, reasons and remedies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mooncake_trtllm.cli import stores
from mooncake_trtllm.cli.exits import BROKEN, GOOD, UNREACHABLE
from mooncake_trtllm.cli.stores import RunStore
from mooncake_trtllm.cli.trace_report import TraceReport
from mooncake_trtllm.errors import KvConnectorStoreError
from mooncake_trtllm.simulator import Geometry, InstanceConfig, ModelFolder, RequestResult
from mooncake_trtllm.simulator.ledger import Ledger

Finished = Callable[..., TraceReport]


@pytest.fixture(name="finished")
def finished_fixture(tmp_path: Path) -> Finished:
    """Makes the report of a run of one request that hit `hit` blocks of 4."""

    def make(
        *, hit: int = 4, verified: int | None = None, backend: str = "mooncake", **worker: int
    ) -> TraceReport:
        geometry = Geometry(layers=1, kv_heads=1, head_dim=8, tokens_per_block=4)
        config = InstanceConfig(ModelFolder.create(tmp_path / "model", geometry), geometry)
        report = TraceReport(config, backend, 3000.0, [4])
        result = RequestResult(0, [1], "finished", 17, 4)
        result.blocks_hit = hit
        result.blocks_verified = hit if verified is None else verified
        report.add(result)
        report.end([{"worker": worker, "scheduler": {}, "ledger": Ledger(page_bytes=64)}])
        return report

    return make


class Store:
    """Counts how often it is asked whether it is there."""

    def __init__(self, error: KvConnectorStoreError | None = None) -> None:
        self.asked = 0
        self.error = error

    def reach(self) -> None:
        self.asked += 1
        if self.error is not None:
            raise self.error


def test_a_run_that_lost_nothing_does_not_ask_the_store(finished: Finished) -> None:
    store = Store(KvConnectorStoreError("gone"))
    assert finished().verdict(exact=True, reach=store.reach) == (GOOD, [])
    assert store.asked == 0


@pytest.mark.parametrize("lost", ["saves_failed", "saves_dropped"])
def test_saves_that_a_lost_store_did_not_take_are_no_success(finished: Finished, lost: str) -> None:
    """Although every block was a hit, since this process had it in memory."""
    report = finished(**{lost: 7})
    store = Store(KvConnectorStoreError("nobody is there. Remedy: start it"))
    code, faults = report.verdict(exact=True, reach=store.reach)
    assert code == UNREACHABLE
    assert faults == [report.failure]
    assert report.row(with_curve=False)["failure"] == report.failure
    assert "7 saved in vain" in faults[0] or "7 saves were dropped" in faults[0]
    assert faults[0].endswith("nobody is there. Remedy: start it")


@pytest.mark.parametrize("lost", ["saves_failed", "saves_dropped"])
def test_saves_that_a_full_store_did_not_take_are_no_failure(finished: Finished, lost: str) -> None:
    store = Store()
    assert finished(**{lost: 7}, hit=3).verdict(exact=False, reach=store.reach) == (GOOD, [])
    assert store.asked == 1


@pytest.mark.parametrize(
    ("figures", "remedy"),
    [
        ({"hit": 3, "saves_dropped": 7}, "raise MC_SAVE_QUEUE_BYTES and MC_STAGING_BYTES"),
        ({"hit": 3, "saves_dropped": 7, "saves_failed": 1}, "a larger --segment-bytes"),
        ({"hit": 3, "saves_failed": 1, "backend": "file"}, "or MC_FILE_MAX_BYTES"),
        ({"hit": 3, "stage_short_no_room": 1}, "raise MC_STAGING_BYTES"),
        ({"hit": 3, "backend": "memory"}, "report it"),
        ({"hit": 5}, "report it"),
        ({"verified": 3}, "report it"),
    ],
)
def test_whatever_is_broken_comes_with_a_remedy(
    finished: Finished, figures: dict[str, Any], remedy: str
) -> None:
    code, faults = finished(**figures).verdict(exact=True, reach=Store().reach)
    assert code == BROKEN
    (fault,) = faults
    assert remedy in fault.split("; remedy: ")[1]


def test_a_run_that_ended_early_says_what_to_do(finished: Finished) -> None:
    report = finished()
    report.fail("I7 broken: a count")
    code, faults = report.verdict(exact=False, reach=Store().reach)
    assert code == BROKEN
    assert faults[0].startswith("I7 broken: a count; remedy: ")


@pytest.mark.parametrize(
    ("answers", "lost", "asked"),
    [
        ([None], False, 1),
        (["-200 (NO_AVAILABLE_HANDLE)", "-200 (NO_AVAILABLE_HANDLE)", None], False, 3),
        (["-200 (NO_AVAILABLE_HANDLE)"] * 5, True, 4),
        (["-1700 (TENANT_QUOTA_EXCEEDED)"], False, 1),
        (["-800 (TRANSFER_FAIL)"], True, 1),
    ],
)
def test_a_full_store_is_given_the_time_of_its_leases(
    monkeypatch: pytest.MonkeyPatch, answers: list[str | None], lost: bool, asked: int
) -> None:
    now = 0.0
    left = list(answers)

    def reach(_store: RunStore) -> None:
        nonlocal now
        now += 3.5  # as long as a connector tries to place its first object
        answer = left.pop(0)
        if answer is not None:
            raise KvConnectorStoreError(answer)

    monkeypatch.setattr(stores, "reach", reach)
    monkeypatch.setattr("mooncake_trtllm.cli.stores.time.monotonic", lambda: now)
    store = RunStore("mooncake", {})
    if lost:
        with pytest.raises(KvConnectorStoreError):
            stores.check_still_there(store)
    else:
        stores.check_still_there(store)
    assert len(answers) - len(left) == asked
