"""Section G of the fault log through the classes: layouts, types and sizes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.engine import Engine, HostTensor, Request, Shape
from support.stores import shards

from mooncake_trtllm import KvConnectorConfigError

MakeEngine = Callable[..., Engine]
TOKENS = [int(t) for t in np.random.default_rng(48).integers(0, 32000, 61)]
FULL = 60 // 8
GUARD_BYTES = 4096
GUARD = 0x5A
_ids = itertools.count(1)


class GuardedTensor(HostTensor):
    """A pool with bytes on both sides that nobody may touch."""

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        super().__init__(shape, dtype)
        inner = self.bytes
        self.all = np.full(inner.size + 2 * GUARD_BYTES, GUARD, np.uint8)
        self.bytes = self.all[GUARD_BYTES:-GUARD_BYTES].reshape(inner.shape)
        self.bytes[:] = inner

    def guards_intact(self) -> bool:
        """Whether all of them are as they were."""
        ends = (self.all[:GUARD_BYTES], self.all[-GUARD_BYTES:])
        return all((end == GUARD).all() for end in ends)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float8_e4m3fn", "int8"])
@pytest.mark.parametrize("kv_factor", [1, 2], ids=["latent", "keys and values"])
def test_b57_every_page_comes_back_and_nothing_beside_it_is_touched(
    kv_factor: int, dtype: str, make_engine: MakeEngine
) -> None:
    """Pages are handed out from the last one down, so the ends of the pool are used."""
    shape = Shape(dtype=dtype, kv_factor=kv_factor, blocks=9)
    engine = make_engine(shape, tp=2, register=False)
    pools = [GuardedTensor(shape.pool(2), dtype) for _ in range(2)]
    engine.pools = list(pools)
    for worker, pool in zip(engine.workers, pools, strict=True):
        worker.register_kv_caches(pool)
    for first in (0, 1):
        engine._free.sort(reverse=bool(first))
        before = [pool.bytes[engine._free[: 9 - 8]].copy() for pool in pools]
        assert engine.serve(Request(next(_ids), TOKENS)) == (FULL if first else 0)
        after = [pool.bytes[engine._free[: 9 - 8]] for pool in pools]
        assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    assert all(pool.guards_intact() for pool in pools)


LAYOUTS: dict[str, Callable[[], Any]] = {
    "keys and values first": lambda: np.zeros((2, 64, 3, 128), np.float16),
    "layers first": lambda: np.zeros((3, 64, 2, 128), np.float16),
    "keys, values and scales": lambda: np.zeros((64, 3, 3, 128), np.float16),
    "heads apart": lambda: np.zeros((64, 3, 2, 2, 64), np.float16),
    "one dimension": lambda: np.zeros(64 * 3 * 2 * 128, np.float16),
    "padded rows": lambda: np.zeros((64, 3, 2, 160), np.float16)[..., :128],
    "padded blocks": lambda: np.zeros((64, 4, 2, 128), np.float16)[:, :3],
    "permuted": lambda: np.zeros((64, 2, 3, 128), np.float16).transpose(0, 2, 1, 3),
    "another block size": lambda: np.zeros((64, 3, 2, 256), np.float16),
    "no whole tokens": lambda: np.zeros((64, 3, 2, 127), np.float16),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_b58_an_unknown_layout_is_refused(name: str, make_engine: MakeEngine) -> None:
    worker = make_engine(register=False).worker
    with pytest.raises(KvConnectorConfigError, match="Remedy"):
        worker.register_kv_caches(LAYOUTS[name]())
    worker.register_kv_caches(np.zeros((64, 3, 2, 128), np.float16))


def test_b58_a_layout_that_drifts_shares_nothing(make_engine: MakeEngine) -> None:
    """Keys and values fused in the last dimension: as many bytes, and other names."""
    apart, fused = Shape(), Shape(kv_factor=1, head_size=16)
    assert np.prod(apart.pool(1)) == np.prod(fused.pool(1))
    before = make_engine(apart)
    before.serve(Request(next(_ids), TOKENS, identity="apart"))
    after = make_engine(fused)
    assert after.serve(Request(next(_ids), TOKENS, identity="fused")) == 0
    assert after.serve(Request(next(_ids), TOKENS, identity="fused")) == FULL
    assert before.serve(Request(next(_ids), TOKENS, identity="apart")) == FULL


def test_b60_a_latent_cache_is_whole_on_every_rank_or_a_miss(make_engine: MakeEngine) -> None:
    """Each rank has its own copy, so a rank that was lost while it saved leaves a miss."""
    shape = Shape(kv_factor=1)
    engine = make_engine(shape, tp=2)
    one = Request(next(_ids), TOKENS)
    matched, pages = engine.start(one)
    plan = engine.plan(one, matched, pages)
    engine.compute(one, pages, 0)
    engine.workers[0].bind_connector_meta(plan)
    engine.workers[0].wait_for_save(None)
    assert engine.workers[0].drain(20)
    engine.scheduler.request_finished(one.bound(), pages)
    assert engine.lookup(Request(next(_ids), TOKENS)) == 0
    assert engine.serve(Request(next(_ids), TOKENS)) == 0
    assert engine.serve(Request(next(_ids), TOKENS)) == FULL
    stored = [len(shards(engine, rank)) for rank in (0, 1)]
    assert stored == [FULL, FULL]
