"""Command line of the benchmarks: which parts run, with which sizes, and where the result goes."""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.paired import Entry, measure_pairs, throughput_entry

if TYPE_CHECKING:
    from bench.connector_path import ConnectorPath, Geometry
    from bench.raw import Raw

__all__ = ["main"]

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("identity", "layers", "tier", "memory", "file", "mooncake")
IDENTITY_LIMIT = 2.0
# Loads and computing of equal length overlap in full at 0.5.
LAYERS_LIMIT = 0.65
TIER_LIMIT = 0.85
MOONCAKE_AIM = 0.90
# The memory store copies each byte into or out of itself as the baseline does; checksum, one more
# copy and the commit of tiny objects come on top.
MEMORY_AIM = 0.20
# A load reads into staging and copies to the page, as the baseline does; lookup and checksum come
# on top.
FILE_AIM = 0.85
SEED = 20240501


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    pairs: int
    warm_up: int
    blocks: int
    object_bytes: int
    segment_bytes: int
    memory_blocks: int
    identity_blocks: int
    identity_samples: int
    layers: int
    layer_samples: int
    tier_samples: int


FULL = Sizes(
    pairs=15,
    warm_up=2,
    blocks=32,
    object_bytes=4 << 20,
    segment_bytes=2 << 30,
    memory_blocks=8,  # What the memory store holds stays allocated until the process ends.
    identity_blocks=1024,
    identity_samples=101,
    layers=32,
    layer_samples=21,
    tier_samples=31,
)
SMOKE = Sizes(
    pairs=3,
    warm_up=1,
    blocks=4,
    object_bytes=64 << 10,
    segment_bytes=64 << 20,
    memory_blocks=4,
    identity_blocks=64,
    identity_samples=15,
    layers=32,
    layer_samples=7,
    tier_samples=3,
)


def main(argv: list[str] | None = None) -> int:
    """Run the chosen parts and write the file."""
    options = _parse(argv)
    sizes = SMOKE if options.smoke else FULL
    if options.pairs is not None:
        sizes = Sizes(**{**sizes.__dict__, "pairs": options.pairs})
    if options.blocks is not None:
        sizes = Sizes(**{**sizes.__dict__, "blocks": options.blocks})
    parts = options.only or ([part for part in PARTS if part != "mooncake" or not options.smoke])
    runners: dict[str, Callable[[], dict[str, Entry]]] = {
        "identity": lambda: _identity(options.bin_dir, sizes),
        "layers": lambda: _layers(options.bin_dir, sizes),
        "tier": lambda: _tier(options.bin_dir, sizes),
        "memory": lambda: _memory(sizes),
        "file": lambda: _file(sizes),
        "mooncake": lambda: _mooncake(sizes),
    }
    entries: dict[str, Entry] = {}
    for part in parts:
        try:
            measured = runners[part]()
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


class UsageError(Exception):
    """Something that is to be put right before measuring."""


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


# Parts ---------------------------------------------------------------------------------------


def _identity(bin_dir: Path, sizes: Sizes) -> dict[str, Entry]:
    measured = _run_program(
        bin_dir / "identity_ratio",
        f"--samples={sizes.identity_samples}",
        f"--blocks={sizes.identity_blocks}",
    )
    key_ns, sha_ns = measured["key_ns"], measured["sha256_ns"]
    entry = Entry(
        value=statistics.median(measured["samples"]),
        op="<=",
        limit=IDENTITY_LIMIT,
        samples=measured["samples"],
        baseline={"name": "SHA-256, reused EVP context", "value": sha_ns, "unit": "ns"},
        note=(
            f"{key_ns} ns against {sha_ns} ns for a {measured['tokens_per_block']}-token block: "
            f"append to the chain and format the shard's key, over SHA-256 of the same "
            f"{measured['message_bytes']} bytes, in a prompt of {measured['blocks']} blocks"
        ),
        aim=False,
        digest=measured["digest"],
    )
    return {"identity_vs_sha256": entry}


def _run_program(program: Path, *arguments: str) -> dict[str, Any]:
    if not program.is_file():
        raise UsageError(
            f"{program}: not there; remedy: cmake --workflow --preset release, or --bin-dir"
        )
    done = subprocess.run([program, *arguments], check=True, stdout=subprocess.PIPE)
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


def _layers(bin_dir: Path, sizes: Sizes) -> dict[str, Entry]:
    measured = _run_program(
        bin_dir / "layer_overlap",
        f"--samples={sizes.layer_samples}",
        f"--layers={sizes.layers}",
    )
    entry = Entry(
        value=statistics.median(measured["samples"]),
        op="<=",
        limit=LAYERS_LIMIT,
        samples=measured["samples"],
        baseline={"name": "whole blocks", "value": measured["block_ms"], "unit": "ms"},
        note=(
            f"{measured['layer_ms']:.1f} ms against {measured['block_ms']:.1f} ms from the begin "
            f"of the load to the end of the last of {measured['layers']} layers, measured with "
            f"real threads: {measured['blocks']} blocks, a store that takes 1 ms for a layer of "
            "all of them, 1 ms of computing a layer (neither takes a core)"
        ),
        aim=False,
        digest=measured["digest"],
    )
    return {"layer_vs_block_ttft": entry}


def _tier(bin_dir: Path, sizes: Sizes) -> dict[str, Entry]:
    measured = _run_program(
        bin_dir / "tier_load",
        f"--samples={sizes.tier_samples}",
        f"--blocks={sizes.blocks}",
        f"--kib={sizes.object_bytes >> 10}",
    )
    entry = Entry(
        value=statistics.median(measured["samples"]),
        op=">=",
        limit=TIER_LIMIT,
        samples=measured["samples"],
        baseline={"name": "memcpy", "value": measured["memcpy_ms"], "unit": "ms"},
        note=(
            f"{measured['load_ms']:.2f} ms against {measured['memcpy_ms']:.2f} ms for "
            f"{measured['blocks']} blocks of {measured['block_bytes']} bytes: bind and load of "
            "blocks in the host tier up to the end of their hold, over one memcpy for each"
        ),
        aim=False,
        digest=measured["digest"],
    )
    return {"load_vs_memcpy_l1": entry}


def _memory(sizes: Sizes) -> dict[str, Entry]:
    from bench.connector_path import Geometry
    from bench.raw import CopyRaw

    geometry = Geometry.of_objects(sizes.object_bytes, sizes.memory_blocks)
    raw = CopyRaw(geometry.object_bytes, geometry.blocks, SEED)
    note = (
        f"Path through the Python classes on the memory back end, {geometry.blocks} objects of "
        f"{geometry.object_bytes} bytes a request; extra work: checksum, copy to or from the page, "
        "commit."
    )
    with _environment({"MC_BACKEND": "memory"}):
        load, save = _both_ways(sizes, geometry, raw, MEMORY_AIM, note)
    return {"load_vs_memcpy": load, "save_vs_memcpy": save}


def _file(sizes: Sizes) -> dict[str, Entry]:
    from bench.connector_path import ConnectorPath, Geometry
    from bench.raw import FileRaw

    geometry = Geometry.of_objects(sizes.object_bytes, sizes.blocks)
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK | os.X_OK) else None
    with tempfile.TemporaryDirectory(prefix="kvc-bench-", dir=base) as folder:
        raw = FileRaw(Path(folder) / "raw", geometry.object_bytes, geometry.blocks, SEED)
        note = (
            f"Path through the Python classes on the file back end, {geometry.blocks} objects of "
            f"{geometry.object_bytes} bytes a request in {folder.rpartition('/')[0]}, {_cores()} "
            "cores; baseline: open, read into a buffer, copy, object by object in one thread. "
            "Extra work: lookup, checksum, and the connector's own threads."
        )
        store = {
            "MC_BACKEND": "file",
            "MC_FILE_PATH": str(Path(folder) / "store"),
            "MC_FILE_MAX_BYTES": str(8 * geometry.request_bytes + (64 << 20)),
        }
        with _environment(store):
            path = ConnectorPath(geometry, SEED)
            try:
                load = _loads(sizes, path, raw, FILE_AIM, note)
            finally:
                path.close()
                del path
                gc.collect()
    return {"load_vs_read_file": load}


def _mooncake(sizes: Sizes) -> dict[str, Entry]:
    from bench.connector_path import Geometry
    from bench.raw import MooncakeRaw
    from mooncake_trtllm.local_store import LocalStore, LocalStoreError

    geometry = Geometry.of_objects(sizes.object_bytes, sizes.blocks)
    if sizes.segment_bytes < 4 * geometry.request_bytes:
        raise UsageError("a segment must hold four requests; remedy: fewer --blocks")
    note = (
        f"Path through the Python classes against the raw binding, {geometry.blocks} objects of "
        f"{geometry.object_bytes} bytes a request, loopback TCP, master and storage as processes "
        f"of their own on the same {_cores()} cores (noise +-40 %). Extra work: lookup, checksum, "
        "copy to or from the page; for a save also quorum probe and manifest, up to the commit."
    )
    try:
        # One environment for the connector, the raw client, the master and the storage process.
        with (
            _environment({"MC_BACKEND": "mooncake"}),
            LocalStore(segment_bytes=sizes.segment_bytes) as store,
            _environment(store.client_environment()),
        ):
            raw = MooncakeRaw(geometry.object_bytes, geometry.blocks, SEED)
            try:
                raw.fill_once(sizes.segment_bytes)
                load, save = _both_ways(sizes, geometry, raw, MOONCAKE_AIM, note)
            finally:
                raw.close()
    except LocalStoreError as error:
        raise ConnectionError(str(error)) from error
    return {"load_vs_raw_mooncake": load, "save_vs_raw_mooncake": save}


def _both_ways(
    sizes: Sizes, geometry: Geometry, raw: Raw, aim: float, note: str
) -> tuple[Entry, Entry]:
    from bench.connector_path import ConnectorPath

    path = ConnectorPath(geometry, SEED)
    try:
        save = _saves(sizes, path, raw, aim, note)
        load = _loads(sizes, path, raw, aim, note)
    finally:
        path.close()
        del path
        gc.collect()
    return load, save


def _saves(sizes: Sizes, path: ConnectorPath, raw: Raw, aim: float, note: str) -> Entry:
    objects = path.geometry.blocks

    def ours(pair: int) -> Callable[[], None]:
        return lambda: path.save(f"save/{pair}")

    def baseline(pair: int) -> Callable[[], None]:
        keys = [f"raw/{pair}/{index}" for index in range(objects)]
        return lambda: raw.put(keys)

    def after(pair: int) -> None:
        path.check_counters(saved=(pair + 1) * objects, loaded=(pair + 1) * objects)
        path.verify_target()
        raw.clear()

    def read_back(pair: int) -> None:
        path.poison_target()
        path.load(f"save/{pair}")
        after(pair)

    pairs = measure_pairs(sizes.pairs, sizes.warm_up, ours, baseline, read_back)
    return throughput_entry(
        pairs,
        limit=aim,
        bytes_per_run=path.geometry.request_bytes,
        baseline_name=raw.save_name,
        digest=path.digest(),
        note=note,
    )


def _loads(sizes: Sizes, path: ConnectorPath, raw: Raw, aim: float, note: str) -> Entry:
    keys = [f"raw/{index}" for index in range(path.geometry.blocks)]
    path.save("load")
    raw.put(keys)

    def ours(pair: int) -> Callable[[], None]:
        del pair
        path.poison_target()
        return lambda: path.load("load")

    def baseline(pair: int) -> Callable[[], None]:
        del pair
        return lambda: raw.get(keys)

    def after(pair: int) -> None:
        del pair
        path.verify_target()
        raw.verify()

    pairs = measure_pairs(sizes.pairs, sizes.warm_up, ours, baseline, after)
    return throughput_entry(
        pairs,
        limit=aim,
        bytes_per_run=path.geometry.request_bytes,
        baseline_name=raw.load_name,
        digest=path.digest(),
        note=note,
    )


# Around the measurement ----------------------------------------------------------------------


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Set the connector's variables; what the user has set of Mooncake's own stays."""
    pinned = {
        "MC_MODEL_REVISION": "bench",
        "MC_TCP_ENABLE_CONNECTION_POOL": "1",
        **values,
    }
    before = dict(os.environ)
    os.environ.update(pinned)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


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
        "_meta": {"schema": "bench/1", "commit": _commit(), "cpu": _cpu(), "cores": _cores()}
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


def _cores() -> int:
    return len(os.sched_getaffinity(0))
