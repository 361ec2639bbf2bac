"""Section B of the fault log through the classes: start-up guards and collisions."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.engine import POISON, Engine, Request, Shape, llm_args, make_model
from support.stores import key_of_block, memory_of, read, write

from mooncake_trtllm import (
    KvConnectorConfigError,
    KvConnectorLoadError,
    MooncakeKvCacheConnectorScheduler,
    MooncakeKvCacheConnectorWorker,
    _native,
)

MakeEngine = Callable[..., Engine]
TOKENS = [int(t) for t in np.random.default_rng(42).integers(0, 32000, 61)]
OTHER = [int(t) for t in np.random.default_rng(43).integers(0, 32000, 61)]
LEAST_BITS = 128
_ids = itertools.count(1)


@pytest.mark.parametrize("model", ["", "no/such-model", "/nowhere", "without weights"])
def test_b16_a_configuration_that_cannot_share_is_refused(
    model: str, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Never a silent run whose blocks nobody finds: start-up names what to state."""
    if model == "without weights":
        folder = make_model(tmp_path / "model", Shape())
        (folder / "model.safetensors").unlink()
        model = str(folder)
    for cls in (MooncakeKvCacheConnectorScheduler, MooncakeKvCacheConnectorWorker):
        with pytest.raises(KvConnectorConfigError, match=r"Remedy.*MC_MODEL_REVISION"):
            cls(llm_args(model, Shape()))
    environment.setenv("MC_MODEL_REVISION", "stated")
    MooncakeKvCacheConnectorWorker(llm_args(model, Shape())).close()


def test_b17_no_digest_is_cut_on_its_way(make_engine: MakeEngine) -> None:
    """At least 128 bits of keyspace and block, in keys and in plans."""
    engine = make_engine()
    one = Request(next(_ids), TOKENS)
    matched, pages = engine.start(one)
    plan = _native.decode_step_plan(engine.plan(one, matched, pages))
    assert len(plan.saves) == len(TOKENS) // 8
    planned = [block for _, block, _ in plan.saves]
    assert min(len(block) for block in (plan.keyspace, *planned)) * 8 >= LEAST_BITS
    engine.scheduler.request_finished(one.bound(), pages)
    engine.serve(Request(next(_ids), TOKENS))
    names = {tuple(key.split("/")[1:3]) for key in memory_of(engine).keys()}  # noqa: SIM118
    assert names == {(plan.keyspace.hex(), block.hex()) for block in planned}


def test_b17_a_collision_is_caught_by_what_the_block_says_of_itself(
    promise: str, make_engine: MakeEngine
) -> None:
    """Sound bytes of another prompt under a key, as if both prompts had it."""
    writer, engine = make_engine(), make_engine()
    for tokens in (TOKENS, OTHER):
        writer.serve(Request(next(_ids), tokens))
    key, other = key_of_block(engine, TOKENS, 2), key_of_block(engine, OTHER, 2)
    write(engine, key, read(engine, other))
    victim = Request(next(_ids), TOKENS)
    matched, pages = engine.start(victim)
    assert matched == (2 if promise == "staged" else len(TOKENS) // 8)
    engine.worker.bind_connector_meta(engine.plan(victim, matched, pages))
    if promise == "staged":
        engine.worker.start_load_kv(None)
    else:
        with pytest.raises(KvConnectorLoadError) as caught:
            engine.worker.start_load_kv(None)
        assert caught.value.keys == [key]
    assert (engine.pools[0].bytes[pages[2]] == POISON).all()
    assert engine.worker.stats()["rejected_layout"] + engine.worker.stats()["rejected_header"] == 1
