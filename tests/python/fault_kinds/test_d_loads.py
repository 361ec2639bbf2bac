"""Sections D to F of the fault log through the classes: what is promised, and then not there."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.engine import POISON, Engine, Request, Shape, llm_args
from support.gates import Gate, fault_stores, gate_stores
from support.stores import key_of_block, memory_of, shards

from mooncake_trtllm import (
    KvConnectorConfigError,
    KvConnectorLoadError,
    MooncakeKvCacheConnectorWorker,
    _native,
)

MakeEngine = Callable[..., Engine]
TOKENS = [int(t) for t in np.random.default_rng(45).integers(0, 32000, 61)]
OTHER = [int(t) for t in np.random.default_rng(46).integers(0, 32000, 61)]
FULL = 60 // 8
CALLBACK_BOUND_S = 5.0
PATIENCE_S = 20.0
_ids = itertools.count(1)
only_leased = pytest.mark.parametrize("promise", ["leased"], indirect=True)
only_staged = pytest.mark.parametrize("promise", ["staged"], indirect=True)


def request(tokens: list[int] = TOKENS) -> Request:
    return Request(next(_ids), list(tokens))


def lose(engine: Engine, key: str) -> None:
    assert memory_of(engine).remove([key]) == ["ok"]


@only_leased
@pytest.mark.parametrize("block", [0, 3, 6])
@pytest.mark.parametrize("late", [False, True], ids=["before the allocation", "before the load"])
def test_b25_an_eviction_after_the_lookup_fails_its_request_alone(
    late: bool, block: int, make_engine: MakeEngine
) -> None:
    engine = make_engine()
    engine.serve(request())
    engine.serve(request(OTHER))
    victim, sound = request(), request(OTHER)
    victim_pages = list(range(8))
    tokens, _ = engine.scheduler.get_num_new_matched_tokens(victim.bound(), 0)
    assert tokens == 8 * FULL
    key = key_of_block(engine, TOKENS, block)
    if not late:
        lose(engine, key)
    engine.scheduler.update_state_after_alloc(victim.bound(), victim_pages)
    matched, pages = engine.start(sound)
    plan = engine.plan(victim, FULL, victim_pages)
    if late:
        lose(engine, key)
    engine.worker.bind_connector_meta(plan)
    with pytest.raises(KvConnectorLoadError) as caught:
        engine.worker.start_load_kv(None)
    assert caught.value.request_ids == [victim.request_id]
    assert caught.value.keys == [key]
    engine.verify(sound, pages[:matched])
    assert (engine.pools[0].bytes[victim_pages[block]] == POISON).all()
    for one in (victim, sound):
        engine.scheduler.request_finished(one.bound(), [])
    assert engine.serve(request()) == block
    assert engine.serve(request()) == FULL


@only_staged
@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("block", [0, 3, 6])
@pytest.mark.parametrize("late", [False, True], ids=["before the allocation", "before the load"])
def test_b25_an_eviction_after_the_promise_changes_nothing(
    late: bool, block: int, tp: int, make_engine: MakeEngine
) -> None:
    make_engine(tp=tp).serve(request())
    engine = make_engine(tp=tp)
    one, pages = request(), list(range(8))
    tokens, _ = engine.scheduler.get_num_new_matched_tokens(one.bound(), 0)
    assert tokens == 8 * FULL
    key = key_of_block(engine, TOKENS, block, rank=tp - 1)
    if not late:
        lose(engine, key)
    engine.scheduler.update_state_after_alloc(one.bound(), pages)
    plan = engine.plan(one, FULL, pages)
    if late:
        lose(engine, key)
    for worker in engine.workers:
        worker.bind_connector_meta(plan)
        worker.start_load_kv(None)
    engine.verify(one, pages[:FULL])
    engine.scheduler.request_finished(one.bound(), pages)
    assert [worker.stats()["tier_misses"] for worker in engine.workers] == [0] * tp
    other = make_engine(tp=tp)  # has nothing in memory
    assert other.serve(request()) == block
    assert other.serve(request()) == FULL


@only_staged
@pytest.mark.parametrize("block", [0, 3, 6])
def test_b25_an_eviction_while_it_is_staged_ends_the_promise_there(
    block: int, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    gates = gate_stores(monkeypatch)
    make_engine().serve(request())
    engine, [gate] = make_engine(), gates
    key = key_of_block(engine, TOKENS, block)
    gets, calls = gate.count("get"), count_calls(gate)
    gate.close_gate()
    one = request()
    started: list[tuple[int, list[int]]] = []
    asking = threading.Thread(target=lambda: started.append(engine.start(one)))
    asking.start()
    wait_for(lambda: count_calls(gate) > calls)
    while gate.count("get") == gets:  # its probes pass, the get of its blocks stays
        calls = count_calls(gate)
        gate.let_pass(1)
        wait_for(lambda: count_calls(gate) > calls)  # noqa: B023 - called at once
    lose(engine, key)
    gate.open_gate()
    asking.join()
    [(matched, pages)] = started
    assert matched == block
    engine.worker.bind_connector_meta(engine.plan(one, matched, pages))
    engine.worker.start_load_kv(None)
    engine.verify(one, pages[:matched])
    engine.scheduler.request_finished(one.bound(), pages)
    assert "shard lost" in engine.scheduler.explain()[-1]


def count_calls(gate: Gate) -> int:
    return gate.count("exists") + gate.count("get")


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.001)


class Timer:
    """Calls through it are bounded."""

    def __call__(self, call: Callable[..., Any], *args: Any) -> Any:
        begin = time.monotonic()
        try:
            return call(*args)
        finally:
            assert time.monotonic() - begin < CALLBACK_BOUND_S


@pytest.fixture(name="gate")
def gate_fixture(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> Any:
    """All engines of the test share a store behind this gate, also while none of them lives."""
    gates = gate_stores(monkeypatch)
    keeper = make_engine()
    yield gates[0]
    gates[0].answer_with("ok")
    gates[0].open_gate()
    keeper.close()


def break_store(gate: Gate, how: str) -> None:
    if how == "hangs":
        gate.close_gate()
    else:
        gate.answer_with("down")


def mend_store(gate: Gate) -> None:
    gate.answer_with("ok")
    gate.open_gate()


@pytest.mark.parametrize("how", ["fails", "hangs"])
def test_b26_a_store_that_dies_after_the_promise(
    how: str, promise: str, make_engine: MakeEngine, gate: Gate
) -> None:
    """Staged: nothing is seen of it. Leased: the request fails in time, never on wrong bytes."""
    make_engine().serve(request())
    engine = make_engine()
    timed = Timer()
    one = request()
    matched, pages = engine.start(one)
    assert matched == FULL
    plan = engine.plan(one, matched, pages)
    break_store(gate, how)
    engine.worker.bind_connector_meta(plan)
    if promise == "staged":
        timed(engine.worker.start_load_kv, None)
        engine.verify(one, pages[:matched])
    else:
        with pytest.raises(KvConnectorLoadError) as caught:
            timed(engine.worker.start_load_kv, None)
        assert caught.value.request_ids == [one.request_id]
        assert (engine.pools[0].bytes[pages] == POISON).all()
    engine.scheduler.request_finished(one.bound(), pages)
    engine._free.extend(pages)
    # What is in memory is served all the same, as long as it is there; the rest is computed.
    assert timed(engine.run, request()) == (FULL if promise == "staged" else 0)
    assert timed(engine.run, request(OTHER)) == 0
    mend_store(gate)
    late = make_engine()
    deadline = time.monotonic() + PATIENCE_S
    while late.run(request()) == 0:  # the breaker of the shared store asks it now and then
        assert time.monotonic() < deadline
        threading.Event().wait(0.05)
    assert engine.run(request()) == FULL


@only_staged
def test_b27_rare_misses_are_never_seen(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all gets one in a hundred misses, though the probe has just found its block.

    Nobody sees it: what was staged is loaded, the rest is computed.
    """
    monkeypatch.setenv("MC_STAGING_BYTES", "96KB")  # most prompts have to be fetched
    faults = fault_stores(monkeypatch, op="get", reaction="miss", chance=10_000)
    engine = make_engine()
    prompts = [[first, *TOKENS[1:]] for first in range(12)]
    for tokens in prompts:
        assert engine.serve(request(tokens)) == 0
    draw = np.random.default_rng(47)
    short = computed = 0
    for _ in range(400):
        hit = engine.serve(request(prompts[int(draw.integers(len(prompts)))]))
        short += hit < FULL
        computed += FULL - hit
    stats, missed = engine.worker.stats(), faults[0].fired()
    assert 0 < short <= missed
    assert stats["stage_short_missing"] == missed
    assert short <= computed <= missed * FULL
    assert engine.scheduler.stats()["blocks_missed_shard_lost"] == computed
    assert (stats["tier_misses"], stats["loads_missing"]) == (0, 0)


@only_leased
def test_b27_rare_misses_fail_as_often_as_they_happen(make_engine: MakeEngine) -> None:
    """In this mode a miss between lookup and load is an error, once: the retry always succeeds."""
    rng = np.random.default_rng(47)
    engine = make_engine()
    engine.serve(request())
    lost = failed = 0
    for _ in range(400):
        one = request()
        matched, pages = engine.start(one)
        assert matched == FULL
        plan = engine.plan(one, matched, pages)
        evict = rng.random() < 0.02
        if evict:
            lose(engine, shards(engine)[int(rng.integers(FULL))])
            lost += 1
        engine.worker.bind_connector_meta(plan)
        try:
            engine.worker.start_load_kv(None)
        except KvConnectorLoadError as error:
            failed += error.request_ids == [one.request_id]
        else:
            engine.verify(one, pages[:matched])
        engine.scheduler.request_finished(one.bound(), pages)
        engine.pools[0].bytes[pages] = POISON
        engine._free.extend(pages)
        if evict:
            engine.serve(request())  # the retry computes and stores it anew
    assert failed == lost > 0
    assert engine.worker.stats()["loads_missing"] == lost


@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize("block", [0, 3, 6])
def test_b34_a_shard_that_one_rank_lost_ends_the_promise_on_all(
    block: int, rank: int, make_engine: MakeEngine
) -> None:
    shape = Shape(heads=4)
    make_engine(shape, tp=4).serve(request())
    engine = make_engine(shape, tp=4)
    lose(engine, key_of_block(engine, TOKENS, block, rank=rank))
    assert engine.serve(request()) == block  # the bytes of all ranks are compared
    assert make_engine(shape, tp=4).serve(request()) == FULL


@only_staged
def test_b34_what_a_rank_has_in_memory_is_of_no_use_without_the_others(
    make_engine: MakeEngine,
) -> None:
    """Rank 0 has all in memory, rank 1 nothing, and the store has lost a shard of it."""
    shape = Shape(heads=4)
    engine = make_engine(shape, tp=2)
    one = request()
    matched, pages = engine.start(one)
    engine.compute(one, pages, matched)
    plan = engine.plan(one, matched, pages)
    for worker in engine.workers:
        worker.bind_connector_meta(plan)
    engine.worker.wait_for_save(None)  # rank 1 never comes to it
    assert engine.drain()
    engine.scheduler.request_finished(one.bound(), pages)
    assert engine.worker.stats()["tier_blocks"] >= FULL
    assert engine.serve(request()) == 0
    assert engine.serve(request()) == FULL


@pytest.mark.parametrize(
    "changes",
    [
        {"cache": {"dtype": "nvfp4"}},
        {"quant_config": SimpleNamespace(kv_cache_quant_algo="NVFP4")},
        {"sparse_attention_config": SimpleNamespace()},
    ],
    ids=["fp4 scales", "fp4 checkpoint", "index keys"],
)
def test_b36_caches_with_a_second_buffer_are_refused(
    changes: dict[str, Any], make_engine: MakeEngine
) -> None:
    """The runtime registers one pool: what lies in another one could not come back with it."""
    args = make_engine().args
    with pytest.raises(KvConnectorConfigError, match="Remedy"):
        MooncakeKvCacheConnectorWorker(llm_args(args.model, Shape(), **changes))


def test_b36_a_layout_of_several_pools_is_refused(make_engine: MakeEngine) -> None:
    worker = make_engine(register=False).worker
    with pytest.raises(KvConnectorConfigError, match="2 layer groups"):
        worker.register_kv_cache_layout(SimpleNamespace(groups=[object(), object()]))


def test_b37_a_block_is_announced_after_its_last_shard(make_engine: MakeEngine) -> None:
    engine = make_engine(tp=2)
    one = request()
    matched, pages = engine.start(one)
    plan = engine.plan(one, matched, pages)
    engine.compute(one, pages, 0)
    for rank, worker in enumerate(engine.workers):
        assert engine.lookup(request()) == 0
        worker.bind_connector_meta(plan)
        worker.start_load_kv(None)
        worker.wait_for_save(None)
        assert worker.drain(20)
        assert len(shards(engine, rank)) == FULL
    assert engine.serve(request()) == FULL


@pytest.mark.parametrize("when", ["before the allocation", "before the plan", "before the load"])
def test_b42_a_request_that_ends_is_not_loaded_any_more(when: str, make_engine: MakeEngine) -> None:
    """Loads are done when start_load_kv() returns: none is in flight when a request ends."""
    engine = make_engine()
    engine.serve(request())
    one = request()
    bound, pages = one.bound(), list(range(8))
    assert engine.scheduler.get_num_new_matched_tokens(bound, 0) == (8 * FULL, False)
    if when == "before the allocation":
        engine.scheduler.request_finished(bound, [])
    engine.scheduler.update_state_after_alloc(bound, pages)
    if when == "before the plan":
        assert engine.scheduler.request_finished(bound, pages) is False
    plan = engine.plan(one, FULL, pages)
    ended = when != "before the load"
    assert bool(_native.decode_step_plan(plan).loads) is not ended
    engine.worker.bind_connector_meta(plan)
    if not ended:
        assert engine.scheduler.request_finished(bound, pages) is False
    engine.worker.start_load_kv(None)
    assert (engine.pools[0].bytes == POISON).all() == ended
    engine.pools[0].bytes[:] = POISON
    engine.worker.start_load_kv(None)
    assert (engine.pools[0].bytes == POISON).all(), "no write after the return"
    assert engine.scheduler.stats()["requests_tracked"] == 0


HOOKS: dict[str, list[int]] = {
    "never": [],
    "some": [1],
    "backwards": [2, 1, 0],
    "twice": [0, 0, 1, 1, 2, 2],
    "unknown layers": [-1, 99],
}


@pytest.mark.parametrize("name", HOOKS)
def test_b55_nothing_depends_on_layer_hooks(name: str, make_engine: MakeEngine) -> None:
    """Loads are in place before the first hook, and each block is saved once."""
    engine = make_engine()
    engine.serve(request(TOKENS[:33]))
    one = request()
    matched, pages = engine.start(one)
    assert matched == 4
    engine.worker.bind_connector_meta(engine.plan(one, matched, pages))
    engine.worker.start_load_kv(None)
    engine.verify(one, pages[:matched])
    engine.compute(one, pages, matched)
    for layer in HOOKS[name]:
        engine.worker.wait_for_layer_load(layer, None)
        engine.worker.save_kv_layer(layer, None)
    engine.worker.wait_for_save(None)
    assert engine.drain()
    assert engine.worker.stats()["blocks_saved"] == FULL
    engine.scheduler.request_finished(one.bound(), pages)
    assert engine.serve(request()) == FULL
