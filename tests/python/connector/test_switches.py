"""MC_DISABLE_FILE and MC_KEY_EPOCH: what an operator turns while engines run, or between runs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.engine import Engine, Request
from support.stores import memory_of, shards

MakeEngine = Callable[..., Engine]
TOKENS = [int(t) for t in np.random.default_rng(53).integers(0, 32000, 61)]
FULL = 60 // 8
_ids = itertools.count(1)


def request(tokens: list[int] = TOKENS) -> Request:
    return Request(next(_ids), list(tokens))


def test_mc_disable_file_toggled_while_it_runs(
    make_engine: MakeEngine, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """MC_DISABLE_FILE: while it is there, neither lookups nor saves; promised loads are kept."""
    switch = tmp_path / "off"
    environment.setenv("MC_DISABLE_FILE", str(switch))
    engine = make_engine()
    engine.serve(request(TOKENS[:33]))
    started = request(TOKENS)
    matched, pages = engine.start(started)
    assert matched == 4
    switch.touch()
    meta = engine.plan(started, matched, pages)
    engine.worker.bind_connector_meta(meta)
    engine.worker.start_load_kv(None)
    engine.verify(started, pages[:matched])
    engine.compute(started, pages, matched)
    engine.worker.wait_for_save(None)
    engine.scheduler.request_finished(started.bound(), pages)
    assert engine.serve(request(TOKENS)) == 0
    assert engine.worker.stats()["blocks_saved"] == 4
    switch.unlink()
    assert engine.serve(request(TOKENS)) == 4
    assert engine.serve(request(TOKENS)) == FULL


@pytest.mark.parametrize("when", ["before the allocation", "before the plan", "before the load"])
def test_mc_disable_file_keeps_what_was_promised(
    when: str, make_engine: MakeEngine, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The tokens of a promise count as computed, so its loads must come, on every rank."""
    switch = tmp_path / "off"
    environment.setenv("MC_DISABLE_FILE", str(switch))
    engine = make_engine(tp=2)
    engine.serve(request())
    stored = len(shards(engine))
    longer = request([*TOKENS, *range(100, 140)])
    allocate = engine.scheduler.update_state_after_alloc
    if when == "before the allocation":

        def touch_first(*arguments: object) -> None:
            switch.touch()
            allocate(*arguments)

        environment.setattr(engine.scheduler, "update_state_after_alloc", touch_first)
    matched, pages = engine.start(longer)
    assert matched == FULL
    if when == "before the plan":
        switch.touch()
    meta = engine.plan(longer, matched, pages)
    switch.touch()
    for worker in engine.workers:
        worker.bind_connector_meta(meta)
        worker.start_load_kv(None)
    engine.verify(longer, pages[:matched])
    engine.compute(longer, pages, matched)
    for worker in engine.workers:
        worker.wait_for_save(None)
    assert engine.drain()
    # A save that was planned while the switch was off is taken: it is part of that step.
    assert (len(shards(engine)) > stored) == (when == "before the load")
    assert len(shards(engine, 0)) == len(shards(engine, 1))


def test_mc_disable_file_costs_no_engine_anything_when_it_goes(
    make_engine: MakeEngine, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It may be there from the start, come and go, and be a folder."""
    switch = tmp_path / "off"
    switch.mkdir()
    environment.setenv("MC_DISABLE_FILE", str(switch))
    engine = make_engine()
    assert [engine.serve(request()) for _ in range(2)] == [0, 0]
    assert memory_of(engine).keys() == []
    assert engine.scheduler.stats()["queries_bypassed_disabled"] == 2
    switch.rmdir()
    assert [engine.serve(request()) for _ in range(2)] == [0, FULL]
    assert engine.scheduler.stats()["queries_bypassed_disabled"] == 2


def test_mc_key_epoch_makes_older_keys_unreachable(
    make_engine: MakeEngine, environment: pytest.MonkeyPatch
) -> None:
    """Equal epochs share, others do not meet, and what is stored under each stays apart."""
    first, same = make_engine(), make_engine()
    first.serve(request())
    assert same.serve(request()) == FULL
    environment.setenv("MC_KEY_EPOCH", "1")
    raised = make_engine()
    assert [raised.serve(request()) for _ in range(2)] == [0, FULL]
    assert first.serve(request()) == FULL
    keyspaces = {key.split("/")[1] for key in shards(first)}
    assert len(keyspaces) == 2
    environment.setenv("MC_KEY_EPOCH", "2")
    assert make_engine().lookup(request()) == 0
    environment.setenv("MC_KEY_EPOCH", "0")
    assert make_engine().lookup(request()) == FULL
