"""Made, dropped, made again; forks, spawned processes, the end of the interpreter."""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.engine import Engine, Request, Shape, make_model
from support.gates import gate_stores
from support.processes import clean_environment, run_python
from support.stores import memory_of, shards
from support.waiting import until

from mooncake_trtllm import KvConnectorLoadError, _stores
from mooncake_trtllm._rendezvous import rendezvous

MakeEngine = Callable[..., Engine]
TOKENS = [int(t) for t in np.random.default_rng(31).integers(0, 32000, 61)]
FULL = 60 // 8
_ids = itertools.count(1)


def request(tokens: list[int] = TOKENS, **extra: Any) -> Request:
    return Request(next(_ids), list(tokens), extra)


def threads() -> int:
    """Threads of the connector's core in this process."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it ended meanwhile
            names.append((task / "comm").read_text())
    return len([name for name in names if name.startswith("kvc")])


# References --------------------------------------------------------------------------------------


@pytest.mark.parametrize("explicit", [False, True], ids=["dropped", "closed"])
def test_everything_is_given_back(
    explicit: bool, make_engine: MakeEngine, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """I6: threads, registrations, table entries, the pool and the arguments themselves."""
    gates = gate_stores(environment)
    model = make_model(tmp_path / "model", Shape())
    gc.collect()  # of tests before this one
    until(lambda: threads() == 0)
    engine: Engine | None = Engine(Shape(), model, environment, tp=2)
    assert engine is not None
    engine.serve(request())
    assert threads() > 0
    assert gates[0].registered() == 2
    alive = [weakref.ref(o) for o in (*engine.pools, *engine.workers, engine.scheduler)]
    if explicit:
        engine.close()
        engine.close()
        until(lambda: threads() == 0)
    engine = None
    gc.collect()
    assert [one() for one in alive] == [None] * len(alive)
    assert gates[0].registered() == 0
    until(lambda: threads() == 0)
    assert (rendezvous._workers, rendezvous._schedulers) == ([], [])
    assert _stores.stores._shared == {}


def test_again_and_again(make_engine: MakeEngine) -> None:
    for round_ in range(5):
        engine = make_engine()
        assert engine.serve(request()) == (0 if round_ == 0 else FULL)
        engine.close()
    until(lambda: threads() == 0)


def test_saves_in_flight_are_stored_when_the_worker_goes(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.run(request())
    engine.close()
    assert len(shards(engine)) == FULL


def test_after_the_end_callbacks_are_harmless(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.serve(request())
    promised = request()
    matched, pages = engine.start(promised)
    meta = engine.plan(promised, matched, pages)
    engine.close()
    assert engine.scheduler.get_num_new_matched_tokens(request().bound(), 0) == (0, False)
    assert engine.scheduler.build_connector_meta(None) == b""
    assert engine.worker.stats()["blocks_saved"] == FULL
    assert engine.scheduler.stats()["requests_tracked"] == 0
    assert engine.worker.drain(0) is True
    engine.worker.bind_connector_meta(meta)
    with pytest.raises(KvConnectorLoadError, match="no KV pool"):
        engine.worker.start_load_kv(None)


def test_a_worker_closed_in_the_middle_of_a_step_fails_its_loads(make_engine: MakeEngine) -> None:
    """The pages are not filled, and the runtime has to hear of it."""
    engine = make_engine()
    engine.serve(request())
    promised = request()
    matched, pages = engine.start(promised)
    engine.worker.bind_connector_meta(engine.plan(promised, matched, pages))
    engine.worker.close()
    with pytest.raises(KvConnectorLoadError, match="closed") as caught:
        engine.worker.start_load_kv(None)
    assert caught.value.request_ids == [promised.request_id]
    engine.worker.start_load_kv(None)  # once


def test_a_cycle_is_collected(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    engine: Engine | None = Engine(Shape(), make_model(tmp_path / "model", Shape()), environment)
    assert engine is not None
    engine.serve(request())
    engine.scheduler.cycle = engine.worker  # type: ignore[attr-defined]
    engine.worker.cycle = engine.scheduler  # type: ignore[attr-defined]
    alive = weakref.ref(engine.worker)
    engine = None
    gc.collect()
    assert alive() is None
    until(lambda: threads() == 0)


# Before and without a pool -----------------------------------------------------------------------


def test_nothing_is_promised_before_the_pool_is_known(make_engine: MakeEngine) -> None:
    make_engine().serve(request())
    engine = make_engine(register=False)
    assert engine.scheduler.get_num_new_matched_tokens(request().bound(), 0) == (0, False)
    assert engine.scheduler.build_connector_meta(None) == b""
    engine.worker.bind_connector_meta(None)
    engine.worker.start_load_kv(None)
    engine.worker.wait_for_save(None)
    assert engine.worker.drain(1.0) is True
    engine.worker.register_kv_caches(engine.pools[0])
    assert engine.serve(request()) == FULL


def test_instances_side_by_side(make_engine: MakeEngine) -> None:
    """Two instances of two ranks, of other geometry, from one process: each finds its own."""
    small, large = make_engine(tp=2), make_engine(Shape(layers=5), tp=2)
    for engine in (small, large):
        assert engine.serve(request()) == 0
    for engine in (small, large):
        assert engine.serve(request()) == FULL
    small.close()
    assert large.serve(request()) == FULL


def test_ranks_may_be_threads(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = make_model(tmp_path / "model", Shape())
    done = run_python(
        """
import sys, threading
from support import stand_in
from support.engine import HostTensor, Shape, llm_args
own = threading.local()
stand_in.install("1.3", rank=lambda: own.rank, size=lambda: 2)
from mooncake_trtllm import MooncakeKvCacheConnectorScheduler, MooncakeKvCacheConnectorWorker
shape = Shape()
shared = llm_args(sys.argv[1], shape, tp=2)
ranks = {}
def run(rank):
    own.rank = rank
    worker = MooncakeKvCacheConnectorWorker(shared)
    scheduler = MooncakeKvCacheConnectorScheduler(shared) if rank == 0 else None
    worker.register_kv_caches(HostTensor(shape.pool(2), shape.dtype))
    ranks[rank] = worker, scheduler
threads = [threading.Thread(target=run, args=(rank,)) for rank in (1, 0)]
[t.start() for t in threads]; [t.join() for t in threads]
scheduler = ranks[0][1]
assert scheduler._resources.core() is not None
print([ranks[rank][0]._instance.rank.rank for rank in (0, 1)])
""",
        str(model),
    )
    assert done.stdout.strip() == "[0, 1]"


# Requests that come and go -----------------------------------------------------------------------


def test_requests_that_come_twice_or_never(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.serve(request())
    scheduler = engine.scheduler
    for _ in range(3):
        scheduler.get_num_new_matched_tokens(request().bound(), 0)  # no allocation follows
    never_queried = request()
    scheduler.update_state_after_alloc(never_queried.bound(), [1, 2])
    assert scheduler.request_finished(never_queried.bound(), []) is False
    assert scheduler.request_finished(never_queried.bound(), [1]) is False
    scheduler.request_reset(never_queried.bound())
    scheduler.cancel_load(never_queried.bound(), 0, 8)
    twice = request()
    assert engine.run(twice) == FULL
    assert engine.run(twice) == FULL
    assert scheduler.request_finished(twice.bound(), []) is False
    assert engine.worker.get_finished([7, 7, 8], [9]) == ([7, 8], [9])


def test_a_step_that_is_not_executed_loses_no_load(make_engine: MakeEngine) -> None:
    """build_connector_meta(None) must not use up what is promised."""
    engine = make_engine()
    engine.serve(request())
    promised = request()
    matched, pages = engine.start(promised)
    assert engine.scheduler.build_connector_meta(None) == b""
    engine.worker.bind_connector_meta(engine.plan(promised, matched, pages))
    engine.worker.start_load_kv(None)
    engine.verify(promised, pages[:matched])


def test_loads_and_saves_of_a_plan_happen_once(make_engine: MakeEngine) -> None:
    """The metadata stays bound while no batch runs."""
    engine = make_engine()
    engine.serve(request())
    promised = request()
    matched, pages = engine.start(promised)
    engine.worker.bind_connector_meta(engine.plan(promised, matched, pages))
    engine.worker.start_load_kv(None)
    engine.pools[0].bytes[pages] = 0
    engine.worker.start_load_kv(None)
    assert not engine.pools[0].bytes[pages].any()
    saved = engine.worker.stats()["blocks_saved"]
    engine.worker.wait_for_save(None)
    engine.worker.wait_for_save(None)
    assert engine.drain()
    assert engine.worker.stats()["blocks_saved"] == saved


def test_a_saved_block_is_visible_soon(make_engine: MakeEngine) -> None:
    """Within 2 s of a save, without a drain, another instance finds it."""
    first, second = make_engine(), make_engine()
    first.run(request())
    start = time.monotonic()
    until(lambda: second.lookup(request()) == FULL)
    assert time.monotonic() - start < 2.0


# Processes ---------------------------------------------------------------------------------------

PLAIN = """
import json
from support.spawned import keys
print(json.dumps(keys()))
"""
SPAWN = """
import json, multiprocessing
from support.spawned import keys
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(json.dumps(pool.apply(keys)))
"""
FORK = """
import json, os, sys
from support.spawned import keys
import mooncake_trtllm.scheduler, mooncake_trtllm.worker
read_end, write_end = os.pipe()
child = os.fork()
if child == 0:
    os.write(write_end, json.dumps(keys()).encode())
    sys.exit(0)
os.close(write_end)
data = b""
while part := os.read(read_end, 65536):
    data += part
assert os.waitpid(child, 0)[1] == 0
print(data.decode())
"""


def test_b93_equal_keys_in_every_kind_of_process(tmp_path: Path) -> None:
    """B13, B93: hash seeds, spawn and fork; what schedulers plan and what workers store."""
    model = make_model(tmp_path / "model", Shape())
    base = {"TEST_MODEL": str(model), "TEST_TOKENS": json.dumps(TOKENS)}
    found = []
    for code, seed in ((PLAIN, None), (PLAIN, "0"), (PLAIN, "77"), (SPAWN, None), (FORK, "5")):
        environment = clean_environment(**base, **({"PYTHONHASHSEED": seed} if seed else {}))
        found.append(json.loads(run_python(code, environment=environment).stdout))
    assert len(found[0]["stored"]) == FULL * 3  # two shards and a manifest
    assert len(found[0]["planned"]) == FULL
    assert [one for one in found if one != found[0]] == []
    assert {key.split("/")[2] for key in found[0]["stored"]} == set(found[0]["planned"])


FORK_AFTER_USE = """
import os, sys
from mooncake_trtllm import KvConnectorLoadError
from support.spawned import TOKENS, Request, engine_of
engine = engine_of()
engine.serve(Request(1, TOKENS))
promised = Request(9, TOKENS)
engine.worker.bind_connector_meta(engine.plan(promised, *engine.start(promised)))
child = os.fork()
if child == 0:
    # In the middle of a step: what was promised is not in place, and the child hears of it.
    try:
        engine.worker.start_load_kv(None)
        sys.exit(3)
    except KvConnectorLoadError as error:
        assert error.request_ids == [9]
    # The parent's connectors are given up here: harmless, and quick.
    assert engine.scheduler.get_num_new_matched_tokens(Request(2, TOKENS).bound(), 0) == (0, False)
    engine.worker.bind_connector_meta(None)
    engine.worker.start_load_kv(None)
    engine.worker.wait_for_save(None)
    assert engine.worker.drain(1) and len(os.listdir("/proc/self/task")) == 1
    # New ones work, on a store of this process.
    fresh = engine_of()
    assert fresh.serve(Request(3, TOKENS)) == 0
    assert fresh.serve(Request(4, TOKENS)) == 7
    sys.exit(0)  # runs exit handlers, which must not wait for threads of the parent
assert os.waitpid(child, 0)[1] == 0
engine.worker.start_load_kv(None)
assert engine.serve(Request(5, TOKENS)) == 7
print("ok")
"""


def test_b93_a_fork_after_use(tmp_path: Path) -> None:
    """B93: the child of a process with connectors is not harmed, nor is the parent."""
    model = make_model(tmp_path / "model", Shape())
    environment = clean_environment(TEST_MODEL=str(model), TEST_TOKENS=json.dumps(TOKENS))
    assert run_python(FORK_AFTER_USE, environment=environment).stdout.strip() == "ok"


AT_EXIT = """
import atexit, os
def report():  # registered first, so that it runs last
    print(len([key for key in memory.keys() if key.endswith("/manifest")]), flush=True)
atexit.register(report)
from support.spawned import TOKENS, Request, engine_of, memory_of
engine = engine_of()
memory = memory_of(engine)
engine.run(Request(1, TOKENS))  # and no drain
if os.environ["TEST_DROP"]:
    del engine
"""


@pytest.mark.parametrize("drop", ["", "1"], ids=["alive", "dropped"])
def test_the_end_of_the_process_stores_what_is_queued(drop: str, tmp_path: Path) -> None:
    model = make_model(tmp_path / "model", Shape())
    environment = clean_environment(
        TEST_MODEL=str(model), TEST_TOKENS=json.dumps(TOKENS), TEST_DROP=drop
    )
    assert run_python(AT_EXIT, environment=environment).stdout.strip() == str(FULL)


HUNG_AT_EXIT = """
import pytest
from support.spawned import TOKENS, Request, engine_of
from support.gates import gate_stores
gates = gate_stores(pytest.MonkeyPatch())
engine = engine_of()
gates[0].close_gate()
engine.run(Request(1, TOKENS))
assert gates[0].wait_for_waiting(1)
"""


def test_a_hung_store_does_not_keep_the_process(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model", Shape())
    environment = clean_environment(TEST_MODEL=str(model), TEST_TOKENS=json.dumps(TOKENS))
    start = time.monotonic()
    run_python(HUNG_AT_EXIT, environment=environment)
    assert time.monotonic() - start < 30


@pytest.mark.usefixtures("leased")
def test_an_error_that_is_kept_keeps_nothing_alive(make_engine: MakeEngine) -> None:
    """Its traceback keeps frames, and these must not keep threads and memory of the core."""
    engine = make_engine()
    gc.collect()
    engine.serve(request())
    engine.worker.bind_connector_meta(b"not a plan")
    with pytest.raises(KvConnectorLoadError) as kept:
        engine.worker.start_load_kv(None)
    promised = request()
    matched, pages = engine.start(promised)
    memory_of(engine).remove(shards(engine))
    engine.worker.bind_connector_meta(engine.plan(promised, matched, pages))
    with pytest.raises(KvConnectorLoadError) as also_kept:
        engine.worker.start_load_kv(None)
    engine.close()
    until(lambda: threads() == 0)
    assert kept.value is not also_kept.value


DAEMON_AT_EXIT = """
import threading
from mooncake_trtllm import _native
class Late:  # keeps the ending interpreter busy until the thread comes back from the core
    def __init__(self):
        self.wait = threading.Event().wait
    def __del__(self):
        self.wait(0.3)
late = Late()
tokens = list(range(100_000))
inside = threading.Event()
def call():
    while True:
        chain = _native.BlockChain(32)
        inside.set()
        chain.append(tokens)
threading.Thread(target=call, daemon=True).start()
inside.wait()
print("ok", flush=True)
"""


def test_a_daemon_thread_inside_the_core_does_not_abort_the_exit() -> None:
    """It is not given the GIL any more, and must not be unwound through frames of C++."""
    assert run_python(DAEMON_AT_EXIT).stdout.strip() == "ok"
