"""Sections J and K of the fault log through the classes: steps, queues and memory."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support import soak
from support.engine import POISON, Engine, Request, Shape
from support.gates import Gate, fault_stores, gate_stores

MakeEngine = Callable[..., Engine]
BLOCK = 8
TOKENS = [int(t) for t in np.random.default_rng(71).integers(0, 32000, 61)]
FULL = 60 // BLOCK
PATIENCE_S = 20.0
BUSY_S = 0.5
"""What a busy machine may add to a callback that does not wait."""
_ids = itertools.count(1)
only_staged = pytest.mark.parametrize("promise", ["staged"], indirect=True)


def request(tokens: list[int] = TOKENS) -> Request:
    return Request(next(_ids), list(tokens))


def prompts(count: int) -> list[list[int]]:
    """So many, of which no two share a block."""
    return [[40000 + first, *TOKENS[1:]] for first in range(count)]


@pytest.fixture(name="gate")
def gate_fixture(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """The store of all engines of the test stands behind this gate."""
    gates = gate_stores(monkeypatch)
    keeper = make_engine()
    yield gates[0]
    gates[0].open_gate()
    keeper.close()


def timed(call: Callable[..., Any], *args: Any) -> float:
    begin = time.monotonic()
    call(*args)
    return time.monotonic() - begin


@only_staged
def test_b78_promises_that_hold_all_memory_leave_the_others_to_compute(
    make_engine: MakeEngine, environment: pytest.MonkeyPatch
) -> None:
    """No request waits for another: who finds no room is computed, and hits when there is some."""
    texts = prompts(8)
    writer = make_engine()
    for tokens in texts:
        writer.serve(request(tokens))
    environment.setenv("MC_STAGING_BYTES", "96KB")
    engine = make_engine()
    holding = [request(tokens) for tokens in texts]
    promised = [engine.start(one)[0] for one in holding[:6]]  # and never in a batch
    assert promised[0] == FULL
    assert promised[-1] < FULL
    assert engine.scheduler.stats()["blocks_missed_no_room"] > 0
    begin = time.monotonic()
    assert engine.serve(request(texts[7])) < FULL
    assert time.monotonic() - begin < PATIENCE_S / 2
    for one in holding:
        engine.scheduler.request_finished(one.bound(), [])
    engine.run(request([1, 2, 3]))  # its plan tells the ranks
    assert engine.worker.stats()["tier_blocks_held"] == 0
    assert engine.serve(request(texts[6])) == FULL


@only_staged
def test_b79_a_rank_that_is_gone_is_not_waited_for(make_engine: MakeEngine) -> None:
    """Ranks have no collective of the connector to leave: nothing is promised without all."""
    make_engine(Shape(heads=4), tp=4).serve(request())
    engine = make_engine(Shape(heads=4), tp=4)
    assert engine.lookup(request()) == FULL
    engine.workers[2].close()
    deadline = time.monotonic() + PATIENCE_S
    while engine.scheduler.stats()["ranks_connected"] == 3:
        assert time.monotonic() < deadline
        threading.Event().wait(0.001)
    scheduler = engine.scheduler
    one = request()
    assert timed(scheduler.get_num_new_matched_tokens, one.bound(), 0) < BUSY_S
    assert engine.lookup(one) == 0
    assert scheduler.stats()["blocks_missed_rank_unavailable"] >= FULL


def test_b79_what_has_finished_is_the_same_on_all_ranks(make_engine: MakeEngine) -> None:
    """Whether or not a rank's saves are done, so that no rank's answer makes others wait."""
    engine = make_engine(tp=2)
    one = request()
    matched, pages = engine.start(one)
    plan = engine.plan(one, matched, pages)
    engine.compute(one, pages, matched)
    for worker in engine.workers:
        worker.bind_connector_meta(plan)
        worker.wait_for_save(None)
    assert engine.scheduler.request_finished(one.bound(), pages) is False
    for worker in engine.workers:
        assert worker.get_finished([one.request_id], []) == ([one.request_id], [])


def test_b82_a_store_that_never_answers_costs_the_budget_of_a_step(
    make_engine: MakeEngine, gate: Gate, environment: pytest.MonkeyPatch
) -> None:
    make_engine().serve(request())
    budget = 1.5
    environment.setenv("MC_STAGE_DEADLINE_MS", str(int(1000 * budget)))
    engine = make_engine()
    gate.close_gate()
    waits = [timed(lambda: engine.lookup(request())) for _ in range(5)]
    assert budget / 2 < sum(waits) < budget + BUSY_S, "of the first two alone it would be twice"
    gate.open_gate()
    deadline = time.monotonic() + PATIENCE_S
    while engine.lookup(request()) == 0:  # the breaker asks the store now and then
        assert time.monotonic() < deadline
        threading.Event().wait(0.15)  # silence, which ends a step
    assert engine.run(request()) == FULL


@pytest.mark.parametrize("tp", [1, 2])
def test_b83_requests_of_every_kind_leave_nothing(tp: int, promise: str, tmp_path: Path) -> None:
    """The short form of `make soak-test`."""
    outcome = soak.run(tmp_path, requests=800, seed=20261130, tp=tp, promise=promise)
    assert not outcome.broken, outcome.text()
    assert len(outcome.kinds) == soak.KINDS
    assert outcome.hits_by_cycle[1] > 40
    assert outcome.blocks_verified > 500


def test_b85_a_store_that_refuses_every_put_ends_nothing(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = fault_stores(monkeypatch, op="put", reaction="back off", chance=1_000_000)
    engine = make_engine()
    for tokens in prompts(100):
        assert engine.serve(request(tokens)) == 0
    stats = engine.worker.stats()
    assert 0 < faults[0].fired() < 100 * FULL, "it is left alone for a while"
    assert stats["saves_dropped"] + stats["saves_failed"] == 100 * FULL
    assert (stats["blocks_committed"], stats["save_queue_bytes"]) == (0, 0)
    # Nothing is promised but what is in memory, whose bytes are compared.
    hits = [engine.serve(request(tokens)) for tokens in prompts(100)]
    assert sum(hits) == engine.worker.stats()["tier_hits"]
    assert [make_engine().lookup(request(tokens)) for tokens in prompts(3)] == [0] * 3


def test_b86_a_put_that_hangs_does_not_hold_up_a_step(
    make_engine: MakeEngine, gate: Gate, environment: pytest.MonkeyPatch
) -> None:
    environment.setenv("MC_STAGING_BYTES", "256KB")
    environment.setenv("MC_SAVE_QUEUE_BYTES", "64KB")
    engine = make_engine(Shape(blocks=400))
    started = [(one, *engine.start(one)) for one in map(request, prompts(40))]
    scheduler, worker = engine.scheduler, engine.worker
    gate.close_gate()
    longest = 0.0
    for one, matched, pages in started:
        assert matched == 0
        worker.bind_connector_meta(engine.plan(one, 0, pages))
        engine.compute(one, pages, 0)
        longest = max(longest, timed(worker.wait_for_save, None))
        assert worker.stats()["save_queue_bytes"] <= 64 << 10
        scheduler.request_finished(one.bound(), pages)
        for pool in engine.pools:
            pool.bytes[pages] = POISON
    assert longest < BUSY_S
    gate.open_gate()
    assert engine.drain()
    stats = worker.stats()
    assert stats["saves_dropped"] > 0
    assert stats["blocks_saved"] + stats["saves_dropped"] == 40 * FULL
    assert engine.serve(request(prompts(1)[0])) == FULL  # the newest were dropped, not this one


@only_staged
def test_b87_loads_of_a_step_touch_no_store(make_engine: MakeEngine, gate: Gate) -> None:
    """64 requests of one prompt each, all promised in one step; the store hangs from then on."""
    shape = Shape(blocks=600)
    make_engine(shape).serve(request())
    engine = make_engine(shape)
    requests = [request() for _ in range(64)]
    started = [engine.start(one) for one in requests]
    assert {matched for matched, _ in started} == {FULL}
    gate.close_gate()
    gets = gate.count("get")
    plan = engine.scheduler.build_connector_meta(
        SimpleNamespace(new_requests=[], cached_requests=[])
    )
    engine.worker.bind_connector_meta(plan)
    assert timed(engine.worker.start_load_kv, None) < BUSY_S
    for one, (matched, pages) in zip(requests, started, strict=True):
        engine.verify(one, pages[:matched])
        engine.scheduler.request_finished(one.bound(), pages)
    assert gate.count("get") == gets
    assert engine.worker.stats()["tier_hits"] == 64 * FULL
