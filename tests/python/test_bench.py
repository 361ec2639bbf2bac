"""The benchmarks run with tiny sizes, so that they cannot rot; and their arithmetic is right."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
IDENTITY = "identity_vs_sha256"
LAYERS = "layer_vs_block_ttft"


@pytest.fixture
def paired(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT))
    import bench.paired

    return bench.paired


def run_bench(out: Path, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(ROOT / "bench" / "run.py"), "--smoke", f"--out={out}", *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(out.read_text())
    assert results["_meta"]["schema"] == "bench/1"
    assert results["_meta"]["cores"] >= 1
    return {name: entry for name, entry in results.items() if name != "_meta"}


def check_ratios(entries: dict[str, Any], names: set[str], unit: str = "ratio") -> None:
    assert set(entries) == names
    for entry in entries.values():
        samples = sorted(entry["samples"])
        assert len(samples) % 2 == 1
        assert entry["value"] == pytest.approx(samples[len(samples) // 2], abs=1e-3)
        assert entry["unit"] == unit
        assert entry["baseline"]["value"] > 0
        above = entry["value"] >= entry["limit"]
        assert entry["pass"] == (above if entry["op"] == ">=" else not above)
        assert int(entry["digest"], 16) != 0


def compiled_benchmarks(program: str = "identity_ratio") -> Path:
    """The folder of the compiled benchmarks, as `make setup` (dev) or `make bench` leave it."""
    for preset in ("dev", "release"):
        folder = ROOT / "build" / preset / "bench"
        if (folder / program).is_file():
            return folder
    pytest.fail(f"no build/*/bench/{program}; remedy: cmake --workflow --preset dev")


def test_smoke_of_the_compiled_part(tmp_path: Path) -> None:
    folder = compiled_benchmarks()
    entries = run_bench(tmp_path / "r.json", "--only=identity", f"--bin-dir={folder}")
    check_ratios(entries, {IDENTITY})
    assert len(entries[IDENTITY]["samples"]) >= 15
    assert entries[IDENTITY]["limit"] == 1.5
    assert not entries[IDENTITY]["aim"]


def test_layers_overlap_with_computing(tmp_path: Path) -> None:
    """Measured; the best of several, since a busy machine can only add to either side."""
    folder = compiled_benchmarks("layer_overlap")
    samples: list[float] = []
    for _ in range(5):
        entries = run_bench(tmp_path / "r.json", "--only=layers", f"--bin-dir={folder}")
        check_ratios(entries, {LAYERS})
        assert entries[LAYERS]["limit"] == 0.65
        samples += entries[LAYERS]["samples"]
        if min(samples) <= 0.65:
            return
    pytest.fail(f"none of {samples} is at most 0.65")


def test_smoke_of_a_conversation_that_grows(tmp_path: Path) -> None:
    folder = compiled_benchmarks("requery")
    entries = run_bench(tmp_path / "r.json", "--only=requery", f"--bin-dir={folder}")
    check_ratios(entries, {"requery_grow_us"}, unit="us")
    assert entries["requery_grow_us"]["limit"] == 60.0


def test_smoke_of_loads_from_the_host_tier(tmp_path: Path) -> None:
    entries = run_bench(tmp_path / "r.json", "--only=tier")
    check_ratios(entries, {"load_vs_memcpy_l1"})
    assert entries["load_vs_memcpy_l1"]["limit"] == 0.85
    assert not entries["load_vs_memcpy_l1"]["aim"]


def test_smoke_of_queries(tmp_path: Path) -> None:
    entries = run_bench(tmp_path / "r.json", "--only=query")
    check_ratios(entries, {"query_128k_vs_floor"})
    assert entries["query_128k_vs_floor"]["limit"] == 1.6


def test_saves_that_find_the_queue_full_are_quick(tmp_path: Path) -> None:
    entries = run_bench(tmp_path / "r.json", "--only=saves")
    assert set(entries) == {"wait_for_save_cpu_us_p99", "wait_for_save_us_p50"}
    for entry in entries.values():
        assert len(entry["samples"]) > 5
        assert (entry["unit"], entry["limit"]) == ("us", 200.0)


def test_steps_with_arrivals_keep_to_their_budget(tmp_path: Path) -> None:
    """However slow the store: the slowest of them needs seven times as long for a single call."""
    entries = run_bench(tmp_path / "r.json", "--only=stall")
    budget = entries.pop("decode_stall_vs_budget")
    check_ratios(entries, {"decode_stall_staged_vs_leased"})
    assert len(budget["samples"]) == 8
    assert budget["value"] == max(budget["samples"]) < 4


def test_smoke_on_the_memory_back_end(tmp_path: Path) -> None:
    entries = run_bench(tmp_path / "r.json", "--only=memory")
    check_ratios(entries, {"load_vs_memcpy", "save_vs_memcpy"})
    # The last load of each direction put the same source bytes into the pages.
    assert entries["load_vs_memcpy"]["digest"] == entries["save_vs_memcpy"]["digest"]


def test_smoke_on_the_file_back_end(tmp_path: Path) -> None:
    entries = run_bench(tmp_path / "r.json", "--only=file")
    check_ratios(entries, {"load_vs_read_file"})
    assert entries["load_vs_read_file"]["baseline"]["name"] == "read and memcpy"
    assert entries["load_vs_read_file"]["limit"] == 0.85


@pytest.mark.mooncake
@pytest.mark.slow
def test_smoke_on_a_real_store(tmp_path: Path) -> None:
    entries = run_bench(tmp_path / "r.json", "--only=mooncake")
    saves = {"save_vs_raw_mooncake", "save_vs_raw_mooncake_small"}
    check_ratios(entries, {"load_vs_raw_mooncake"} | saves)
    assert entries["load_vs_raw_mooncake"]["baseline"]["name"] == "batch_get_into"
    assert entries["save_vs_raw_mooncake"]["baseline"]["name"] == "batch_put_from"


@pytest.mark.mooncake
@pytest.mark.slow
def test_a_block_is_a_shard_of_each_rank_and_a_manifest(tmp_path: Path) -> None:
    entries = run_bench(tmp_path / "r.json", "--only=objects")
    assert entries["objects_per_block"]["value"] == entries["objects_per_block"]["limit"] == 3


def test_a_missing_program_is_wrong_usage(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            str(ROOT / "bench" / "run.py"),
            "--only=identity",
            f"--bin-dir={tmp_path}",
            f"--out={tmp_path / 'r.json'}",
        ],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert str(tmp_path / "identity_ratio") in done.stderr
    assert not (tmp_path / "r.json").exists()


def test_pairs_alternate_and_warm_up_does_not_count(paired: ModuleType) -> None:
    events: list[str] = []

    def side(name: str) -> Callable[[int], Callable[[], None]]:
        def prepare(number: int) -> Callable[[], None]:
            events.append(f"prepare {name}{number}")
            return lambda: events.append(f"{name}{number}")

        return prepare

    pairs = paired.measure_pairs(2, 1, side("a"), side("b"), lambda n: events.append(f"after {n}"))
    timed = [event for event in events if " " not in event]
    assert timed == ["b0", "a0", "a1", "b1", "b2", "a2"]
    assert events.index("prepare b0") < events.index("b0")
    assert [event for event in events if event.startswith("after")] == [
        "after 0",
        "after 1",
        "after 2",
    ]
    assert len(pairs.ours) == len(pairs.baseline) == 2


def test_a_ratio_is_taken_inside_each_pair(paired: ModuleType) -> None:
    # The machine got ten times slower in the middle; the ratio did not change.
    pairs = paired.Pairs(ours=[2.0, 20.0, 2.0], baseline=[1.0, 10.0, 1.0])
    entry = paired.throughput_entry(
        pairs, limit=0.9, bytes_per_run=10**9, baseline_name="raw", digest="d", note=""
    )
    assert entry.value == pytest.approx(0.5)
    assert not entry.passed
    assert entry.note.startswith("Below the aim")
    assert entry.baseline["value"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("op", "value", "passed"), [("<=", 2.0, True), ("<=", 2.01, False), (">=", 2.0, True)]
)
def test_a_bar_includes_its_limit(paired: ModuleType, op: str, value: float, passed: bool) -> None:
    entry = paired.Entry(
        value=value, op=op, limit=2.0, samples=[], baseline={}, note="", aim=False, digest=""
    )
    assert entry.to_json()["pass"] is passed


def test_objects_are_four_mebibytes_with_their_header(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from bench.connector_path import Geometry

    geometry = Geometry.of_objects(4 << 20, 32)
    assert geometry.object_bytes == 4 << 20
    with pytest.raises(ValueError, match="remedy"):
        Geometry.of_objects(1000, 32)
