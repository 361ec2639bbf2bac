"""The verbs as users run them, on a private Mooncake Store that they start and stop."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.signals import kill
from support.waiting import descendants, wait_until, wait_until_gone

from mooncake_trtllm.cli.trace_report import hits_digest
from mooncake_trtllm.local_store import LocalStore
from mooncake_trtllm.simulator.workloads import IdealCache, agentic_workload

pytestmark = pytest.mark.mooncake

SAMPLE = Path(__file__).parents[2] / "data" / "fast25_sample.jsonl"
STEPS = ["cold", "warm", "other_salt", "restart", "tampered", "store_gone"]


@pytest.fixture(autouse=True)
def users_environment(environment: pytest.MonkeyPatch) -> None:
    """Nothing set: what a user meets on a fresh machine."""
    environment.delenv("MC_BACKEND")
    environment.delenv("MC_STAGING_BYTES")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "mooncake_trtllm", *arguments]


def run_json(*arguments: str, env: dict[str, str] | None = None) -> tuple[int, Any, str]:
    result = subprocess.run(
        command(*arguments, "--json"),
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert result.stdout.count("\n") == 1, result.stderr
    return result.returncode, json.loads(result.stdout), result.stderr


@pytest.mark.slow
def test_demo_shows_every_step() -> None:
    code, report, errors = run_json("demo")
    assert code == 0, errors
    assert (report["schema"], report["ok"], report["backend"], report["tp"]) == (
        "demo/1",
        True,
        "mooncake",
        2,
    )
    assert [step["name"] for step in report["steps"]] == STEPS
    steps = {step["name"]: step for step in report["steps"]}
    block_bytes = steps["cold"]["bytes_saved"] // steps["cold"]["blocks_matchable"]
    matchable = steps["cold"]["blocks_matchable"]
    assert matchable > 0
    assert all(step["blocks_matchable"] == matchable for step in report["steps"])
    assert all(step["blocks_verified"] == step["blocks_hit"] for step in report["steps"])
    hits = {name: step["blocks_hit"] for name, step in steps.items()}
    tampered = hits.pop("tampered")
    assert hits == {
        "cold": 0,
        "warm": matchable,
        "other_salt": 0,
        "restart": matchable,
        "store_gone": 0,
    }
    assert 0 < tampered < matchable
    for name in ("warm", "restart"):
        assert steps[name]["bytes_loaded"] == matchable * block_bytes
        assert steps[name]["bytes_saved"] == 0
    assert [step["blocks_rejected"] for step in report["steps"]] == [0, 0, 0, 0, 1, 0]
    assert [step["errors"] for step in report["steps"]] == [0] * 6
    assert steps["tampered"]["healed"]["blocks_verified"] == matchable
    kept = steps["store_gone"]["promise_kept"]
    assert kept["blocks_verified"] == kept["blocks_promised"] > 0
    # CTX, GEN and the restarted instance are two processes each; the store has two of its own.
    ranks = {step["name"]: step["pids"] for step in report["steps"]}
    assert ranks["warm"] == ranks["other_salt"]
    pids = [*ranks["cold"], *ranks["warm"], *ranks["restart"]]
    pids += [report["store"]["master_pid"], report["store"]["storage_pid"]]
    assert len(set(pids)) == 8
    assert wait_until_gone(pids)


@pytest.mark.slow
@pytest.mark.usefixtures("leased")
def test_demo_shows_leased_promises() -> None:
    code, report, errors = run_json("demo")
    assert code == 0, errors
    steps = {step["name"]: step for step in report["steps"]}
    matchable = steps["cold"]["blocks_matchable"]
    assert [step["errors"] for step in report["steps"]] == [0, 0, 0, 0, 1, 0]
    assert [step["blocks_rejected"] for step in report["steps"]] == [0, 0, 0, 0, 1, 0]
    assert 0 < steps["tampered"]["blocks_hit"] < matchable
    assert steps["tampered"]["healed"]["blocks_verified"] == matchable
    assert steps["tampered"]["tampered_key"] in steps["tampered"]["error"]
    assert steps["restart"]["pids"] == steps["tampered"]["pids"] == steps["store_gone"]["pids"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_demo_and_all_that_it_started(number: signal.Signals) -> None:
    with subprocess.Popen(
        command("demo"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("warm"):
                break
        children = descendants(process.pid)
        assert len(children) >= 6
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert "everything that was started is stopped" in errors
    assert wait_until_gone(children)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("promise", "tp", "ranks"),
    [
        ("staged", "1", "threads"),
        ("staged", "2", "threads"),
        ("staged", "2", "processes"),
        ("leased", "2", "processes"),
    ],
)
def test_trace_reuses_what_an_exact_cache_would(
    promise: str, tp: str, ranks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MC_PROMISE", promise)
    code, row, errors = run_json("trace", "--backend", "mooncake", "--tp", tp, "--ranks", ranks)
    assert code == 0, errors
    assert (row["blocks_hit"], row["blocks_verified"], row["errors"]) == (17248, 17248, 0)
    assert row["promise"] == promise
    cache = IdealCache(32)
    assert row["hits_digest"] == hits_digest([cache.serve(tokens) for tokens in agentic_workload()])


def test_replay_meets_a_warm_store() -> None:
    code, row, errors = run_json(
        "trace", "--backend", "mooncake", "--input", str(SAMPLE), "--replay"
    )
    assert code == 0, errors
    assert row["blocks_hit"] == row["blocks_matchable"] == row["blocks_verified"] > 0


def test_verbs_use_the_users_store_and_leave_it_alone() -> None:
    with LocalStore(segment_bytes=256 << 20) as store:
        env = store.client_environment()
        for _ in range(2):
            # A model of its own each time: the second run is cold all the same.
            code, row, errors = run_json(
                "trace", "--backend", "mooncake", "--input", str(SAMPLE), env=env
            )
            assert code == 0, errors
            assert row["first_request_blocks_hit"] == 0
        assert len(store.segments()) == 1
        assert len(store.keys()) > 0


def test_selfcheck_is_good() -> None:
    code, report, errors = run_json("selfcheck", "--backend", "mooncake")
    assert code == 0, errors
    assert report["schema"] == "checks/1"
    assert report["ok"] is True
    names = [check["name"] for check in report["checks"]]
    assert {"reuse", "bit_exact", "salt_isolation", "layout_refusal"} <= set(names)


def test_selfcheck_connects_itself_before_it_calls_a_store_good() -> None:
    code, report, _ = run_json("selfcheck", env={"MOONCAKE_MASTER": "127.0.0.1:1"})
    assert code == 3
    assert report["ok"] is False
    (failed,) = (check for check in report["checks"] if not check["ok"])
    assert failed["name"] == "store"
    assert "127.0.0.1:1" in failed["detail"]
    assert "start mooncake_master" in failed["remedy"]


@pytest.mark.parametrize("dies", ["master", "storage"])
def test_a_store_that_dies_during_a_trace_is_exit_code_3(dies: str) -> None:
    with (
        LocalStore(segment_bytes=512 << 20) as store,
        subprocess.Popen(
            command("trace", "--json"),
            # Less than all blocks: those in memory are hits without a store.
            env={**os.environ, **store.client_environment(), "MC_STAGING_BYTES": "16MB"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        assert wait_until(lambda: len(store.keys()) > 200, 60.0)
        kill(store.master_pid if dies == "master" else store.storage_pid)
        out, errors = process.communicate(timeout=240)
    assert process.returncode == 3, errors
    row = json.loads(out)
    assert row["failure"].startswith("the store could not be reached during the run")
    assert row["blocks_hit"] < row["blocks_hit_ideal"]


def test_a_store_that_dies_is_exit_code_3_even_if_every_block_was_in_memory() -> None:
    with (
        LocalStore(segment_bytes=512 << 20) as store,
        subprocess.Popen(
            command("trace", "--tp", "2", "--json"),
            env={**os.environ, **store.client_environment()},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        assert wait_until(lambda: len(store.keys()) > 200, 60.0)
        kill(store.storage_pid)
        out, errors = process.communicate(timeout=240)
    assert process.returncode == 3, errors
    row = json.loads(out)
    assert row["failure"].startswith("the store could not be reached during the run")
    assert row["saves_dropped"] + row["saves_failed"] > 0
    assert row["blocks_hit"] == row["blocks_verified"] == row["blocks_hit_ideal"]


def test_a_full_store_is_no_failure() -> None:
    with LocalStore(segment_bytes=32 << 20) as store:
        code, row, errors = run_json("trace", "--requests", "48", env=store.client_environment())
    assert code == 0, errors
    assert row["saves_dropped"] + row["saves_failed"] > 0


@pytest.mark.parametrize("verb", ["trace", "demo", "selfcheck"])
def test_a_store_that_is_not_there_is_exit_code_3(verb: str) -> None:
    result = subprocess.run(
        command(verb, "--backend", "mooncake"),
        env={**os.environ, "MOONCAKE_MASTER": "127.0.0.1:1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert result.returncode == 3, result.stderr
    assert "127.0.0.1:1" in result.stdout + result.stderr
