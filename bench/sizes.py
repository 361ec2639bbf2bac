"""What all parts share: how much is measured, and the environment they measure in."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["FULL", "SEED", "SMOKE", "Sizes", "UsageError", "cores", "environment", "touch_memory"]

SEED = 20240501


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    pairs: int
    warm_up: int
    blocks: int
    object_bytes: int
    small_object_bytes: int
    segment_bytes: int
    memory_blocks: int
    identity_blocks: int
    identity_samples: int
    layers: int
    layer_samples: int
    query_blocks: int
    saves: int
    put_s: float
    memory_bytes: int  # More than a part takes and does not touch before it measures.


FULL = Sizes(
    pairs=15,
    warm_up=2,
    blocks=32,
    object_bytes=4 << 20,
    small_object_bytes=1 << 20,
    segment_bytes=2 << 30,
    memory_blocks=8,  # What the memory store holds stays allocated until the process ends.
    identity_blocks=1024,
    identity_samples=101,
    layers=32,
    layer_samples=21,
    query_blocks=4096,
    saves=301,
    put_s=0.3,
    memory_bytes=512 << 20,
)
SMOKE = Sizes(
    pairs=3,
    warm_up=1,
    blocks=8,
    object_bytes=64 << 10,
    small_object_bytes=16 << 10,
    segment_bytes=64 << 20,
    memory_blocks=4,
    identity_blocks=64,
    identity_samples=15,
    layers=32,
    layer_samples=7,
    query_blocks=64,
    saves=15,
    put_s=0.03,
    memory_bytes=16 << 20,
)


class UsageError(Exception):
    """Something that is to be put right before measuring."""


@contextlib.contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    """Set the connector's variables; what the user has set of Mooncake's own stays."""
    pinned = {
        "MC_MODEL_REVISION": "bench",
        "MC_TCP_ENABLE_CONNECTION_POOL": "1",
        # A slow machine must not cost hits.
        "MC_STAGE_DEADLINE_MS": "60000",
        "MC_LOAD_DEADLINE_MS": "60000",
        **values,
    }
    before = dict(os.environ)
    os.environ.update(pinned)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def touch_memory(size_bytes: int) -> None:
    """Takes that much memory of the machine and gives it back.

    A virtual machine may not have it yet: its host then takes up to 150 us for a page of 4 KiB that
    otherwise costs 5 us, and a query that allocates 200 pages seems to take nine times as long.
    """
    with mmap.mmap(-1, size_bytes) as memory:
        for at in range(0, size_bytes, mmap.PAGESIZE):
            memory[at] = 1


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0))
