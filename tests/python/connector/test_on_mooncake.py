"""The classes on a real Mooncake Store, each instance in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from support.engine import Shape, make_model
from support.processes import clean_environment, run_python

from mooncake_trtllm.local_store import LocalStore

pytestmark = pytest.mark.mooncake

TOKENS = [int(t) for t in np.random.default_rng(41).integers(0, 32000, 61)]
FULL = 60 // 8
Run = Callable[..., list[str]]


@pytest.fixture(name="store", scope="module")
def store_fixture() -> Iterator[LocalStore]:
    with LocalStore(segment_bytes=256 << 20) as store:
        yield store


@pytest.fixture(name="run")
def run_fixture(store: LocalStore, tmp_path: Path) -> Run:
    """Runs code with an engine's environment; returns the lines that it printed."""
    model = make_model(tmp_path / "model", Shape())

    def run(code: str, epoch: int, **settings: str) -> list[str]:
        settings |= {
            **store.client_environment(),
            "TEST_MODEL": str(model),
            "TEST_TOKENS": json.dumps(TOKENS),
            "MC_BACKEND": "mooncake",
            "MC_STAGING_BYTES": "4MB",
            "MC_KEY_EPOCH": str(epoch),  # apart from the blocks of other tests
        }
        environment = clean_environment(**settings)
        return run_python(code, environment=environment).stdout.split()

    return run


SERVE = """
from support.spawned import TOKENS, Request, engine_of
engine = engine_of(tp=2)
print(engine.serve(Request(1, TOKENS)), engine.serve(Request(2, TOKENS)))
"""


def test_blocks_of_one_process_serve_another(run: Run) -> None:
    assert run(SERVE, 1) == ["0", str(FULL)]
    assert run(SERVE, 1) == [str(FULL), str(FULL)]


def test_the_end_of_a_process_stores_what_is_queued(run: Run) -> None:
    """The exit handler drains before the client is closed, which is before Python finalises."""
    code = """
from support.spawned import TOKENS, Request, engine_of
engine = engine_of(tp=2)
print(engine.run(Request(1, TOKENS)))  # and no drain
"""
    assert run(code, 2) == ["0"]
    assert run(SERVE, 2) == [str(FULL), str(FULL)]


def test_dropped_and_made_again_in_one_process(run: Run) -> None:
    code = """
import gc
from support.spawned import TOKENS, Request, engine_of
from mooncake_trtllm._stores import stores
for _ in range(2):
    engine, other = engine_of(tp=2), engine_of()
    assert len(stores._shared) == 1  # one client for both
    print(engine.serve(Request(1, TOKENS)))
    del engine, other
    gc.collect()
    assert stores._shared == {}
"""
    assert run(code, 3) == ["0", str(FULL)]


def test_callbacks_leave_the_gil(run: Run) -> None:
    """B74 on the real binding: a thread goes on ticking while blocks are saved and loaded."""
    code = """
import threading
from support.spawned import TOKENS, Request, engine_of
engine, reader = engine_of(), engine_of()  # the second has nothing in memory
stop, ticks = threading.Event(), [0]
def tick():
    while not stop.wait(0.0005):
        ticks[0] += 1
ticker = threading.Thread(target=tick)
ticker.start()
for number in range(30):
    engine.serve(Request(number, [number, *TOKENS]))
    assert reader.serve(Request(100 + number, [number, *TOKENS])) > 0
stop.set()
ticker.join()
print(ticks[0] > 30)
"""
    assert run(code, 4) == ["True"]


def test_leases_are_renewed_as_long_as_a_scheduler_lives(run: Run) -> None:
    """By a thread of its own; staged promises have none, since they need no lease."""
    code = """
from pathlib import Path
from support.spawned import TOKENS, Request, engine_of

def threads():
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    return names.count("kvc-leases")

engine = engine_of(tp=2)
engine.serve(Request(1, TOKENS))
print(threads())
engine.close()
print(threads())
"""
    assert run(code, 5, MC_PROMISE="leased") == ["1", "0"]
    assert run(code, 6, MC_PROMISE="staged") == ["0", "0"]
