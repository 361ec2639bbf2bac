"""Every field that a verb or a benchmark emits is on the page of outputs, with its type."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.pages import ROOT, help_text, named_in_backticks, section, tables, verbs

BENCHMARKS = {
    "decode_stall_staged_vs_leased",
    "decode_stall_vs_budget",
    "identity_vs_sha256",
    "layer_vs_block_ttft",
    "load_vs_memcpy",
    "load_vs_memcpy_l1",
    "load_vs_raw_mooncake",
    "load_vs_read_file",
    "objects_per_block",
    "query_128k_vs_floor",
    "requery_grow_us",
    "save_vs_memcpy",
    "save_vs_raw_mooncake",
    "save_vs_raw_mooncake_small",
    "wait_for_save_cpu_us_p99",
    "wait_for_save_us_p50",
}
TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "integer or null": (int, type(None)),
    "number": (int, float),
    "number or null": (int, float, type(None)),
    "string or null": (str, type(None)),
    "boolean": (bool,),
    "object": (dict,),
    "list": (list,),
}


def documented(heading: str, first_column: str = "field") -> dict[str, dict[str, str]]:
    found = list(tables(section("docs/source/outputs.md", heading), first_column))
    assert len(found) == 1, f"section {heading} has {len(found)} tables of '{first_column}'"
    return found[0]


def always(fields: dict[str, dict[str, str]]) -> set[str]:
    """Fields whose type has no condition behind a comma."""
    return {name for name, row in fields.items() if "," not in row["type"]}


def assert_documented(emitted: dict[str, Any], fields: dict[str, dict[str, str]]) -> None:
    assert always(fields) <= set(emitted) <= set(fields)
    for name, value in emitted.items():
        kind = fields[name]["type"].partition(",")[0]
        assert isinstance(value, TYPES[kind]), f"{name}={value!r} is documented as {kind}"
        if kind in ("integer", "integer or null", "number"):
            assert not isinstance(value, bool)


def run_verb(*arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "mooncake_trtllm", *arguments, "--json"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert isinstance(result, dict)
    return result


def test_trace_fields_are_documented() -> None:
    fields = documented("`trace --json`")
    result = run_verb("trace", "--backend", "memory", "--curve")
    assert_documented(result, fields)
    assert set(result) == set(fields) - {"failure"}
    assert set(result["blocks_rejected"]) == named_in_backticks(
        fields["blocks_rejected"]["meaning"]
    )
    assert set(result["curve"][0]) == named_in_backticks(fields["curve"]["meaning"])


def test_failure_fields_are_documented() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mooncake_trtllm", "trace", "--tp", "0", "--json"],
        check=False,
        capture_output=True,
        text=True,
    )
    failure = json.loads(done.stdout)
    assert_documented(failure, documented("A run without a result"))
    assert done.returncode == failure["exit_code"]


def test_exit_codes_are_documented() -> None:
    (rows,) = tables(section("docs/source/outputs.md", "Exit codes"), "code")
    told = help_text(sys.executable, "-m", "mooncake_trtllm").partition("exit codes:")[2]
    assert list(rows) == ["0", "1", "2", "3", "130", "143"]
    assert [code for code in rows if not re.search(rf"\b{code} [a-z]", told)] == []


def test_matrix_fields_are_documented() -> None:
    heading = "`matrix --json`"
    result = run_verb(
        *("matrix", "--backends", "memory", "--granularity", "block", "--tp", "1"),
        *("--requests", "2"),
    )
    assert_documented(result, documented(heading))
    own = documented(heading, "field of a row")
    fields = {**documented("`trace --json`"), **own}
    for row in result["rows"]:
        assert_documented(row, fields)
    scenarios = {row["scenario"] for row in result["rows"]}
    assert scenarios == named_in_backticks(own["scenario"]["meaning"])


def test_timeline_fields_are_documented() -> None:
    heading = "`timeline --json`"
    result = run_verb("timeline", "--load-gb-per-s", "1", "--reused", "0.5")
    assert_documented(result, documented(heading))
    assert_documented(result["rows"][0], documented(heading, "field of a row"))


def test_the_store_of_each_verb_without_settings_is_the_one_that_its_help_names() -> None:
    page = (ROOT / "benchmarks" / "tensorrt_llm_kv_connector" / "README.md").read_text()
    (rows,) = tables(page, "script")
    stores = {row["verb"].strip("`"): row["store without any setting"] for row in rows.values()}
    assert set(stores) == verbs() - {"explain"}
    for verb in ("selfcheck", "demo", "trace", "timeline"):
        told = " ".join(help_text(sys.executable, "-m", "mooncake_trtllm", verb).split())
        (default,) = re.findall(r"\(default: what the settings name, else (\w+)\)", told)
        assert stores[verb].startswith(f"`{default}`")
    assert stores["matrix"].startswith("each of the three")


def test_plot_fields_are_documented(tmp_path: Path) -> None:
    file = tmp_path / "timeline.json"
    file.write_text(json.dumps(run_verb("timeline", "--load-gb-per-s", "1", "--reused", "0.5")))
    result = run_verb("plot", str(file), "--out", str(tmp_path / "out"))
    assert_documented(result, documented("`plot --json`"))


def test_explain_fields_are_documented(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from mooncake_trtllm.cli import explain
    from mooncake_trtllm.cli.main import main

    monkeypatch.setattr(explain, "_ask", lambda _address: ["request 1: ..."])
    assert main(["explain", "--address", "127.0.0.1:1", "--json"]) == 0
    assert_documented(json.loads(capsys.readouterr().out), documented("`explain --json`"))


def test_selfcheck_fields_are_documented() -> None:
    fields = documented("`selfcheck --json`")
    result = run_verb("selfcheck", "--backend", "memory")
    assert_documented(result, fields)
    assert set(result["checks"][0]) == named_in_backticks(fields["checks"]["meaning"])


def test_benchmark_fields_are_documented(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from bench.paired import Entry

    entry = Entry(1.0, "<=", 2.0, [1.0], {"name": "", "value": 1.0, "unit": ""}, "", False, "")
    heading = "`build/bench/results.json`"
    assert_documented(entry.to_json(), documented(heading, "field of a benchmark"))
    assert set(documented(heading, "benchmark")) == BENCHMARKS


@pytest.mark.mooncake
@pytest.mark.slow
def test_demo_fields_are_documented() -> None:
    heading = "`demo --json`"
    fields = documented(heading)
    result = run_verb("demo")
    assert_documented(result, fields)
    assert set(result["store"]) == named_in_backticks(fields["store"]["meaning"])
    named = documented(heading, "step")
    assert {step["name"]: step["instance"] for step in result["steps"]} == {
        name: row["instance"].strip("`") for name, row in named.items()
    }
    of_step = documented(heading, "field of a step")
    for step in result["steps"]:
        assert_documented(step, of_step)
        for name in set(step) - always(of_step):
            assert step["name"] in of_step[name]["type"]
    assert set().union(*result["steps"]) == set(of_step)
    tampered = next(step for step in result["steps"] if step["name"] == "tampered")
    assert set(tampered["healed"]) == named_in_backticks(of_step["healed"]["meaning"])
