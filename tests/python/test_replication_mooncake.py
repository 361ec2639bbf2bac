"""Copies of hot blocks on a real Mooncake Store with two storage processes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.engine import Shape, make_model
from support.processes import clean_environment, conversation
from support.waiting import until

from mooncake_trtllm import _native
from mooncake_trtllm.local_store import LocalStore

pytestmark = pytest.mark.mooncake

HOT = [int(t) for t in np.random.default_rng(51).integers(0, 32000, 61)]
FULL = 60 // 8

# Answers "hot": serve the hot prompt; "cold": serve another one, which is asked for once; "stats".
ENGINE = """
import json, sys
from support.spawned import TOKENS, Request, engine_of
engine = engine_of(tp=2)
for number, line in enumerate(sys.stdin):
    question = line.strip()
    if question == "stats":
        answer = [worker.stats() for worker in engine.workers]
    elif question == "hot":
        answer = engine.serve(Request(number, TOKENS))
    else:
        answer = engine.serve(Request(number, TOKENS[::-1]))
    print(json.dumps(answer), flush=True)
"""


@pytest.fixture(name="store")
def store_fixture() -> Iterator[LocalStore]:
    with LocalStore(segment_bytes=64 << 20, storage_processes=2) as store:
        yield store


@pytest.mark.parametrize("victim", [0, 1])
def test_a_hot_block_outlives_either_storage_process(
    store: LocalStore, tmp_path: Path, victim: int
) -> None:
    environment = clean_environment(
        **store.client_environment(),
        TEST_MODEL=str(make_model(tmp_path / "model", Shape())),
        TEST_TOKENS=json.dumps(HOT),
        MC_BACKEND="mooncake",
        MC_STAGING_BYTES="4MB",
        MC_REPLICATION_HEAT="3",
    )
    with conversation(ENGINE, environment=environment) as say:

        def ask(question: str) -> Any:
            return json.loads(say(question))

        assert ask("cold") == 0
        cold = store.keys()
        assert [ask("hot") for _ in range(2)] == [0, FULL]
        hot = sorted(set(store.keys()) - set(cold))
        assert len(hot) == 3 * FULL, "two shards and a manifest a block"
        assert {len(store.replicas(key)) for key in hot} == {1}, "not hot yet"

        assert ask("hot") == FULL  # The third request within the half life.
        until(
            lambda: [s["blocks_replicated"] for s in ask("stats")] == [FULL, FULL],
            "the copies",
        )
        for key in hot:
            assert len(set(store.replicas(key))) == 2, key
        assert {len(store.replicas(key)) for key in cold} == {1}
        stats = ask("stats")
        assert [s["replications_failed"] + s["replications_dropped"] for s in stats] == [0, 0]

        store.kill_storage_process(store.storage_names[victim])
        assert len(store.segments()) == 2, "the master cannot know yet"
        begin = time.monotonic()
        assert [ask("hot") for _ in range(3)] == [FULL] * 3
        assert time.monotonic() - begin < 8
        until(lambda: len(store.segments()) == 1, "the master to forget the dead one")
        assert [ask("hot") for _ in range(3)] == [FULL] * 3
        stats = ask("stats")
        assert [s["loads_missing"] + s["loads_unavailable"] for s in stats] == [0, 0]
        assert {len(store.replicas(key)) for key in hot} == {1}


def test_a_put_stores_the_copies_that_it_is_told_to(store: LocalStore) -> None:
    client = _native.open_mooncake_store(
        store.master_address, admin=store.client_environment()["MC_REPLICATION_ADMIN"]
    )
    try:
        assert client.capabilities()["max_replicas"] > 1
        assert client.put([("one", b"x" * 1000)]) == [("ok", "unknown")]
        assert client.put([("two", b"y" * 1000)], replicas=2) == [("ok", "unknown")]
        assert client.put([("three", b"z" * 1000)], replicas=3) == [("ok", "unknown")]
        counts = [len(set(store.replicas(key))) for key in ("one", "two", "three", "none")]
        assert counts == [1, 2, 2, 0], "as many as there are places"

        # A put of an object that is there adds nothing; a copy task does.
        assert client.put([("one", b"x" * 1000)], replicas=2) == [("ok", "unknown")]
        assert len(store.replicas("one")) == 1
        assert client.replicate(["one", "two", "none"], 2) == ["ok", "ok", "miss"]
        assert len(set(store.replicas("one"))) == 2
        assert client.get(["one"], 1000) == [("ok", b"x" * 1000)]
        assert client.replicate(["one"], 3, 0.6) == ["back off"], "there is no third place"
        assert client.remove(["one"]) == ["ok"]
        assert client.exists(["one"]) == ["miss"]
    finally:
        client.close(2.0)
