"""Section G of the fault log through the classes: layouts, types and sizes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.engine import Engine, HostTensor, Request, Shape, make_model
from support.stores import memory_of

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
    engine.scheduler.wait_for_initialization()
    engine.meet_ranks()
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


LATENT = Shape(heads=1, head_size=24, kv_factor=1, replicated=True)


@pytest.fixture(name="latent_model")
def latent_model_fixture(tmp_path: Path) -> Path:
    """A model whose cache is one latent per token."""
    return make_model(tmp_path / "latent", LATENT, kv_lora_rank=16, qk_rope_head_dim=8)


@pytest.mark.parametrize("by_layer", [False, True], ids=["blocks", "layers"])
def test_b60_a_latent_block_is_stored_once_for_all_ranks(
    by_layer: bool, make_engine: MakeEngine, latent_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MC_LAYER_GRANULARITY", str(int(by_layer)))
    engine = make_engine(LATENT, model=latent_model, tp=8)
    prompts = [[first, *TOKENS[1:]] for first in range(20)]
    for tokens in prompts:
        assert engine.serve(Request(next(_ids), tokens)) == 0
        assert engine.serve(Request(next(_ids), tokens)) == FULL  # verified on every rank
    objects = len(memory_of(engine).keys())
    per_block = LATENT.layers + 2 if by_layer else 2
    assert objects == 20 * FULL * per_block
    saved = [worker.stats()["blocks_saved"] for worker in engine.workers]
    assert sum(saved) == 20 * FULL
    assert min(saved) > 0


def test_b60_a_writer_that_is_lost_while_it_saves_leaves_a_miss(
    make_engine: MakeEngine, latent_model: Path
) -> None:
    engine = make_engine(LATENT, model=latent_model, tp=8)
    one = Request(next(_ids), TOKENS)
    matched, pages = engine.start(one)
    plan = engine.plan(one, matched, pages)
    engine.compute(one, pages, 0)
    lost = engine.workers[1:]  # and with them what they were to store
    engine.workers[0].bind_connector_meta(plan)
    engine.workers[0].wait_for_save(None)
    assert engine.drain()
    engine.scheduler.request_finished(one.bound(), pages)
    stored = sum(worker.stats()["blocks_saved"] for worker in engine.workers)
    assert 0 <= stored < FULL
    assert [worker.stats()["blocks_saved"] for worker in lost] == [0] * 7
    assert engine.lookup(Request(next(_ids), TOKENS)) <= stored
    engine.serve(Request(next(_ids), TOKENS))
    assert engine.serve(Request(next(_ids), TOKENS)) == FULL


def test_b60_a_cache_with_heads_has_a_shard_on_every_rank(make_engine: MakeEngine) -> None:
    """Also a pool of one factor whose model does not say that it is a latent."""
    for shape in (Shape(heads=8), Shape(heads=8, kv_factor=1)):
        engine = make_engine(shape, tp=8)
        tokens = [shape.kv_factor, *TOKENS[1:]]
        assert engine.serve(Request(next(_ids), tokens)) == 0
        assert [worker.stats()["blocks_saved"] for worker in engine.workers] == [FULL] * 8
        assert engine.serve(Request(next(_ids), tokens)) == FULL
