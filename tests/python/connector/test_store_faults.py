"""A store that hangs, answers nonsense or fails: callbacks stay bounded and total, and recover."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from support.engine import Engine, Request, step
from support.gates import Gate, gate_stores

from mooncake_trtllm import KvConnectorLoadError

MakeEngine = Callable[..., Engine]
TOKENS = [int(t) for t in np.random.default_rng(21).integers(0, 32000, 61)]
OTHER = [*TOKENS[:5], 7, *TOKENS[6:]]
FULL = 60 // 8
CALLBACK_BOUND_S = 5.0
_ids = itertools.count(1)


def request(tokens: list[int] = TOKENS, **extra: Any) -> Request:
    return Request(next(_ids), list(tokens), extra)


@pytest.fixture(name="gate")
def gate_fixture(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """The store of all engines of the test stands behind this gate."""
    gates = gate_stores(monkeypatch)
    keeper = make_engine()  # opens the store
    assert len(gates) == 1
    yield gates[0]
    gates[0].open_gate()
    keeper.close()


class Timer:
    """The longest of the calls that went through it."""

    def __init__(self) -> None:
        self.longest = 0.0

    def __call__(self, call: Callable[..., Any], *args: Any) -> Any:
        start = time.monotonic()
        try:
            return call(*args)
        finally:
            self.longest = max(self.longest, time.monotonic() - start)


@pytest.mark.parametrize("promise", ["staged", "leased"])
def test_every_callback_is_bounded_with_every_call_hung(
    promise: str, make_engine: MakeEngine, gate: Gate, environment: pytest.MonkeyPatch
) -> None:
    """Default deadlines: no callback takes 5 s, whichever of them meets the hung store first."""
    environment.setenv("MC_PROMISE", promise)
    make_engine().serve(request())
    engine = make_engine()
    promised = request()
    matched, pages = engine.start(promised)
    assert matched == FULL
    gate.close_gate()
    timed = Timer()
    scheduler, worker = engine.scheduler, engine.worker
    meta = timed(scheduler.build_connector_meta, step(engine, promised, pages, matched))
    timed(worker.bind_connector_meta, meta)
    if promise == "staged":
        timed(worker.start_load_kv, None)
        engine.verify(promised, pages[:matched])
    else:
        with pytest.raises(KvConnectorLoadError, match="Remedy") as caught:
            timed(worker.start_load_kv, None)
        assert caught.value.request_ids == [promised.request_id]
    timed(worker.wait_for_layer_load, 0, None)
    timed(worker.save_kv_layer, 0, None)
    timed(worker.wait_for_save, None)
    timed(worker.get_finished, [], [])
    in_memory = 8 * FULL if promise == "staged" else 0
    assert timed(scheduler.get_num_new_matched_tokens, request().bound(), 0) == (in_memory, False)
    saved = request(OTHER)
    assert timed(scheduler.get_num_new_matched_tokens, saved.bound(), 0) == (0, False)
    timed(scheduler.update_state_after_alloc, saved.bound(), pages)
    timed(worker.bind_connector_meta, scheduler.build_connector_meta(step(engine, saved, pages)))
    timed(worker.start_load_kv, None)
    timed(worker.wait_for_save, None)
    assert timed(scheduler.request_finished, saved.bound(), pages) is False
    timed(worker.stats)
    timed(scheduler.stats)
    timed(worker.drain, 0.1)
    assert timed.longest < CALLBACK_BOUND_S


def test_the_end_is_bounded_with_every_call_hung(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last reference may go in a callback, with hung saves and an abandoned call."""
    gates = gate_stores(monkeypatch)
    engine = make_engine()
    engine.serve(request())
    gates[0].close_gate()
    assert engine.lookup(request(OTHER)) == 0
    assert engine.run(request(OTHER)) == 0
    timed = Timer()
    timed(engine.close)
    assert timed.longest < CALLBACK_BOUND_S
    gates[0].open_gate()


def test_wait_for_save_does_not_wait(make_engine: MakeEngine, gate: Gate) -> None:
    engine = make_engine()
    one = request()
    _, pages = engine.start(one)
    engine.worker.bind_connector_meta(engine.plan(one, 0, pages))
    engine.worker.start_load_kv(None)
    gate.close_gate()
    timed = Timer()
    timed(engine.worker.wait_for_save, None)
    assert timed.longest < 0.5  # microseconds when nothing else runs
    assert gate.wait_for_waiting(1)
    assert engine.worker.stats()["save_queue_bytes"] > 0
    gate.open_gate()
    assert engine.drain()
    assert engine.worker.stats()["blocks_committed"] == FULL


def test_service_resumes_after_a_hang(
    make_engine: MakeEngine, gate: Gate, environment: pytest.MonkeyPatch
) -> None:
    environment.setenv("MC_STAGE_DEADLINE_MS", "50")
    make_engine().serve(request())
    engine = make_engine()
    gate.close_gate()
    for _ in range(10):
        assert engine.lookup(request()) == 0
    stats = engine.scheduler.stats()
    assert stats["lookups_failed"] >= 1  # The rest of the step's budget may be none.
    assert stats["lookups_failed"] + stats["lookups_over_budget"] == 10
    assert engine.worker.stats()["store_calls_abandoned"] >= 1
    gate.open_gate()
    patience = time.monotonic() + 20
    while engine.lookup(request()) == 0:  # the breaker probes the store now and then
        assert time.monotonic() < patience
        threading.Event().wait(0.05)
    assert engine.serve(request()) == FULL


@pytest.mark.parametrize("reaction", ["down", "back off", "stale", "caller bug", "miss"])
def test_b47_a_store_that_only_fails(reaction: str, make_engine: MakeEngine, gate: Gate) -> None:
    engine = make_engine()
    gate.answer_with(reaction)
    for token in range(3):
        assert engine.run(request([token, *TOKENS[1:]])) == 0
    engine.drain()
    assert make_engine().run(request([0, *TOKENS[1:]])) == 0
    stats = engine.worker.stats()
    assert stats["blocks_committed"] == 0
    assert stats["save_queue_bytes"] == 0
    gate.answer_with("ok")


@pytest.mark.parametrize("promise", ["staged", "leased"])
def test_b74_the_gil_is_free_while_a_callback_waits(
    promise: str, make_engine: MakeEngine, gate: Gate, environment: pytest.MonkeyPatch
) -> None:
    """B74: a ticking thread goes on during each kind of call that waits for a slow store."""
    environment.setenv("MC_PROMISE", promise)
    environment.setenv("MC_STAGE_DEADLINE_MS", "600")
    environment.setenv("MC_LOAD_DEADLINE_MS", "600")
    engine = make_engine()
    engine.serve(request())
    stop = threading.Event()
    ticks = [0]

    def tick() -> None:
        while not stop.wait(0.001):
            ticks[0] += 1

    ticker = threading.Thread(target=tick)
    ticker.start()
    try:
        promised = request()
        matched, pages = engine.start(promised)
        engine.worker.bind_connector_meta(engine.plan(promised, matched, pages))
        gate.close_gate()

        def load() -> None:
            with pytest.raises(KvConnectorLoadError):
                engine.worker.start_load_kv(None)

        for call in (
            lambda: engine.scheduler.get_num_new_matched_tokens(request(OTHER).bound(), 0),
            load if promise == "leased" else lambda: None,
            lambda: engine.worker.drain(0.6) or gate.exists(["x"], 0.6),
        ):
            before = ticks[0]
            start = time.monotonic()
            call()
            waited = time.monotonic() - start
            # A call that held the GIL would leave the ticker one tick at most.
            assert waited < 0.3 or ticks[0] - before > 20, (waited, ticks[0] - before)
    finally:
        stop.set()
        gate.open_gate()
        ticker.join()


@pytest.mark.usefixtures("leased")
def test_a_plan_is_not_replaced_while_it_is_loaded(make_engine: MakeEngine, gate: Gate) -> None:
    """No runtime calls from two threads. Whoever does must not make the core read a freed plan."""
    engine = make_engine()
    engine.serve(request())
    promised = request()
    matched, pages = engine.start(promised)
    engine.worker.bind_connector_meta(engine.plan(promised, matched, pages))
    gate.close_gate()
    loading = threading.Thread(target=engine.worker.start_load_kv, args=(None,))
    loading.start()
    assert gate.wait_for_waiting(1)
    binding = threading.Thread(target=engine.worker.bind_connector_meta, args=(None,))
    binding.start()
    binding.join(0.1)
    waited = binding.is_alive()
    gate.open_gate()
    loading.join()
    binding.join()
    assert waited
    engine.verify(promised, pages[:matched])
