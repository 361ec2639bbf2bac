"""Command line of the benchmarks: which parts run, with which sizes, and where the result goes."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from bench.paired import Entry
from bench.sizes import FULL, SMOKE, Sizes, UsageError, cores, touch_memory

__all__ = ["main"]

ROOT = Path(__file__).resolve().parent.parent
COMPILED = ("identity", "layers", "requery")
HERMETIC = ("query", "saves", "stall", "memory", "tier", "file")
ON_MOONCAKE = ("mooncake", "objects")
PARTS = (*COMPILED, *HERMETIC, *ON_MOONCAKE)


def main(argv: list[str] | None = None) -> int:
    """Run the chosen parts and write the file."""
    options = _parse(argv)
    sizes = SMOKE if options.smoke else FULL
    if options.pairs is not None:
        sizes = replace(sizes, pairs=options.pairs)
    if options.blocks is not None:
        sizes = replace(sizes, blocks=options.blocks)
    parts = options.only or [p for p in PARTS if p not in ON_MOONCAKE or not options.smoke]
    entries: dict[str, Entry] = {}
    for part in parts:
        touch_memory(sizes.memory_bytes)
        try:
            measured = _runner(part, options.bin_dir)(sizes)
        except UsageError as error:
            print(f"bench: {error}", file=sys.stderr)
            return 2
        except ConnectionError as error:
            print(f"bench: the store cannot be reached: {error}", file=sys.stderr)
            return 3
        for name, entry in measured.items():
            _report(name, entry)
        entries.update(measured)
    _write(options.out, entries)
    return 0 if all(entry.passed or entry.aim or options.smoke for entry in entries.values()) else 1


def _runner(part: str, bin_dir: Path) -> Callable[[Sizes], dict[str, Entry]]:
    """What measures a part. What is not chosen is not imported: it may need the wheel."""
    if part in COMPILED:
        from bench import programs

        compiled = {
            "identity": programs.identity,
            "layers": programs.layers,
            "requery": programs.requery,
        }[part]
        return lambda sizes: compiled(bin_dir, sizes)
    from bench import callbacks, throughput

    return {
        "query": callbacks.query,
        "saves": callbacks.saves,
        "stall": callbacks.stall,
        "objects": callbacks.objects,
        "memory": throughput.memory,
        "tier": throughput.tier,
        "file": throughput.file,
        "mooncake": throughput.mooncake,
    }[part]


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench/run.py", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "build/bench/results.json")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, hermetic parts, no bars")
    parser.add_argument("--only", action="append", choices=PARTS, help="may be given repeatedly")
    parser.add_argument("--pairs", type=_positive, help="samples of each ratio")
    parser.add_argument("--blocks", type=_positive, help="blocks of each request")
    parser.add_argument(
        "--bin-dir",
        type=Path,
        default=ROOT / "build/release/bench",
        help="where the compiled benchmarks are (default: the release preset's)",
    )
    return parser.parse_args(argv)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value}: must be at least 1")
    return value


def _report(name: str, entry: Entry) -> None:
    verdict = "pass" if entry.passed else "below its aim" if entry.aim else "FAIL"
    print(
        f"{name}: {entry.value:.3f} {entry.unit} ({entry.op} {entry.limit}: {verdict}; median of "
        f"{len(entry.samples)}); {entry.note} [result {entry.digest[:16]}]",
        file=sys.stderr,
        flush=True,
    )


def _write(out: Path, entries: dict[str, Entry]) -> None:
    results: dict[str, object] = {
        "_meta": {"schema": "bench/1", "commit": _commit(), "cpu": _cpu(), "cores": cores()}
    }
    results.update({name: entry.to_json() for name, entry in entries.items()})
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=out.parent, suffix=".json", delete=False) as file:
        json.dump(results, file, indent=1)
        file.write("\n")
    os.replace(file.name, out)


def _commit() -> str:
    """The commit that was measured, with "-dirty" where the work tree differs from it."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    return done.stdout.decode().strip() if done.returncode == 0 else ""


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return ""
