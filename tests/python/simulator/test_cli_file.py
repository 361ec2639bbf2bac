"""The verbs over the file store."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from mooncake_trtllm.cli.main import main
from mooncake_trtllm.cli.private_folder import PrivateFolder
from mooncake_trtllm.cli.trace_report import hits_digest
from mooncake_trtllm.simulator.workloads import IdealCache, agentic_workload


@pytest.fixture(name="unset", autouse=True)
def unset_fixture(environment: pytest.MonkeyPatch) -> None:
    """As a user who has set nothing."""
    environment.delenv("MC_STAGING_BYTES")
    environment.delenv("MC_BACKEND")


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    code = main([*arguments, "--json"])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return json.loads(captured.out)


def private_folders() -> set[Path]:
    bases = (Path("/dev/shm"), Path(tempfile.gettempdir()))
    return {folder for base in bases for folder in base.glob("mooncake-trtllm-*/store")}


@pytest.mark.parametrize("tp", [1, 2])
def test_a_trace_reuses_what_the_other_back_ends_do(
    capsys: pytest.CaptureFixture[str], tp: int
) -> None:
    before = private_folders()
    row = run_json(capsys, "trace", "--backend", "file", "--tp", str(tp))
    assert (row["backend"], row["requests"], row["errors"]) == ("file", 144, 0)
    assert row["blocks_matchable"] == 19584
    assert row["blocks_hit"] == row["blocks_hit_ideal"] == row["blocks_verified"] == 17248
    cache = IdealCache(32)
    assert row["hits_digest"] == hits_digest([cache.serve(tokens) for tokens in agentic_workload()])
    assert private_folders() <= before, "the private folder is still there"


@pytest.mark.parametrize("promise", ["staged", "leased"])
@pytest.mark.parametrize("size", ["1MB", "2MB"])
def test_a_folder_that_is_full_is_no_error(
    capsys: pytest.CaptureFixture[str],
    environment: pytest.MonkeyPatch,
    tmp_path: Path,
    size: str,
    promise: str,
) -> None:
    """Blocks are evicted while their save is still under way: each save counts once."""
    environment.setenv("MC_FILE_PATH", str(tmp_path / "mine"))
    environment.setenv("MC_FILE_MAX_BYTES", size)
    environment.setenv("MC_PROMISE", promise)
    row = run_json(capsys, "trace", "--backend", "file", "--requests", "6")
    assert (row["requests"], row["errors"]) == (6, 0)
    assert row["saves_failed"] > 0


def test_a_replay_on_a_fresh_instance_reuses_everything(capsys: pytest.CaptureFixture[str]) -> None:
    row = run_json(capsys, "trace", "--backend", "file", "--replay")
    assert row["blocks_hit"] == row["blocks_verified"] == row["blocks_matchable"] == 19584


def test_the_folder_of_the_user_is_used_and_kept(
    capsys: pytest.CaptureFixture[str], environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    environment.setenv("MC_FILE_PATH", str(tmp_path / "mine"))
    report = run_json(capsys, "selfcheck", "--backend", "file")
    assert report["ok"]
    (store,) = (check for check in report["checks"] if check["name"] == "store")
    assert str(tmp_path / "mine") in store["detail"]
    assert PrivateFolder(tmp_path / "mine").keys()


@pytest.mark.slow
def test_the_demo_damages_a_folder_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    report = run_json(capsys, "demo", "--backend", "file")
    steps = {step["name"]: step for step in report["steps"]}
    assert list(steps) == ["cold", "warm", "other_salt", "restart", "tampered", "store_gone"]
    assert report["steps_not_run"] == {}
    assert len({*steps["cold"]["pids"], *steps["warm"]["pids"]}) == 4, "ranks are processes"
    assert steps["tampered"]["blocks_rejected"] == 1
    assert steps["store_gone"]["blocks_hit"] == 0
