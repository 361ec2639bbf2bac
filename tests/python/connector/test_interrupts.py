"""Ctrl-C wherever it can come in a callback: who goes on loads right bytes, or hears of it."""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable
from types import CodeType, FrameType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.engine import Engine, Request, step

from mooncake_trtllm import KvConnectorLoadError
from mooncake_trtllm.scheduler import MooncakeKvCacheConnectorScheduler
from mooncake_trtllm.worker import MooncakeKvCacheConnectorWorker

MakeEngine = Callable[..., Engine]
TOKENS = [int(t) for t in np.random.default_rng(23).integers(0, 32000, 61)]
FULL = 60 // 8
EMPTY = SimpleNamespace(new_requests=[], cached_requests=[])
_ids = itertools.count(1)


def was_interrupted(callback: Callable[[], object], code: CodeType, after: int) -> bool:
    """Whether so many calls returned inside the callback, and Ctrl-C came after the last of them.

    Signals are handled when a call has returned. The callback's own return is out of its hands.
    """
    left = after

    def profile(frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal left
        if event not in ("return", "c_return") or (event == "return" and frame.f_code is code):
            return
        outer: FrameType | None = frame
        while outer is not None and outer.f_code is not code:
            outer = outer.f_back
        if outer is None:
            return
        left -= 1
        if left == 0:
            raise KeyboardInterrupt

    sys.setprofile(profile)
    try:
        callback()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return False


def new_request(engine: Engine) -> tuple[Request, list[int]]:
    """A request with pages, whose blocks are promised."""
    one = Request(next(_ids), list(TOKENS), {})
    assert engine.scheduler.get_num_new_matched_tokens(one.bound(), 0) == (FULL * 8, False)
    return one, [engine._free.pop() for _ in range(FULL + 1)]


def assert_loaded_or_told(engine: Engine, one: Request, pages: list[int], meta: Any) -> None:
    engine.worker.bind_connector_meta(meta)
    told: KvConnectorLoadError | None = None
    try:
        engine.worker.start_load_kv(None)
    except KvConnectorLoadError as error:
        told = error
    if told is None:
        engine.verify(one, pages[:FULL])
    else:  # Without numbers: all requests of the step.
        assert told.request_ids in ([], [one.request_id])
    engine.worker.wait_for_save(None)
    engine.scheduler.request_finished(one.bound(), pages)
    for pool in engine.pools:
        pool.bytes[pages] = 0xEE
    engine._free.extend(pages)


def test_ctrl_c_while_pages_are_taken(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.serve(Request(next(_ids), list(TOKENS), {}))
    code = MooncakeKvCacheConnectorScheduler._allocated.__code__
    for after in itertools.count(1):
        one, pages = new_request(engine)
        allocate = functools.partial(engine.scheduler.update_state_after_alloc, one.bound(), pages)
        came = was_interrupted(allocate, code, after)
        meta = engine.scheduler.build_connector_meta(step(engine, one, pages, FULL))
        assert_loaded_or_told(engine, one, pages, meta)
        if not came:
            break
    assert after > 5


def plan(engine: Engine, planned: Any, into: list[Any]) -> None:
    into.append(engine.scheduler.build_connector_meta(planned))


def test_ctrl_c_while_a_step_is_planned(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.serve(Request(next(_ids), list(TOKENS), {}))
    code = MooncakeKvCacheConnectorScheduler.build_connector_meta.__code__
    for after in itertools.count(1):
        one, pages = new_request(engine)
        engine.scheduler.update_state_after_alloc(one.bound(), pages)
        planned = step(engine, one, pages, FULL)
        metas: list[Any] = []
        came = was_interrupted(functools.partial(plan, engine, planned, metas), code, after)
        if came:
            metas.append(engine.scheduler.build_connector_meta(EMPTY))
        assert_loaded_or_told(engine, one, pages, metas[0])
        if not came:
            break
    assert after > 20


@pytest.mark.parametrize("where", ["bind_connector_meta", "start_load_kv"])
def test_ctrl_c_while_a_step_is_loaded(where: str, make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.serve(Request(next(_ids), list(TOKENS), {}))
    code = getattr(MooncakeKvCacheConnectorWorker, where).__code__
    for after in itertools.count(1):
        one, pages = new_request(engine)
        engine.scheduler.update_state_after_alloc(one.bound(), pages)
        meta = engine.scheduler.build_connector_meta(step(engine, one, pages, FULL))
        bind = functools.partial(engine.worker.bind_connector_meta, meta)
        load = functools.partial(engine.worker.start_load_kv, None)
        if where == "bind_connector_meta":
            came = was_interrupted(bind, code, after)
        else:
            bind()
            came = was_interrupted(load, code, after)
        if came:
            meta = engine.scheduler.build_connector_meta(EMPTY)
        assert_loaded_or_told(engine, one, pages, meta)
        if not came:
            break
    assert after > 3
    assert engine.serve(Request(next(_ids), list(TOKENS), {})) == FULL
