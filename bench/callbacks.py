"""What the engine waits for: queries, wait_for_save, and whole steps in which requests arrive."""

from __future__ import annotations

import array
import hashlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.connector_path import ConnectorPath, Geometry
from bench.paired import Entry, measure_pairs
from bench.sizes import SEED, Sizes, environment
from bench.throughput import open_path

__all__ = ["objects", "query", "saves", "stall"]

QUERY_LIMIT = 1.6
SAVE_LIMIT_US = 200.0
STALL_LIMIT = 1.1
# What the budget does not cover: hashing, and copies of what was promised.
BUDGET_LIMIT = 1.1
_BUDGET_S = 0.3
# Of an exists and of a get, each batched.
_SLOW_STORES = (
    (0.0, 0.0),
    (0.0, 0.02),
    (0.0, 0.1),
    (0.0, 2.0),
    (0.02, 0.0),
    (0.1, 0.1),
    (2.0, 0.0),
)
_ARRIVING = 8
_LONG_ARRIVING = 32
# What the chain hashes for a block, beside its tokens: tag, previous name, two counts.
_MESSAGE_EXTRA_BYTES = 52
_TOKENS_PER_BLOCK = 32


def query(sizes: Sizes) -> dict[str, Entry]:
    """A prompt whose blocks are all in host memory, over hashing it and converting its tokens."""
    geometry = Geometry(blocks=sizes.query_blocks, layers=1, elements_per_token=1)
    tokens = geometry.blocks * _TOKENS_PER_BLOCK
    prompt = list(range(100_000, 100_000 + tokens))
    hashed = bytes(geometry.blocks * (4 * _TOKENS_PER_BLOCK + _MESSAGE_EXTRA_BYTES))

    def floor(_pair: int) -> Callable[[], None]:
        def action() -> None:
            array.array("i", prompt)
            hashlib.sha256(hashed).digest()

        return action

    with environment({"MC_BACKEND": "memory"}), open_path(geometry) as path:
        path.save_step("query")()
        path.drain()
        # Requests live on, so that no earlier one's names are there for the next one.
        pairs = measure_pairs(
            2 * sizes.pairs + 1,
            sizes.warm_up,
            lambda _: lambda: _none(path.ask("query", geometry.blocks)),
            floor,
            lambda _: None,
        )
        digest = hashlib.sha256(repr(path.scheduler_stats()["blocks_resident"]).encode())
        path.end()
        again = _median_of(sizes.pairs, lambda: path.ask("query", geometry.blocks), path.end)
    samples = [own / raw for own, raw in zip(pairs.ours, pairs.baseline, strict=True)]
    own_ms = statistics.median(pairs.ours) * 1e3
    floor_ms = statistics.median(pairs.baseline) * 1e3
    entry = Entry(
        value=statistics.median(samples),
        op="<=",
        limit=QUERY_LIMIT,
        samples=samples,
        baseline={"name": "SHA-256 and array of the list", "value": floor_ms, "unit": "ms"},
        note=(
            f"{own_ms:.2f} ms against {floor_ms:.2f} ms: get_num_new_matched_tokens of {tokens} "
            f"tokens in {geometry.blocks} blocks, all in host memory, nothing known of the prompt, "
            f"over one SHA-256 of the {len(hashed)} bytes that are hashed and array('i', tokens). "
            f"A prompt that an earlier request had: {again * 1e3:.2f} ms"
        ),
        aim=False,
        digest=digest.hexdigest(),
    )
    return {"query_128k_vs_floor": entry}


def _none(_anything: object) -> None:
    return None


def _median_of(count: int, action: Callable[[], object], after: Callable[[], None]) -> float:
    taken = []
    for _ in range(count):
        begin = time.perf_counter()
        action()
        taken.append(time.perf_counter() - begin)
        after()
    return statistics.median(taken)


def saves(sizes: Sizes) -> dict[str, Entry]:
    """wait_for_save while the store takes its time and the queue is full."""
    geometry = Geometry.of_objects(sizes.object_bytes, 4)
    settings = {
        "MC_BACKEND": "memory",
        "MC_MEMORY_BYTES": str((1 << 30) + 1),
        "MC_SAVE_QUEUE_BYTES": str(8 * geometry.page_bytes),
    }
    wall, cpu, with_room = [], [], []
    with environment(settings), _slow_stores(put_s=sizes.put_s), open_path(geometry) as path:
        for number in range(sizes.saves):
            dropped = path.worker_stats()["saves_dropped"]
            action = path.save_step(f"full/{number}")
            began, began_cpu = time.perf_counter(), time.thread_time()
            action()
            took_cpu, took = time.thread_time() - began_cpu, time.perf_counter() - began
            path.end()
            if path.worker_stats()["saves_dropped"] == dropped + geometry.blocks:
                wall.append(took * 1e6)
                cpu.append(took_cpu * 1e6)
            else:
                with_room.append(took * 1e6)
        digest = hashlib.sha256(repr(len(wall)).encode()).hexdigest()
    if len(wall) < len(with_room):
        raise RuntimeError(f"the queue was full in {len(wall)} of {sizes.saves} steps only")
    note = (
        f"{len(wall)} steps with {geometry.blocks} blocks of {geometry.page_bytes} bytes each, a "
        f"store that takes {sizes.put_s * 1e3:.0f} ms a put, and a full queue: they are dropped. "
        f"Baseline: {len(with_room)} steps of the same run that found room, whose snapshots are "
        "copied"
    )
    baseline = {"name": "with room", "value": statistics.median(with_room), "unit": "us"}

    def entry(value: float, samples: list[float], text: str) -> Entry:
        return Entry(
            value=value,
            unit="us",
            op="<=",
            limit=SAVE_LIMIT_US,
            samples=samples,
            baseline=baseline,
            note=f"{text} {note}",
            aim=False,
            digest=digest,
        )

    p99 = sorted(cpu)[max(0, -(-99 * len(cpu) // 100) - 1)]
    return {
        "wait_for_save_cpu_us_p99": entry(p99, cpu, "CPU time of the calling thread."),
        "wait_for_save_us_p50": entry(statistics.median(wall), wall, "Wall time."),
    }


@contextmanager
def _slow_stores(
    *, exists_s: float = 0.0, put_s: float = 0.0, get_s: float = 0.0
) -> Iterator[None]:
    """Memory stores that are opened meanwhile take so much longer for each batched call."""
    import mooncake_trtllm._testing as testing  # type: ignore[import-not-found, unused-ignore]
    from mooncake_trtllm import _stores

    registry: Any = _stores.StoreRegistry
    inner = registry._memory_store

    def slow(self: Any, key: Any, capacity: int) -> Any:
        return testing.slow_store(
            inner(self, key, capacity), exists_s=exists_s, put_s=put_s, get_s=get_s
        )

    registry._memory_store = slow
    try:
        yield
    finally:
        registry._memory_store = inner


def stall(sizes: Sizes) -> dict[str, Entry]:
    """Steps in which eight requests arrive: what running decodes wait for."""
    return {
        "decode_stall_staged_vs_leased": _stall_of_promises(sizes),
        "decode_stall_vs_budget": _stall_of_slow_stores(sizes),
    }


def _stall_of_promises(sizes: Sizes) -> Entry:
    geometry = Geometry.of_objects(sizes.small_object_bytes, 8 * _ARRIVING)
    with tempfile.TemporaryDirectory(prefix="kvc-bench-") as folder:
        settings = {
            "MC_BACKEND": "file",
            "MC_FILE_PATH": str(Path(folder) / "store"),
            "MC_FILE_MAX_BYTES": str(4 * geometry.request_bytes + (64 << 20)),
        }
        with (
            environment(settings),
            _path_of(geometry, "leased") as leased,
            _path_of(geometry, "staged") as staged,
        ):
            names: list[str] = []

            def ours(pair: int) -> Callable[[], None]:
                names[:] = [f"stall/{pair}/{index}" for index in range(_ARRIVING)]
                for name in names:
                    leased.save(name, _ARRIVING)
                leased.poison_target()
                staged.poison_target()
                return lambda: staged.load(*names)

            def after(_pair: int) -> None:
                leased.verify_target(_ARRIVING)
                staged.verify_target(_ARRIVING)

            pairs = measure_pairs(
                sizes.pairs, sizes.warm_up, ours, lambda _: lambda: leased.load(*names), after
            )
            stats, digest = staged.worker_stats(), staged.digest()
    if not stats["blocks_staged"] == stats["tier_hits"] == stats["blocks_loaded"] > 0:
        raise RuntimeError(f"staged blocks did not all come from the store: {stats}")
    samples = [own / raw for own, raw in zip(pairs.ours, pairs.baseline, strict=True)]
    own_ms, raw_ms = (statistics.median(side) * 1e3 for side in (pairs.ours, pairs.baseline))
    return Entry(
        value=statistics.median(samples),
        op="<=",
        limit=STALL_LIMIT,
        samples=samples,
        baseline={"name": "leased", "value": raw_ms, "unit": "ms"},
        note=(
            f"{own_ms:.1f} ms against {raw_ms:.1f} ms for a step in which {_ARRIVING} requests "
            f"arrive with {geometry.blocks // _ARRIVING} stored blocks of {geometry.page_bytes} "
            "bytes each, on the file back end, none of them in host memory: all callbacks of the "
            "step"
        ),
        aim=False,
        digest=digest,
    )


@contextmanager
def _path_of(geometry: Geometry, promise: str) -> Iterator[ConnectorPath]:
    with environment({"MC_PROMISE": promise}):
        path = ConnectorPath(geometry, SEED)
    try:
        yield path
    finally:
        path.close()


def _stall_of_slow_stores(sizes: Sizes) -> Entry:
    geometry = Geometry.of_objects(sizes.small_object_bytes, 2 * _ARRIVING)
    settings = {
        "MC_BACKEND": "memory",
        "MC_MEMORY_BYTES": str((1 << 30) + 2),
        "MC_STAGE_DEADLINE_MS": str(round(_BUDGET_S * 1e3)),
    }
    names = [f"budget/{index}" for index in range(_ARRIVING)]
    samples, offered = [], []
    with environment(settings):
        with open_path(geometry) as writer:
            for name in names:
                writer.save(name, _ARRIVING)
        for exists_s, get_s in _SLOW_STORES:
            with _slow_stores(exists_s=exists_s, get_s=get_s), open_path(geometry) as path:
                begin = time.perf_counter()
                path.load_step(*names, in_full=False)()
                samples.append((time.perf_counter() - begin) / _BUDGET_S)
                path.end()
                offered.append(path.scheduler_stats()["blocks_offered"])
        samples.append(_wait_of_long_prompts(sizes) / _BUDGET_S)
    times = ", ".join(f"{sample * _BUDGET_S * 1e3:.0f} ms" for sample in samples)
    return Entry(
        value=max(samples),
        op="<=",
        limit=BUDGET_LIMIT,
        samples=samples,
        baseline={"name": "step budget", "value": _BUDGET_S * 1e3, "unit": "ms"},
        note=(
            f"Worst of {times}. All but the last: a step in which {_ARRIVING} requests arrive, on "
            f"stores that take {_slow_stores_in_words()} ms a batched exists/get; {offered} blocks "
            "promised; the budget bounds the queries of a step, copies of what is promised come "
            f"after it. The last: what {_LONG_ARRIVING} queries of "
            f"{sizes.query_blocks * _TOKENS_PER_BLOCK} tokens take longer on a store that takes "
            "2000 ms an exists than on one that answers at once"
        ),
        aim=False,
        digest=hashlib.sha256(repr(offered[0]).encode()).hexdigest(),
    )


def _slow_stores_in_words() -> str:
    return ", ".join(f"{exists * 1e3:.0f}/{get * 1e3:.0f}" for exists, get in _SLOW_STORES)


def _wait_of_long_prompts(sizes: Sizes) -> float:
    """Of one step, for the store alone: naming the prompts takes longer than a pause of queries."""
    geometry = Geometry(blocks=sizes.query_blocks, layers=1, elements_per_token=1)
    taken = []
    for exists_s in (0.0, 2.0):
        with _slow_stores(exists_s=exists_s), open_path(geometry) as path:
            begin = time.perf_counter()
            for index in range(_LONG_ARRIVING):
                path.ask(f"long/{index}", None)
            taken.append(time.perf_counter() - begin)
            path.end()
    return taken[1] - taken[0]


def objects(sizes: Sizes) -> dict[str, Entry]:
    """Keys on Mooncake for each block of two ranks."""
    from mooncake_trtllm.local_store import LocalStore, LocalStoreError
    from mooncake_trtllm.simulator import Geometry as Model
    from mooncake_trtllm.simulator import Instance, InstanceConfig, ModelFolder, Prompt

    model, ranks, blocks = Model(tokens_per_block=_TOKENS_PER_BLOCK), 2, 32
    prompt = list(range(blocks * _TOKENS_PER_BLOCK + 1))
    try:
        with (
            tempfile.TemporaryDirectory(prefix="kvc-bench-") as folder,
            LocalStore(segment_bytes=sizes.segment_bytes) as store,
        ):
            config = InstanceConfig(
                ModelFolder.create(Path(folder) / "model", model),
                model,
                tp=ranks,
                env={"MC_BACKEND": "mooncake", **store.client_environment()},
            )
            with Instance(config) as instance:
                before = len(store.keys())
                instance.serve(Prompt(prompt, max_new_tokens=1), drain_s=60.0)
                count = len(store.keys()) - before
    except LocalStoreError as error:
        raise ConnectionError(str(error)) from error
    entry = Entry(
        value=count / blocks,
        unit="objects",
        op="<=",
        limit=ranks + 1,
        samples=[count / blocks],
        baseline={"name": "shards of a block", "value": ranks, "unit": "objects"},
        note=f"{count} keys on a real Mooncake store for {blocks} blocks of {ranks} ranks",
        aim=False,
        digest=hashlib.sha256(repr(count).encode()).hexdigest(),
    )
    return {"objects_per_block": entry}
