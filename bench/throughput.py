"""Bytes moved through the Python classes, over the same bytes moved by a raw baseline.

Staged promises keep in host memory what was saved or fetched, so one instance saves and another
loads what it has not seen before: every load comes from the store. Loads from host memory are
measured apart.
"""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.connector_path import ConnectorPath, Geometry
from bench.paired import Entry, measure_pairs, throughput_entry
from bench.raw import CopyRaw, FileRaw, MooncakeRaw, Raw
from bench.sizes import SEED, Sizes, UsageError, cores, environment

__all__ = ["file", "memory", "mooncake", "open_path", "tier"]

MOONCAKE_AIM = 0.90
SMALL_SAVE_AIM = 0.75
# The memory store copies each byte into or out of itself as the baseline does; checksum, one more
# copy and the commit of tiny objects come on top.
MEMORY_AIM = 0.20
# A load reads into staging and copies to the page, as the baseline does; lookup and checksum come
# on top.
FILE_AIM = 0.85
TIER_LIMIT = 0.85


def memory(sizes: Sizes) -> dict[str, Entry]:
    """The memory back end, over one copy."""
    geometry = Geometry.of_objects(sizes.object_bytes, sizes.memory_blocks)
    raw = CopyRaw(geometry.object_bytes, geometry.blocks, SEED)
    note = (
        f"Path through the Python classes on the memory back end, {geometry.blocks} objects of "
        f"{geometry.object_bytes} bytes a request; extra work: checksum, copy to or from the page, "
        "commit."
    )
    with environment({"MC_BACKEND": "memory"}):
        save = _saves(sizes, geometry, raw, MEMORY_AIM, note)
        load = _loads(sizes, geometry, raw, MEMORY_AIM, note)
    return {"load_vs_memcpy": load, "save_vs_memcpy": save}


def tier(sizes: Sizes) -> dict[str, Entry]:
    """Loads from host memory, over one copy."""
    geometry = Geometry.of_objects(sizes.object_bytes, sizes.blocks)
    raw = CopyRaw(geometry.object_bytes, geometry.blocks, SEED)
    with environment({"MC_BACKEND": "memory"}), open_path(geometry) as path:
        path.save("tier")

        raw.put([])

        def ours(_pair: int) -> Callable[[], None]:
            path.poison_target()
            return path.load_step("tier")

        def baseline(_pair: int) -> Callable[[], None]:
            raw.poison()
            return lambda: raw.get([])

        def after(_pair: int) -> None:
            path.end()
            path.verify_target()
            raw.verify()

        pairs = measure_pairs(2 * sizes.pairs + 1, sizes.warm_up, ours, baseline, after)
        stats = path.worker_stats()
        if stats["tier_hits"] != stats["blocks_loaded"]:
            raise RuntimeError(f"{stats['tier_hits']} of {stats['blocks_loaded']} from memory")
        entry = throughput_entry(
            pairs,
            limit=TIER_LIMIT,
            bytes_per_run=geometry.request_bytes,
            baseline_name=raw.load_name,
            digest=path.digest(),
            note=(
                f"start_load_kv of {geometry.blocks} blocks of {geometry.page_bytes} bytes that "
                "are in host memory, the end of their hold included; no store is asked."
            ),
        )
    entry.aim = False
    return {"load_vs_memcpy_l1": entry}


def file(sizes: Sizes) -> dict[str, Entry]:
    """The file back end, over reading files."""
    geometry = Geometry.of_objects(sizes.object_bytes, sizes.blocks)
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK | os.X_OK) else None
    with tempfile.TemporaryDirectory(prefix="kvc-bench-", dir=base) as folder:
        raw = FileRaw(Path(folder) / "raw", geometry.object_bytes, geometry.blocks, SEED)
        note = (
            f"Path through the Python classes on the file back end, {geometry.blocks} objects of "
            f"{geometry.object_bytes} bytes a request in {folder.rpartition('/')[0]}, {cores()} "
            "cores; baseline: open, read into a buffer, copy, object by object in one thread. "
            "Extra work: lookup, checksum, and the connector's own threads."
        )
        store = {
            "MC_BACKEND": "file",
            "MC_FILE_PATH": str(Path(folder) / "store"),
            "MC_FILE_MAX_BYTES": str(4 * geometry.request_bytes + (64 << 20)),
        }
        with environment(store):
            load = _loads(sizes, geometry, raw, FILE_AIM, note)
    return {"load_vs_read_file": load}


def mooncake(sizes: Sizes) -> dict[str, Entry]:
    """A private Mooncake store, over its own batched calls."""
    with _private_store(sizes):
        load, save = _of_objects(sizes, sizes.object_bytes, sizes.blocks)
        blocks = sizes.blocks * (sizes.object_bytes // sizes.small_object_bytes)
        save_small = _small_saves(sizes, sizes.small_object_bytes, blocks)
    return {
        "load_vs_raw_mooncake": load,
        "save_vs_raw_mooncake": save,
        "save_vs_raw_mooncake_small": save_small,
    }


@contextmanager
def _private_store(sizes: Sizes) -> Iterator[None]:
    """One environment for the connector, the raw client, the master and the storage process."""
    from mooncake_trtllm.local_store import LocalStore, LocalStoreError

    try:
        with (
            environment({"MC_BACKEND": "mooncake"}),
            LocalStore(segment_bytes=sizes.segment_bytes) as store,
            environment(store.client_environment()),
        ):
            yield
    except LocalStoreError as error:
        raise ConnectionError(str(error)) from error


def _of_objects(sizes: Sizes, object_bytes: int, blocks: int) -> tuple[Entry, Entry]:
    """Load and save."""
    geometry = Geometry.of_objects(object_bytes, blocks)
    if sizes.segment_bytes < 4 * geometry.request_bytes:
        raise UsageError("a segment must hold four requests; remedy: fewer --blocks")
    raw = MooncakeRaw(object_bytes, blocks, SEED)
    try:
        raw.fill_once(sizes.segment_bytes)
        save = _saves(sizes, geometry, raw, MOONCAKE_AIM, _mooncake_note(geometry))
        load = _loads(sizes, geometry, raw, MOONCAKE_AIM, _mooncake_note(geometry))
    finally:
        raw.close()
    return load, save


def _small_saves(sizes: Sizes, object_bytes: int, blocks: int) -> Entry:
    geometry = Geometry.of_objects(object_bytes, blocks)
    raw = MooncakeRaw(object_bytes, blocks, SEED)
    try:
        return _saves(sizes, geometry, raw, SMALL_SAVE_AIM, _mooncake_note(geometry))
    finally:
        raw.close()


def _mooncake_note(geometry: Geometry) -> str:
    return (
        f"Path through the Python classes against the raw binding, {geometry.blocks} objects of "
        f"{geometry.object_bytes} bytes a request, loopback TCP, master and storage as processes "
        f"of their own on the same {cores()} cores (noise +-40 %). Extra work: lookup, checksum, "
        "copy to or from the page; for a save also quorum probe and manifest, up to the commit."
    )


@contextmanager
def open_path(geometry: Geometry) -> Iterator[ConnectorPath]:
    """An instance of the settings that are in force."""
    path = ConnectorPath(geometry, SEED)
    try:
        yield path
    finally:
        path.close()
        gc.collect()


def _saves(sizes: Sizes, geometry: Geometry, raw: Raw, aim: float, note: str) -> Entry:
    with open_path(geometry) as path, open_path(geometry) as reader:

        def ours(pair: int) -> Callable[[], None]:
            return lambda: path.save(f"save/{pair}")

        def baseline(pair: int) -> Callable[[], None]:
            keys = [f"raw/{pair}/{index}" for index in range(geometry.blocks)]
            return lambda: raw.put(keys)

        def read_back(pair: int) -> None:
            reader.poison_target()
            reader.load(f"save/{pair}")
            path.check_counters(saved=(pair + 1) * geometry.blocks, loaded=0)
            reader.check_counters(saved=0, loaded=(pair + 1) * geometry.blocks)
            reader.verify_target()
            raw.clear()

        pairs = measure_pairs(sizes.pairs, sizes.warm_up, ours, baseline, read_back)
        return throughput_entry(
            pairs,
            limit=aim,
            bytes_per_run=geometry.request_bytes,
            baseline_name=raw.save_name,
            digest=reader.digest(),
            note=note,
        )


def _loads(sizes: Sizes, geometry: Geometry, raw: Raw, aim: float, note: str) -> Entry:
    keys = [f"raw/{index}" for index in range(geometry.blocks)]
    with open_path(geometry) as writer, open_path(geometry) as path:

        def ours(pair: int) -> Callable[[], None]:
            raw.clear()
            raw.put(keys)
            writer.save(f"load/{pair}")
            path.poison_target()
            return lambda: path.load(f"load/{pair}")

        def after(pair: int) -> None:
            path.verify_target()
            path.check_counters(saved=0, loaded=(pair + 1) * geometry.blocks)
            if path.worker_stats()["blocks_staged"] != (pair + 1) * geometry.blocks:
                raise RuntimeError("not all blocks came from the store")
            raw.verify()

        pairs = measure_pairs(
            sizes.pairs, sizes.warm_up, ours, lambda _pair: lambda: raw.get(keys), after
        )
        return throughput_entry(
            pairs,
            limit=aim,
            bytes_per_run=geometry.request_bytes,
            baseline_name=raw.load_name,
            digest=path.digest(),
            note=note,
        )
