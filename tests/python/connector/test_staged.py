"""Staged promises through the classes: what is promised is there, whatever becomes of the store."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.engine import Engine, Request, Shape
from support.gates import Gate, gate_stores
from support.stores import key_of_block, memory_of

from mooncake_trtllm import KvConnectorError

MakeEngine = Callable[..., Engine]
TOKENS = [int(t) for t in np.random.default_rng(61).integers(0, 32000, 61)]
OTHER = [int(t) for t in np.random.default_rng(62).integers(0, 32000, 61)]
FULL = 60 // 8
PATIENCE_S = 20.0
CALLBACK_BOUND_S = 5.0
_ids = itertools.count(1)


def request(tokens: list[int] = TOKENS, **extra: Any) -> Request:
    return Request(next(_ids), list(tokens), extra)


def forget_all(engine: Engine) -> None:
    """The store loses everything."""
    memory = memory_of(engine)
    assert memory.remove(list(memory.keys()))


def finish(engine: Engine, one: Request, pages: list[int], matched: int) -> None:
    """The rest of a step whose plan was made before: load, compare, end."""
    engine.verify(one, pages[:matched])
    engine.scheduler.request_finished(one.bound(), pages)
    engine._free.extend(pages)


@pytest.mark.parametrize("tp", [1, 2])
def test_all_ranks_are_awaited_until_there_is_a_scheduler_to_meet(
    tp: int, make_engine: MakeEngine, environment: pytest.MonkeyPatch
) -> None:
    """Whoever waits for 0 before it sends requests must not begin before anything is promised."""
    engine = make_engine(tp=tp, register=False)
    assert engine.scheduler.stats()["ranks_awaited"] == tp
    assert engine.lookup(request()) == 0
    assert engine.scheduler.stats()["ranks_awaited"] == tp
    for worker, pool in zip(engine.workers, engine.pools, strict=True):
        worker.register_kv_caches(pool)
    assert engine.scheduler.stats()["ranks_awaited"] == tp, "nobody has asked for it yet"
    engine.scheduler.wait_for_initialization()
    assert engine.scheduler.stats()["ranks_awaited"] == tp - 1
    engine.meet_ranks()
    engine.scheduler.close()
    assert engine.scheduler.stats()["ranks_awaited"] == 0
    environment.setenv("MC_PROMISE", "leased")
    assert make_engine(tp=tp, register=False).scheduler.stats()["ranks_awaited"] == 0


@pytest.mark.parametrize("tp", [1, 2])
def test_blocks_come_back_bit_exact(tp: int, make_engine: MakeEngine) -> None:
    writer = make_engine(tp=tp)
    assert writer.serve(request()) == 0
    assert writer.serve(request()) == FULL  # from its own memory: what it saved
    reader = make_engine(tp=tp)
    assert reader.serve(request()) == FULL  # fetched
    assert reader.serve(request()) == FULL  # kept
    stats = [worker.stats() for worker in reader.workers]
    assert [one["blocks_staged"] for one in stats] == [FULL] * tp
    assert [one["tier_hits"] for one in stats] == [2 * FULL] * tp
    assert [one["tier_misses"] for one in stats] == [0] * tp


def test_until_all_ranks_are_connected_nothing_is_promised(make_engine: MakeEngine) -> None:
    make_engine(tp=2).serve(request())
    late = make_engine(tp=2, warm_up=False)
    assert late.lookup(request()) == 0
    assert late.scheduler.stats()["blocks_missed_rank_unavailable"] == FULL
    late.meet_ranks()
    assert late.lookup(request()) == FULL


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("when", ["before the allocation", "before the plan", "before the load"])
def test_b25_b26_no_loss_after_a_promise_is_seen(
    when: str, tp: int, make_engine: MakeEngine
) -> None:
    make_engine(tp=tp).serve(request())
    engine = make_engine(tp=tp)
    one = request()
    tokens, _ = engine.scheduler.get_num_new_matched_tokens(one.bound(), 0)
    assert tokens == 8 * FULL
    if when == "before the allocation":
        forget_all(engine)
    pages = [engine._free.pop() for _ in range(FULL + 1)]
    engine.scheduler.update_state_after_alloc(one.bound(), pages)
    if when == "before the plan":
        forget_all(engine)
    plan = engine.plan(one, FULL, pages)
    if when == "before the load":
        forget_all(engine)
    for worker in engine.workers:
        worker.bind_connector_meta(plan)
        worker.start_load_kv(None)
    finish(engine, one, pages, FULL)
    assert [worker.stats()["tier_misses"] for worker in engine.workers] == [0] * tp


def test_b27_rare_misses_are_never_seen(make_engine: MakeEngine) -> None:
    """Blocks vanish all the time; a request gets what was staged, and computes the rest."""
    rng = np.random.default_rng(63)
    writer = make_engine()
    writer.serve(request())
    served = 0
    for _ in range(60):
        engine = make_engine()
        key = key_of_block(engine, TOKENS, int(rng.integers(FULL)))
        memory_of(engine).remove([key])
        promised = engine.serve(request())
        assert promised < FULL
        served += promised
        assert make_engine().serve(request()) == FULL  # healed
        engine.close()
    assert served > 0


def test_explain_says_what_ended_each_request(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.serve(request())
    engine.serve(request([*TOKENS[:32], *OTHER]))
    engine.lookup(request(), computed=5)
    engine.lookup(request(lora_task_id=3))
    lines = engine.scheduler.explain()
    assert len(lines) == 4
    for line, reason in zip(
        lines, ("no manifest", "no manifest", "unaligned", "opted out"), strict=True
    ):
        assert reason in line
    assert "offered 4 of" in lines[1]


def test_a_hit_below_the_minimum_is_computed(
    make_engine: MakeEngine, environment: pytest.MonkeyPatch
) -> None:
    make_engine().serve(request())
    environment.setenv("MC_MIN_HIT_BLOCKS", "5")
    engine = make_engine()
    assert engine.lookup(request([*TOKENS[:32], *OTHER])) == 0
    assert engine.scheduler.stats()["blocks_missed_below_minimum"] == 4
    assert engine.lookup(request()) == FULL


def test_requests_that_go_away_leave_nothing_held(make_engine: MakeEngine) -> None:
    make_engine().serve(request())
    engine = make_engine()
    for _ in range(20):
        assert engine.lookup(request()) == FULL  # never allocated
        one = request()
        matched, pages = engine.start(one)  # allocated, never planned
        assert matched == FULL
        engine.scheduler.request_finished(one.bound(), pages)
        engine._free.extend(pages)
        two = request()
        _, pages = engine.start(two)
        engine.scheduler.cancel_load(two.bound(), 8, 8 * FULL)
        engine.scheduler.request_reset(two.bound())
        engine._free.extend(pages)
    engine.run(request([7, 8, 9]))  # its plan tells the ranks
    assert engine.scheduler.stats()["promises_held"] == 0
    assert engine.worker.stats()["holds_open"] == 0
    assert engine.worker.stats()["tier_blocks_held"] == 0


@pytest.fixture(name="gate")
def gate_fixture(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """The store of all engines of the test stands behind this gate."""
    gates = gate_stores(monkeypatch)
    keeper = make_engine()  # opens the store
    yield gates[0]
    gates[0].open_gate()
    keeper.close()


def test_a_store_that_hangs_after_the_promise_does_not_delay_the_load(
    make_engine: MakeEngine, gate: Gate
) -> None:
    make_engine().serve(request())
    engine = make_engine()
    one = request()
    matched, pages = engine.start(one)
    assert matched == FULL
    gate.close_gate()
    plan = engine.plan(one, matched, pages)
    engine.worker.bind_connector_meta(plan)
    began = time.monotonic()
    engine.worker.start_load_kv(None)
    assert time.monotonic() - began < 1.0
    finish(engine, one, pages, matched)
    gate.open_gate()


def test_a_hung_store_costs_a_step_its_budget_once(
    make_engine: MakeEngine, gate: Gate, environment: pytest.MonkeyPatch
) -> None:
    environment.setenv("MC_STAGE_DEADLINE_MS", "300")
    make_engine().serve(request())
    engine = make_engine()
    gate.close_gate()
    began = time.monotonic()
    for _ in range(4):  # the queries of one step
        assert engine.lookup(request()) == 0
    assert time.monotonic() - began < CALLBACK_BOUND_S / 2
    gate.open_gate()


def test_layers_stay_leased(make_engine: MakeEngine, environment: pytest.MonkeyPatch) -> None:
    environment.setenv("MC_LAYER_GRANULARITY", "1")
    engine = make_engine()
    assert engine.serve(request()) == 0
    assert engine.serve(request()) == FULL
    assert engine.worker.stats()["blocks_staged"] == 0


def test_other_shapes(make_engine: MakeEngine) -> None:
    for dtype in ("float16", "float8_e4m3fn", "int8"):
        shape = Shape(dtype=dtype, layers=2)
        assert make_engine(shape).serve(request()) == 0
        assert make_engine(shape).serve(request()) == FULL


@pytest.mark.parametrize(("lost_after_it", "steps"), [(0, 8), (6, 40)])
@pytest.mark.parametrize("tp", [1, 2])
def test_a_plan_that_is_lost_leaves_nothing_held(
    tp: int,
    lost_after_it: int,
    steps: int,
    make_engine: MakeEngine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was promised fails its request; what it held is free again some steps later.

    Also if the plans are lost that would have told its end.
    """
    make_engine(tp=tp).serve(request())
    engine = make_engine(tp=tp)
    one = request()
    matched, pages = engine.start(one)
    assert matched == FULL
    plan_step = engine.scheduler._plan_step

    def lose(*arguments: Any) -> bytes:
        plan_step(*arguments)
        raise RuntimeError("after the plan was made")

    with monkeypatch.context() as patch:
        patch.setattr(engine.scheduler, "_plan_step", lose)
        lost = engine.plan(one, matched, pages)
    for worker in engine.workers:
        worker.bind_connector_meta(lost)
        with pytest.raises(KvConnectorError):
            worker.start_load_kv(None)
    assert [worker.stats()["holds_open"] for worker in engine.workers] == [1] * tp
    engine.scheduler.request_finished(one.bound(), pages)
    with monkeypatch.context() as patch:
        patch.setattr(engine.scheduler, "_plan_step", lose)
        for _ in range(lost_after_it):
            engine.run(request([1, 2, 3]))
    for _ in range(steps):
        engine.run(request([1, 2, 3]))
    assert [worker.stats()["holds_open"] for worker in engine.workers] == [0] * tp
    assert engine.serve(request()) == FULL


def test_promises_expire_as_long_as_a_scheduler_lives(make_engine: MakeEngine) -> None:
    """On an idle engine, too, which calls nothing."""

    def watching() -> int:
        names = []
        for name in Path("/proc/self/task").glob("*/comm"):
            with contextlib.suppress(OSError):  # a thread that has ended meanwhile
                names.append(name.read_text().strip())
        return names.count("kvc-holds")

    before = watching()
    engine = make_engine()
    assert engine.lookup(request()) == 0
    deadline = time.monotonic() + PATIENCE_S
    while watching() == before:  # until the thread has its name
        assert time.monotonic() < deadline
        threading.Event().wait(0.005)
    assert watching() == before + 1
    engine.scheduler.close()
    assert watching() == before


def test_a_scheduler_whose_worker_is_not_certain_yet_waits_and_is_staged_then(
    make_engine: MakeEngine,
) -> None:
    """Two instances made from one object: the first asks before the second scheduler is there."""
    first = make_engine(register=False)
    second = make_engine(register=False, args=first.args)
    second.scheduler.close()
    for engine in (first, second):
        engine.worker.register_kv_caches(engine.pools[0])
    assert first.run(request()) == 0
    assert first.scheduler.stats()["queries_bypassed_no_pool"] == 1
    third = make_engine(register=False, args=first.args)  # has another worker, too
    third.worker.close()
    for _ in range(2):
        first.serve(request())
    metrics = first.scheduler.metrics()
    assert metrics["queries_bypassed_no_pool"] == 1
    assert metrics["blocks_offered"] == FULL
    assert metrics["staging_latency"]["count"] == 1


def test_that_staged_became_leased_is_told(
    make_engine: MakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    """Two instances, each of whose parts got a copy of the arguments: nothing tells them apart."""
    keeper = make_engine()
    other = make_engine(register=False)
    other.worker.register_kv_caches(other.pools[0])
    reader = make_engine(register=False)
    reader.worker.close()
    with caplog.at_level("WARNING", "mooncake_trtllm"):
        for _ in range(3):
            reader.scheduler.wait_for_initialization()
    assert caplog.text.count("promises of this scheduler are leased") == 1
    keeper.serve(request())
    assert reader.lookup(request()) == FULL
