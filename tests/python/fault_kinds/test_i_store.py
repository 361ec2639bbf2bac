"""Section I of the fault log through the classes: a store that forgets."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from support.engine import Engine, Request
from support.stores import memory_of

from mooncake_trtllm import KvConnectorLoadError

MakeEngine = Callable[..., Engine]
TOKENS = [int(t) for t in np.random.default_rng(49).integers(0, 32000, 61)]
FULL = 60 // 8
_ids = itertools.count(1)


def request() -> Request:
    return Request(next(_ids), list(TOKENS))


def forget_everything(engine: Engine) -> None:
    memory = memory_of(engine)
    memory.remove(memory.keys())
    assert memory.keys() == []


def test_b71_a_store_that_forgot_everything_is_filled_again(
    promise: str, make_engine: MakeEngine
) -> None:
    """Whoever finds the blocks gone computes and stores them again, although it has just seen them
    there; nobody promises them before, but for who has them in memory."""
    engine = make_engine()
    engine.serve(request())
    assert engine.serve(request()) == FULL
    forget_everything(engine)
    assert engine.serve(request()) == (FULL if promise == "staged" else 0)
    # Another one finds nothing where the first did not have to compute.
    assert make_engine().serve(request()) == (0 if promise == "staged" else FULL)
    assert make_engine().serve(request()) == FULL
    assert engine.serve(request()) == FULL


def test_b71_a_store_that_forgets_a_promise(promise: str, make_engine: MakeEngine) -> None:
    make_engine().serve(request())
    engine = make_engine()
    one = request()
    matched, pages = engine.start(one)
    assert matched == FULL
    engine.worker.bind_connector_meta(engine.plan(one, matched, pages))
    forget_everything(engine)
    if promise == "staged":
        engine.worker.start_load_kv(None)
        engine.verify(one, pages[:matched])
        engine.scheduler.request_finished(one.bound(), pages)
        return
    with pytest.raises(KvConnectorLoadError) as caught:
        engine.worker.start_load_kv(None)
    assert caught.value.request_ids == [one.request_id]
    engine.scheduler.request_finished(one.bound(), pages)
    assert engine.serve(request()) == 0
    assert engine.serve(request()) == FULL
