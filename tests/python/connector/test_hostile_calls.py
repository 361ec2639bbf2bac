"""Calls that no runtime makes, and failures inside: callbacks answer, promises fail closed."""

from __future__ import annotations

import contextlib
import itertools
import logging
import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.engine import Engine, Request, step
from support.ids import readable

from mooncake_trtllm import KvConnectorConfigError, KvConnectorLoadError, _native

MakeEngine = Callable[..., Engine]
TOKENS = [int(t) for t in np.random.default_rng(22).integers(0, 32000, 61)]
FULL = 60 // 8
_ids = itertools.count(1)


def request(tokens: list[int] = TOKENS, **extra: Any) -> Request:
    return Request(next(_ids), list(tokens), extra)


def promise(engine: Engine) -> SimpleNamespace:
    """A request as the connector got it, that was promised a load and has no pages yet."""
    engine.serve(request())
    bound = request().bound()
    assert engine.scheduler.get_num_new_matched_tokens(bound, 0)[0]
    return bound


def assert_load_fails_for(engine: Engine, promised: Request | SimpleNamespace) -> None:
    with pytest.raises(KvConnectorLoadError) as caught:
        engine.worker.start_load_kv(None)
    assert caught.value.request_ids == [promised.request_id]


class Exploding:
    """A core whose every method fails."""

    def __getattr__(self, name: str) -> Any:
        def fail(*args: Any, **kwargs: Any) -> Any:
            raise RuntimeError(f"injected into {name}")

        return fail


def test_callbacks_are_total(make_engine: MakeEngine, caplog: pytest.LogCaptureFixture) -> None:
    """I8: whatever fails inside, the runtime gets an answer, and hears of a lost promise."""
    engine = make_engine()
    scheduler, worker = engine.scheduler, engine.worker
    one = request()
    real_core, real_worker = scheduler._resources._core, worker._resources.core
    scheduler._resources._core = Exploding()  # type: ignore[assignment]
    worker._resources.core = Exploding()  # type: ignore[assignment]
    try:
        with caplog.at_level(logging.ERROR, "mooncake_trtllm"):
            assert scheduler.get_num_new_matched_tokens(one.bound(), 0) == (0, False)
            scheduler.update_state_after_alloc(one.bound(), [1])
            scheduler.update_state_after_alloc_by_layer_group(one.bound(), [[1]])
            assert scheduler.build_connector_meta(step(engine, one, [1])) == b""
            assert scheduler.request_finished(one.bound(), [1]) is False
            assert scheduler.request_finished_by_layer_group(one.bound(), [[1]]) is False
            scheduler.request_reset(one.bound())
            scheduler.cancel_load(one.bound(), 0, 8)
            scheduler.wait_for_initialization()
            worker.bind_connector_meta(b"")
            with pytest.raises(KvConnectorLoadError, match="injected into bind"):
                worker.start_load_kv(None)
            worker._may_save = True
            with pytest.raises(KvConnectorLoadError, match="injected into load"):
                worker.start_load_kv(None)
            worker.wait_for_layer_load(0, None)
            worker.save_kv_layer(0, None)
            worker.wait_for_save(None)
            assert worker.get_finished([], []) == ([], [])
        assert "injected into query" in caplog.text
    finally:
        scheduler._resources._core, worker._resources.core = real_core, real_worker
        # The log keeps exceptions, which keep this frame: it must not keep the core alive.
        del real_core, real_worker


NONSENSE: list[Any] = [None, object(), SimpleNamespace(), SimpleNamespace(request_id="x"), 5, "x"]


@pytest.mark.parametrize("nonsense", NONSENSE, ids=readable)
def test_nonsense_is_harmless(nonsense: Any, make_engine: MakeEngine) -> None:
    engine = make_engine()
    scheduler, worker = engine.scheduler, engine.worker
    assert scheduler.get_num_new_matched_tokens(nonsense, 0) == (0, False)
    scheduler.update_state_after_alloc(nonsense, [1])
    assert scheduler.request_finished(nonsense, None) is False
    scheduler.request_reset(nonsense)
    scheduler.cancel_load(nonsense, 0, 0)
    scheduler.build_connector_meta(nonsense)
    worker.wait_for_save(nonsense)
    assert worker.get_finished(None, None) == ([], [])
    assert engine.serve(request()) == 0
    assert engine.serve(request()) == FULL


METADATA_OF_OTHERS: list[Any] = [
    5,
    {},
    "text",
    (1,),
    (b"", (), 3),
    b"foreign",
    [b""],
    bytearray(b""),
    (b"", 5),
    (b"", None),
    (b"", "ab"),
    (b"", ([1],)),
    (b"", np.array([1, 2])),
]


@pytest.mark.parametrize("meta", METADATA_OF_OTHERS, ids=repr)
def test_metadata_of_others_fails_closed(meta: Any, make_engine: MakeEngine) -> None:
    """What it promised is not known, so the step must not run as if nothing were missing."""
    engine = make_engine()
    engine.worker.bind_connector_meta(meta)
    with pytest.raises(KvConnectorLoadError, match="Remedy"):
        engine.worker.start_load_kv(None)
    engine.worker.wait_for_save(None)
    engine.worker.bind_connector_meta(None)
    engine.worker.start_load_kv(None)


def test_damaged_metadata_fails_closed(make_engine: MakeEngine) -> None:
    """Cut anywhere, or with any byte altered."""
    engine = make_engine()
    engine.serve(request())
    promised = request()
    sound = engine.plan(promised, *engine.start(promised))
    before = engine.pools[0].bytes.copy()
    damaged = [sound[:length] for length in range(1, len(sound))]
    for position in range(len(sound)):
        damaged.append(sound[:position] + bytes([sound[position] ^ 0x10]) + sound[position + 1 :])
    for meta in damaged:
        engine.worker.bind_connector_meta(meta)
        with pytest.raises(KvConnectorLoadError, match="Remedy"):
            engine.worker.start_load_kv(None)
        engine.worker.wait_for_save(None)
    assert np.array_equal(engine.pools[0].bytes, before)


def test_ids_may_come_in_any_container(make_engine: MakeEngine) -> None:
    """An id that is not given back keeps its pages for ever."""
    worker = make_engine().worker
    for ids in ([7, 8, 7], (7, 8), np.array([7, 8]), {7: None, 8: None}, iter([7, 8])):
        assert worker.get_finished(ids, []) == ([7, 8], [])
    assert worker.get_finished(np.array([], int), None) == ([], [])


@pytest.mark.parametrize(
    "pages",
    [
        "not pages",
        ["not a page"],
        [1.5] * 8,
        [None] * 8,
        [[1, 2]],
        [1 << 70] * 8,
        [5] * 8,
        [999] * 8,
    ],
    ids=repr,
)
def test_pages_that_are_none_fail_closed(pages: Any, make_engine: MakeEngine) -> None:
    engine = make_engine()
    promised = promise(engine)
    engine.scheduler.update_state_after_alloc(promised, pages)
    meta = engine.scheduler.build_connector_meta(SimpleNamespace(new_requests=[]))
    engine.worker.bind_connector_meta(meta)
    assert_load_fails_for(engine, promised)


TOKENS_OF_OTHERS: dict[str, Callable[[], Any]] = {
    "fractions": lambda: np.array([t + 0.5 for t in TOKENS]),
    "digits": lambda: "".join(str(t % 10) for t in TOKENS),
    "too large": lambda: [1 << 31] * 61,
    "texts": lambda: [str(t) for t in TOKENS],
    "nothing": lambda: None,
}


@pytest.mark.parametrize("name", TOKENS_OF_OTHERS)
def test_tokens_that_are_none_are_a_miss(name: str, make_engine: MakeEngine) -> None:
    """They are not rounded to tokens that another prompt may have."""
    engine = make_engine()
    engine.serve(request())
    engine.serve(request([t % 10 for t in TOKENS]))
    bound = request().bound()
    bound.get_tokens = lambda _: TOKENS_OF_OTHERS[name]()
    assert engine.scheduler.get_num_new_matched_tokens(bound, 0) == (0, False)
    engine.scheduler.update_state_after_alloc(bound, list(range(8)))
    assert engine.scheduler.stats()["requests_tracked"] == 0


def test_a_failing_log_handler_stays_inside(make_engine: MakeEngine) -> None:
    class Failing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError("disk full")

    handler = Failing()
    logger = logging.getLogger("mooncake_trtllm")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        engine = make_engine()
        assert engine.serve(request(prompt_embedding_table=object())) == 0
        assert engine.serve(request()) == 0
        assert engine.serve(request()) == FULL
        assert engine.scheduler.get_num_new_matched_tokens(None, 0) == (0, False)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def plan_with_core(engine: Engine, core: Callable[[Any], Any]) -> tuple[Request, Any]:
    """A request is allocated, and its step planned by `core(real core)`, which loses the plan.

    The plan is None if that was interrupted.
    """
    engine.serve(request())
    promised = request()
    matched, pages = engine.start(promised)
    assert matched == FULL
    resources = engine.scheduler._resources
    real = resources._core
    assert real is not None
    resources._core = core(real)
    meta = None
    with contextlib.suppress(KeyboardInterrupt):
        meta = engine.scheduler.build_connector_meta(step(engine, promised, pages, matched))
    resources._core = real
    return promised, meta


def assert_loads_fail_with_core(engine: Engine, core: Callable[[Any], Any]) -> None:
    promised, meta = plan_with_core(engine, core)
    assert meta is not None
    engine.worker.bind_connector_meta(meta)
    assert_load_fails_for(engine, promised)


def test_a_plan_that_is_lost_fails_closed(make_engine: MakeEngine) -> None:
    """The loads of allocated requests are owed: without a plan the workers must say so."""
    assert_loads_fail_with_core(make_engine(), lambda _: Exploding())


def test_a_plan_that_is_lost_after_it_was_made_fails_closed(make_engine: MakeEngine) -> None:
    """Memory may run out when it is written down; a second plan would hold no loads."""
    lost: list[bytes] = []

    class Losing:
        def __init__(self, core: Any) -> None:
            self.core = core

        def __getattr__(self, name: str) -> Any:
            return getattr(self.core, name)

        def plan_step(self, batch: Any) -> Any:
            plan = self.core.plan_step(batch)
            if not lost:
                lost.append(plan)
                raise MemoryError("injected")
            return plan

    assert_loads_fail_with_core(make_engine(), Losing)
    assert lost


def test_a_plan_that_was_interrupted_fails_closed(make_engine: MakeEngine) -> None:
    """Ctrl-C leaves build_connector_meta as what it is; the next plan tells what was lost."""

    class Interrupted(Exploding):
        def __init__(self, core: Any) -> None:
            self.core = core

        def plan_step(self, batch: Any) -> Any:
            self.core.plan_step(batch)
            raise KeyboardInterrupt

    engine = make_engine()
    promised, meta = plan_with_core(engine, Interrupted)
    assert meta is None, "it was interrupted"
    empty = SimpleNamespace(new_requests=[], cached_requests=[])
    engine.worker.bind_connector_meta(engine.scheduler.build_connector_meta(empty))
    assert_load_fails_for(engine, promised)


def test_a_report_that_cannot_be_read_keeps_the_loads(make_engine: MakeEngine) -> None:
    """Its request is loaded as promised, and never saved, since later deltas cannot be placed."""
    engine = make_engine()
    engine.serve(request(TOKENS[:33]))
    promised = request()
    matched, pages = engine.start(promised)
    assert matched == 4
    broken = step(engine, promised, pages, matched)
    broken.new_requests[0].new_tokens = [2**40]
    engine.worker.bind_connector_meta(engine.scheduler.build_connector_meta(broken))
    engine.worker.start_load_kv(None)
    engine.verify(promised, pages[:matched])
    engine.worker.wait_for_save(None)
    late = SimpleNamespace(
        request_id=promised.request_id,
        new_tokens=[1] * 40,
        new_block_ids=[],
        computed_position=61,
        num_scheduled_tokens=40,
    )
    late_step = SimpleNamespace(new_requests=[], cached_requests=[late])
    engine.worker.bind_connector_meta(engine.scheduler.build_connector_meta(late_step))
    engine.worker.start_load_kv(None)
    engine.worker.wait_for_save(None)
    assert engine.drain()
    assert engine.worker.stats()["blocks_saved"] == 4


def test_a_plan_that_cannot_be_bound_saves_nothing(make_engine: MakeEngine) -> None:
    """The plan before it is still bound then, but its pages may be another request's."""
    engine = make_engine()
    one = request()
    _, pages = engine.start(one)
    engine.worker.bind_connector_meta(engine.plan(one, 0, pages))
    engine.worker.start_load_kv(None)
    engine.worker.bind_connector_meta(b"not a plan")
    with pytest.raises(KvConnectorLoadError):
        engine.worker.start_load_kv(None)
    engine.worker.wait_for_save(None)
    assert engine.drain()
    assert engine.worker.stats()["blocks_saved"] == 0


def test_a_step_that_cannot_be_read_loses_no_load_silently(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.serve(request())
    promised = request()
    engine.start(promised)

    class Unreadable:
        @property
        def new_requests(self) -> list[Any]:
            raise RuntimeError("injected")

    engine.worker.bind_connector_meta(engine.scheduler.build_connector_meta(Unreadable()))
    assert_load_fails_for(engine, promised)
    # And nothing of it comes later, when its pages may be another request's.
    before = engine.pools[0].bytes.copy()
    empty = SimpleNamespace(new_requests=[], cached_requests=[])
    engine.worker.bind_connector_meta(engine.scheduler.build_connector_meta(empty))
    engine.worker.start_load_kv(None)
    assert np.array_equal(engine.pools[0].bytes, before)


def test_a_scheduler_that_ended_fails_what_it_owes(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.serve(request())
    promised = request()
    engine.start(promised)
    engine.scheduler.close()
    empty = SimpleNamespace(new_requests=[], cached_requests=[])
    engine.worker.bind_connector_meta(engine.scheduler.build_connector_meta(empty))
    assert_load_fails_for(engine, promised)


def load_with_core(engine: Engine, core: Any) -> None:
    """The loads of a step, by `core` instead of the worker's own."""
    one = request()
    engine.worker.bind_connector_meta(engine.plan(one, *engine.start(one)))
    resources = engine.worker._resources
    real, resources.core = resources.core, core
    try:
        engine.worker.start_load_kv(None)
    finally:
        resources.core = real
        # The error keeps this frame, which must not keep the core alive.
        del real


def test_a_failure_that_stands_for_all_loads_names_no_request(make_engine: MakeEngine) -> None:
    class OutOfMemory(Exploding):
        def load(self, stream: int) -> Any:
            return [(0, "", "unavailable", "out of memory")]

    with pytest.raises(KvConnectorLoadError, match="any of them: out of memory") as caught:
        load_with_core(make_engine(), OutOfMemory())
    assert (caught.value.request_ids, caught.value.keys) == ([], [])


def test_a_load_that_was_interrupted_is_not_taken_for_done(make_engine: MakeEngine) -> None:
    """Ctrl-C leaves start_load_kv as what it is; who goes on all the same hears of it again."""

    class Interrupted(Exploding):
        def load(self, stream: int) -> Any:
            raise KeyboardInterrupt

    engine = make_engine()
    worker = engine.worker
    with pytest.raises(KeyboardInterrupt):
        load_with_core(engine, Interrupted())
    with pytest.raises(KvConnectorLoadError, match="interrupted"):
        worker.start_load_kv(None)
    worker.wait_for_save(None)
    assert engine.drain()
    assert worker.stats()["blocks_saved"] == 0
    assert engine.serve(request()) == 0
    assert engine.serve(request()) == FULL


def test_a_scheduler_that_ended_before_the_allocation_fails_what_it_promised(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine()
    promised = promise(engine)
    engine.scheduler.close()
    engine.scheduler.update_state_after_alloc(promised, list(range(8)))
    engine.worker.bind_connector_meta(engine.scheduler.build_connector_meta(SimpleNamespace()))
    assert_load_fails_for(engine, promised)


def test_a_promise_that_was_forgotten_fails_closed(make_engine: MakeEngine) -> None:
    """An allocation that comes when the record of its promise is gone is not loaded."""
    engine = make_engine()
    promised = promise(engine)
    for _ in range(3):
        engine.scheduler.build_connector_meta(SimpleNamespace())
    for _ in range(8192):  # as many as are tracked
        engine.scheduler.get_num_new_matched_tokens(request([1] * 9).bound(), 0)
    engine.scheduler.update_state_after_alloc(promised, list(range(8)))
    engine.worker.bind_connector_meta(engine.scheduler.build_connector_meta(SimpleNamespace()))
    assert_load_fails_for(engine, promised)


def test_a_request_that_ended_owes_nothing(make_engine: MakeEngine) -> None:
    """Its loads could not be planned, but nobody waits for them any more."""
    engine = make_engine()
    for end in (engine.scheduler.request_reset, engine.scheduler.request_finished):
        promised = promise(engine)
        engine.scheduler.update_state_after_alloc(promised, ["not a page"])
        end(promised, [])
        engine.worker.bind_connector_meta(engine.scheduler.build_connector_meta(SimpleNamespace()))
        engine.worker.start_load_kv(None)


def test_a_page_that_stands_for_two_blocks_is_never_stored(make_engine: MakeEngine) -> None:
    engine = make_engine()
    one = request()
    engine.scheduler.get_num_new_matched_tokens(one.bound(), 0)
    pages = [5] * 8
    engine.scheduler.update_state_after_alloc(one.bound(), pages)
    engine.worker.bind_connector_meta(
        engine.scheduler.build_connector_meta(step(engine, one, pages))
    )
    engine.worker.start_load_kv(None)
    engine.worker.wait_for_save(None)
    assert engine.drain()
    assert engine.worker.stats()["blocks_saved"] == 0


class CoreAttempts:
    """Counts the attempts to make the core's scheduler, in a time that the test sets."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.count = 0
        self.error: Exception | None = None
        self._made = _native.Scheduler
        patch.setattr(_native, "Scheduler", self._make)
        clock = SimpleNamespace(monotonic=lambda: self.now)
        patch.setattr("mooncake_trtllm.scheduler.time", clock)

    def _make(self, *arguments: Any, **options: Any) -> Any:
        self.count += 1
        if self.error is not None:
            raise self.error
        return self._made(*arguments, **options)


def lines_about_the_core(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.levelname for r in caplog.records if "cannot be made" in r.message]


def test_a_scheduler_that_cannot_be_made_is_tried_and_told_once(
    make_engine: MakeEngine,
    environment: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is wanted in every callback: each would start and end a thread, and write a traceback."""
    core = CoreAttempts(environment)
    core.error = KvConnectorConfigError("wrong, and so tomorrow")
    with caplog.at_level(logging.INFO, "mooncake_trtllm"):
        engine = make_engine(tp=2, warm_up=False)
        for _ in range(50):
            core.now += 100
            assert engine.run(request()) == 0
            engine.scheduler.cancel_load(request().bound(), 0, 8)
    assert core.count == 1
    assert lines_about_the_core(caplog) == ["ERROR"]
    assert engine.scheduler.metrics()["queries_bypassed_no_pool"] == 50
    assert engine.scheduler.explain() == []


def test_what_may_pass_is_tried_some_times_with_growing_pauses(
    make_engine: MakeEngine,
    environment: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    core = CoreAttempts(environment)
    environment.setenv("MC_STAGE_ADDRESS", "192.0.2.1")  # for documentation; no host has it
    with caplog.at_level(logging.INFO, "mooncake_trtllm"):
        engine = make_engine(tp=2, warm_up=False)
        at = [core.now]  # The first one, at the start.
        assert core.count == 1
        for _ in range(400):
            before = core.count
            for _ in range(3):
                assert engine.run(request([1, 2, 3])) == 0
            if core.count > before:
                assert core.count == before + 1
                at.append(core.now)
            core.now += 1
    pauses = [int(later - earlier) for earlier, later in itertools.pairwise(at)]
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60, 60]
    assert lines_about_the_core(caplog) == ["WARNING", "ERROR"]
    assert caplog.text.count("cannot listen for ranks at '192.0.2.1'") >= 2


def test_a_port_that_is_taken_for_a_moment_costs_that_moment(
    make_engine: MakeEngine,
    environment: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    core = CoreAttempts(environment)
    # Not 127.0.0.1, whose free ports are given to others that connect somewhere.
    with socket.create_server(("127.0.0.2", 0)) as other:
        port = other.getsockname()[1]
        environment.setenv("MC_STAGE_ADDRESS", f"127.0.0.2:{port}")
        engine = make_engine(tp=2, warm_up=False)
        assert engine.run(request()) == 0
        assert core.count == 1
    assert engine.run(request()) == 0
    assert core.count == 1
    core.now += 1.5
    engine.run(request([1, 2, 3]))
    engine.meet_ranks()
    assert core.count == 2
    assert engine.serve(request()) == 0
    assert "could be made by now" in capsys.readouterr().err  # Without any configuration.
    assert engine.serve(request()) == FULL
