"""`plot` draws what it is given, and its report holds the numbers and stands alone."""

from __future__ import annotations

import base64
import html
import importlib.util
import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from mooncake_trtllm.cli.main import main

ROW: dict[str, Any] = {
    "schema": "trace/1",
    "backend": "memory",
    "granularity": "block",
    "tp": 1,
    "tokens_per_block": 32,
    "bytes_per_block": 65536,
    "errors": 0,
    "blocks_matchable": 19584,
    "blocks_hit": 17248,
    "blocks_hit_ideal": 17248,
    "block_hit_ratio": 0.8807,
    "blocks_verified": 17248,
    "load_gb_per_s": 1.25,
    "save_gb_per_s": 0.5,
    "prefill_tok_per_s": 3000.0,
    "ttft_speedup_modeled": 7.89,
    "ttft_speedup_modeled_llama_3_1_8b_bf16": 2.34,
    "hits_digest": "0123456789abcdef",
}
CURVE = [{"request": 0, "matchable": 32, "hit": 0}, {"request": 1, "matchable": 32, "hit": 32}]
TIMELINE = {
    "schema": "timeline/1",
    "model": "Llama-3.1-8B bf16",
    "layers": 4,
    "token_bytes_per_layer": 4096,
    "load_gb_per_s": 1.5,
    "load_gb_per_s_source": "given",
    "backend": None,
    "prefill_tok_per_s": 3000.0,
    "rows": [
        {
            "prompt_tokens": 8192,
            "reused_tokens": 4096,
            "bytes_loaded_modeled": 67108864,
            "ttft_recompute_s_modeled": 2.7307,
            "ttft_block_s_modeled": 1.4101,
            "ttft_layer_s_modeled": 1.3765,
            "ttft_speedup_block_modeled": 1.9366,
            "ttft_speedup_layer_modeled": 1.9838,
        }
    ],
}
CHECKS = {
    "schema": "checks/1",
    "ok": False,
    "checks": [
        {"name": "bit_exact", "ok": True, "detail": "20 <reused> blocks", "remedy": ""},
        {"name": "memory", "ok": False, "detail": "too little", "remedy": "free some"},
    ],
}
FIGURES = ("hit_ratio", "warm_up", "ttft", "bandwidth", "timeline")


def rows() -> list[dict[str, Any]]:
    """Every combination, as the whole matrix has them."""
    return [
        {
            **ROW,
            "scenario": scenario,
            "backend": backend,
            "tp": tp,
            "granularity": granularity,
            "bytes_per_block": 65536 // tp,
            "save_gb_per_s": None if scenario == "restart" else 0.5,
            "hits_digest": scenario,
        }
        for backend in ("memory", "file", "mooncake")
        for tp in (1, 2)
        for granularity in ("block", "layer")
        for scenario in ("agentic", "restart")
    ]


def plot(tmp_path: Path, *contents: dict[str, Any]) -> tuple[int, Path]:
    files = []
    for number, content in enumerate(contents):
        file = tmp_path / f"{number}.json"
        file.write_text(json.dumps(content))
        files.append(str(file))
    out = tmp_path / "out"
    return main(["plot", *files, "--out", str(out), "--json"]), out


def test_all_figures_and_a_report_that_stands_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    matrix = {"schema": "matrix/1", "rows": rows(), "hit_ratio_identical": True}
    code, out = plot(tmp_path, matrix, {**ROW, "curve": CURVE}, TIMELINE, CHECKS)
    assert code == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["schema"] == "plot/1"
    expected = {f"{name}.{kind}" for name in FIGURES for kind in ("png", "svg")}
    assert {Path(name).name for name in printed["files"]} == expected | {"report.html"}
    for name in FIGURES:
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert ET.parse(out / f"{name}.svg").getroot().tag.endswith("svg")
    report = (out / "report.html").read_text()
    embedded = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', report)
    assert [base64.b64decode(data) for data in embedded] == [
        (out / f"{name}.svg").read_bytes() for name in FIGURES
    ]
    without_figures = re.sub(r'src="data:[^"]+"', "", report)
    assert not re.search(r"(?:src|href)=|url\(|@import|<script", without_figures)
    text = html.unescape(re.sub(r"<[^>]+>", " ", without_figures))
    for wanted in ("TTFT x modeled", "17248", "19584", "0.8807", "7.89", "2.34", "1.410", "1.98"):
        assert wanted in text
    assert "20 <reused> blocks" in text  # escaped, so that it is text
    assert "1 of 2 checks passed" in text
    assert "Hit counts of the 24 rows are identical" in text


def test_a_report_says_how_busy_the_machine_was(tmp_path: Path) -> None:
    busy = {**TIMELINE, "machine": {"cores": 3, "load_average": [2.5, 1.0, 0.25]}}
    _, out = plot(tmp_path, busy, {**ROW, "machine": {"cores": 3, "load_average": None}})
    report = (out / "report.html").read_text()
    assert "timeline: 3 cores, load average 2.50 1.00 0.25 (1, 5 and 15 min)" in report
    assert report.count("load average") == 1


def test_a_report_says_what_is_wrong(tmp_path: Path) -> None:
    broken = rows()[:4]
    broken[3] = {**broken[3], "hits_digest": "other", "errors": 2, "blocks_verified": 1}
    matrix = {"schema": "matrix/1", "rows": broken, "hit_ratio_identical": False}
    code, out = plot(tmp_path, matrix)
    assert code == 0
    report = (out / "report.html").read_text()
    assert re.search(r'class="bad">Hit counts of the 4 rows DIFFER', report)
    assert re.search(r'class="bad">2 errors', report)


def test_a_run_that_failed_early_can_be_drawn(tmp_path: Path) -> None:
    row = {**ROW, "load_gb_per_s": None, "save_gb_per_s": None, "ttft_speedup_modeled": None}
    row["ttft_speedup_modeled_llama_3_1_8b_bf16"] = row["block_hit_ratio"] = None
    row.update(blocks_matchable=0, blocks_hit=0, errors=1, curve=[])
    code, out = plot(tmp_path, row)
    assert code == 0
    assert not (out / "warm_up.png").exists()


def test_equal_results_give_equal_figures(tmp_path: Path) -> None:
    drawn = []
    for name in ("first", "second"):
        folder = tmp_path / name
        folder.mkdir()
        _, out = plot(folder, TIMELINE)
        drawn.append((out / "timeline.svg").read_bytes())
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "what a verb printed with --json"),
        ("[]", "its schema is None"),
        ('{"schema": "demo/1"}', "its schema is 'demo/1'"),
        ('{"schema": "trace/1"}', "a field is missing or of another type"),
        ('{"schema": "matrix/1", "rows": [5]}', "a field is missing or of another type"),
        ('{"schema": "matrix/1", "rows": {}}', "holds nothing to draw"),
    ],
)
def test_what_is_no_result_is_exit_code_2(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "x.json"
    file.write_text(text)
    assert main(["plot", str(file), "--out", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err


def test_without_matplotlib_the_error_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "matplotlib" else find(name, *rest),
    )
    code, _ = plot(tmp_path, TIMELINE)
    assert code == 2
    assert "plot needs matplotlib" in capsys.readouterr().err
