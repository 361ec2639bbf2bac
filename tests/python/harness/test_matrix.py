"""`matrix` and `timeline`, driven in this process on the memory store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mooncake_trtllm import _native
from mooncake_trtllm.cli import matrix, offers
from mooncake_trtllm.cli.main import main
from mooncake_trtllm.cli.trace_report import TraceReport, hits_digest
from mooncake_trtllm.simulator.workloads import IdealCache, agentic_workload

SMALL = ("--backends", "memory", "--granularity", "block", "--requests", "13")


@pytest.fixture(autouse=True)
def users_environment(environment: pytest.MonkeyPatch) -> None:
    """Nothing set: what a user meets on a fresh machine."""
    environment.delenv("MC_BACKEND")
    environment.delenv("MC_STAGING_BYTES")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any, str]:
    code = main([*arguments, "--json"])
    captured = capsys.readouterr()
    content = json.loads(captured.out) if captured.out else None
    return code, content, captured.err


def test_rows_of_a_scenario_have_the_hits_of_an_exact_cache(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, content, errors = run(capsys, "matrix", *SMALL, "--curve")
    assert code == 0, errors
    assert (content["schema"], content["hit_ratio_identical"]) == ("matrix/1", True)
    rows = content["rows"]
    assert [(row["scenario"], row["tp"]) for row in rows] == [
        ("agentic", 1),
        ("restart", 1),
        ("agentic", 2),
        ("restart", 2),
    ]
    cache = IdealCache(32)
    for scenario in matrix.SCENARIOS:
        hits = [cache.serve(tokens) for tokens in agentic_workload().first(13)]
        for row in (row for row in rows if row["scenario"] == scenario):
            assert row["schema"] == "trace/1"
            assert row["hits_digest"] == hits_digest(hits)
            assert row["blocks_hit"] == row["blocks_hit_ideal"] == sum(hits)
            assert row["blocks_verified"] == row["blocks_hit"]
            assert [point["hit"] for point in row["curve"]] == hits
            assert row["errors"] == 0
    # One request of turn 1 is the first to come: a restart finds even that one.
    restarts = [row for row in rows if row["scenario"] == "restart"]
    played = [line for line in errors.splitlines() if "blocks hit" in line]
    assert len(played) == len(rows), "a line for each row, where there is no terminal, too"
    assert played[0].startswith("1/2 agentic on memory, tp 1, by block: ")
    assert content["machine"]["cores"] >= 1
    assert all(row["blocks_hit"] == row["blocks_matchable"] for row in restarts)


def test_the_table_names_what_is_modeled(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["matrix", *SMALL, "--tp", "1"]) == 0
    out = capsys.readouterr().out
    assert "TTFT x modeled" in out.splitlines()[0]
    assert "at 3000 prefill tokens/s" in out
    assert "2 KiB a token" in out
    assert "Llama-3.1-8B bf16 (128 KiB a token)" in out


def test_rows_that_differ_make_exit_code_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = iter("abcd")
    true_row = TraceReport.row

    def row(self: TraceReport, *, with_curve: bool) -> dict[str, Any]:
        return {**true_row(self, with_curve=with_curve), "hits_digest": next(digests)}

    monkeypatch.setattr(TraceReport, "row", row)
    code, content, errors = run(capsys, "matrix", *SMALL[:-1], "1")
    assert code == 1
    assert content["hit_ratio_identical"] is False
    assert "rows of one scenario differ" in errors


def test_identical_means_within_each_scenario() -> None:
    rows = [
        {"scenario": "agentic", "hits_digest": "a"},
        {"scenario": "restart", "hits_digest": "b"},
        {"scenario": "agentic", "hits_digest": "a"},
    ]
    assert matrix.identical_hits(rows)
    assert not matrix.identical_hits([*rows, {"scenario": "restart", "hits_digest": "a"}])


def test_the_back_ends_are_those_of_the_settings_table() -> None:
    row = next(row for row in _native.setting_table() if row["name"] == "MC_BACKEND")
    assert sorted(row["choices"]) == sorted(offers.BACKENDS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--backends", "tape"), "'tape' is unknown"),
        (("--backends", "memory,memory"), "names one twice"),
        (("--tp", "3"), "'3' is unknown"),
        (("--granularity", ""), "'' is unknown"),
        (("--requests", "0"), "must be positive"),
    ],
    ids=str,
)
def test_wrong_lists_are_exit_code_2(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, content, errors = run(capsys, "matrix", *SMALL[:4], *arguments)
    assert (code, content["schema"]) == (2, "error/1")
    assert message in errors


def test_timeline_of_given_figures(capsys: pytest.CaptureFixture[str]) -> None:
    """1000 tokens, 500 stored, 10 layers of 1 MB a token at 10 GB/s, 1000 tokens a second."""
    code, content, errors = run(
        capsys,
        *("timeline", "--layers", "10", "--token-bytes-per-layer", "1000000"),
        *("--load-gb-per-s", "10", "--prefill-tok-per-s", "1000"),
        *("--prompt-tokens", "1000", "--reused", "0.5"),
    )
    assert code == 0, errors
    assert (content["schema"], content["load_gb_per_s_source"]) == ("timeline/1", "given")
    (row,) = content["rows"]
    assert row["bytes_loaded_modeled"] == 5_000_000_000
    assert row["ttft_recompute_s_modeled"] == 1.0
    assert row["ttft_block_s_modeled"] == 1.0
    # Load and compute of a layer take 0.05 s each: all but one of them overlap.
    assert row["ttft_layer_s_modeled"] == 0.55
    assert row["ttft_speedup_layer_modeled"] == 1.8182


def test_timeline_measures_the_bandwidth_that_is_not_given(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, content, errors = run(capsys, "timeline", "--model", "simulated", "--backend", "memory")
    assert code == 0, errors
    assert (content["load_gb_per_s_source"], content["backend"]) == ("measured", "memory")
    assert content["load_gb_per_s"] > 0
    assert (content["layers"], content["token_bytes_per_layer"]) == (8, 256)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--layers", "4"), "state --load-gb-per-s"),
        (("--load-gb-per-s", "0"), "must be positive"),
        (("--load-gb-per-s", "1", "--reused", "0.5,1"), "shares below 1"),
        (("--load-gb-per-s", "1", "--reused", "half"), "shares below 1"),
    ],
    ids=str,
)
def test_timelines_that_make_no_sense_are_exit_code_2(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, content, errors = run(capsys, "timeline", *arguments)
    assert (code, content["schema"]) == (2, "error/1")
    assert message in errors


def test_the_first_requests_of_a_workload(tmp_path: Path) -> None:
    whole = agentic_workload()
    few = whole.first(3)
    assert len(few) == 3
    assert [tokens.tolist() for tokens in few] == [whole.make(index).tolist() for index in range(3)]
