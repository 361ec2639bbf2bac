"""Altered, truncated, foreign and lost blocks: counted, never served, healed by the next save."""

from __future__ import annotations

import itertools
import pickle
import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.engine import POISON, Engine, Request
from support.stores import alter, key_of_block, memory_of, read, shards, write

from mooncake_trtllm import KvConnectorError, KvConnectorLoadError, _native

MakeEngine = Callable[..., Engine]
TOKENS = [int(t) for t in np.random.default_rng(11).integers(0, 32000, 61)]
OTHER = [int(t) for t in np.random.default_rng(12).integers(0, 32000, 61)]
FULL = 60 // 8
HEADER = _native.BLOCK_HEADER_BYTES
_ids = itertools.count(1)


def request(tokens: list[int] = TOKENS) -> Request:
    return Request(next(_ids), list(tokens))


def flip(position: int) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        changed = bytearray(data)
        changed[position] ^= 0x01
        return bytes(changed)

    return change


DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "first payload byte": (flip(HEADER), "rejected_checksum"),
    "last payload byte": (flip(-1), "rejected_checksum"),
    "middle of the payload": (flip(HEADER + 100), "rejected_checksum"),
    "magic": (flip(0), "rejected_header"),
    "truncated by one byte": (lambda data: data[:-1], "rejected_size"),
    "header alone": (lambda data: data[:HEADER], "rejected_size"),
    "half a header": (lambda data: data[:17], "rejected_size"),
}


def rejected(worker: Any) -> dict[str, int]:
    return {
        name: value
        for name, value in worker.stats().items()
        if name.startswith("rejected_") and value
    }


@pytest.mark.usefixtures("leased")
@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_block_is_never_served_and_heals(name: str, make_engine: MakeEngine) -> None:
    change, counter = DAMAGE[name]
    engine = make_engine()
    engine.serve(request())
    key = key_of_block(engine, TOKENS, 3)
    assert key in shards(engine)
    alter(engine, key, change)

    victim = request()
    with pytest.raises(KvConnectorLoadError) as caught:
        engine.run(victim)
    assert caught.value.request_ids == [victim.request_id]
    assert caught.value.keys == [key]
    message = str(caught.value)
    assert [word for word in (key, str(victim.request_id), "Remedy") if word not in message] == []
    assert rejected(engine.worker) == {counter: 1}

    # The retry gets what is sound, computes the rest, and with it the block is whole again.
    assert engine.serve(request()) == 3
    assert engine.serve(request()) == FULL
    assert rejected(engine.worker) == {counter: 1}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_block_is_not_promised_and_heals(name: str, make_engine: MakeEngine) -> None:
    change, counter = DAMAGE[name]
    make_engine().serve(request())
    engine = make_engine()
    alter(engine, key_of_block(engine, TOKENS, 3), change)
    assert engine.serve(request()) == 3
    assert rejected(engine.worker) == {counter: 1}
    assert engine.scheduler.stats()["blocks_missed_rejected"] == FULL - 3
    assert "rejected on rank 0" in engine.scheduler.explain()[-1]
    assert engine.serve(request()) == FULL
    assert make_engine().serve(request()) == FULL
    assert rejected(engine.worker) == {counter: 1}


Refuse = Callable[..., None]


@pytest.fixture(name="refuse", params=["staged", "leased"])
def refuse_fixture(request: pytest.FixtureRequest, environment: pytest.MonkeyPatch) -> Refuse:
    """Checks that an engine, which has not seen it yet, refuses the first block of TOKENS."""
    environment.setenv("MC_PROMISE", request.param)

    def refuse(engine: Engine, reason: str = "Remedy") -> None:
        if request.param == "staged":
            assert engine.lookup(Request(next(_ids), TOKENS)) == 0
            assert "rejected on rank 0" in engine.scheduler.explain()[-1]
            engine.run(Request(next(_ids), [1]))  # the next query has a budget of its own
            return
        with pytest.raises(KvConnectorLoadError, match=reason):
            engine.run(Request(next(_ids), TOKENS))

    return refuse


def test_every_byte_of_the_header_is_checked(refuse: Refuse, make_engine: MakeEngine) -> None:
    make_engine().serve(request())
    engine = make_engine()
    key = key_of_block(engine, TOKENS, 0)
    sound = read(engine, key)
    for position in range(HEADER):
        write(engine, key, flip(position)(sound))
        refuse(engine)
        write(engine, key, sound)
    assert sum(rejected(engine.worker).values()) == HEADER
    assert engine.run(request()) == FULL


def test_a_block_of_a_later_version_is_refused(refuse: Refuse, make_engine: MakeEngine) -> None:
    make_engine().serve(request())
    engine = make_engine()
    key = key_of_block(engine, TOKENS, 0)
    sound = read(engine, key)
    versions = [at for at in range(4, 16, 2) if struct.unpack_from("<H", sound, at) == (1,)]
    later = bytearray(sound)
    struct.pack_into("<H", later, versions[0], 2)
    write(engine, key, bytes(later))
    refuse(engine, "version")
    assert rejected(engine.worker) == {"rejected_header": 1}


def test_a_sound_block_under_another_name_is_refused(
    refuse: Refuse, make_engine: MakeEngine
) -> None:
    """Foreign bytes with a good checksum: another block, another rank, another keyspace."""
    for writer in (make_engine(tp=2), make_engine(tp=2, attn_backend="FLASHINFER")):
        writer.serve(request())
    engine = make_engine(tp=2)
    own = set(shards(engine))
    first = key_of_block(engine, TOKENS, 0)
    sound = read(engine, first)
    foreign_first = next(
        key for key in sorted(own) if key.split("/")[2:] == first.split("/")[2:] and key != first
    )
    for wrong, counter in (
        (read(engine, key_of_block(engine, TOKENS, 1)), "rejected_header"),
        (read(engine, first.removesuffix("r0") + "r1"), "rejected_header"),
        (read(engine, foreign_first), "rejected_layout"),
    ):
        write(engine, first, wrong)
        before = rejected(engine.workers[0]).get(counter, 0)
        refuse(engine)
        assert rejected(engine.workers[0])[counter] == before + 1
        write(engine, first, sound)
    assert engine.run(request()) == FULL


@pytest.mark.usefixtures("leased")
def test_a_lost_block_fails_closed_and_heals(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.serve(request())
    victim = request()
    matched, pages = engine.start(victim)
    assert matched == FULL
    key = key_of_block(engine, TOKENS, 6)
    memory_of(engine).remove([key])
    engine.worker.bind_connector_meta(engine.plan(victim, matched, pages))
    with pytest.raises(KvConnectorLoadError) as caught:
        engine.worker.start_load_kv(None)
    assert (caught.value.request_ids, caught.value.keys) == ([victim.request_id], [key])
    assert engine.worker.stats()["loads_missing"] == 1
    engine.verify(victim, pages[:6])  # all others of the step are in place
    engine.scheduler.request_finished(victim.bound(), pages)
    assert engine.serve(request()) == 6
    assert engine.serve(request()) == FULL


@pytest.mark.usefixtures("leased")
def test_the_other_requests_of_a_step_are_loaded_first(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.serve(request(TOKENS))
    engine.serve(request(OTHER))
    alter(engine, key_of_block(engine, TOKENS, 0), flip(-1))
    batch = [request(TOKENS), request(OTHER)]
    started = [engine.start(one) for one in batch]
    reports = [
        SimpleNamespace(
            request_id=one.request_id,
            new_tokens=one.tokens,
            new_block_ids=pages,
            computed_position=0,
            num_scheduled_tokens=5,
        )
        for one, (_, pages) in zip(batch, started, strict=True)
    ]
    output = SimpleNamespace(new_requests=reports, cached_requests=[])
    engine.worker.bind_connector_meta(engine.scheduler.build_connector_meta(output))
    with pytest.raises(KvConnectorLoadError) as caught:
        engine.worker.start_load_kv(None)
    assert caught.value.request_ids == [batch[0].request_id]
    engine.verify(batch[1], started[1][1][:FULL])
    broken_page = engine.pools[0].bytes[started[0][1][0]]
    assert (broken_page == POISON).all()  # not a byte of it arrived


def test_a_block_that_one_rank_lacks_ends_the_promise(make_engine: MakeEngine) -> None:
    make_engine(tp=2).serve(request())
    engine = make_engine(tp=2)
    memory_of(engine).remove([key_of_block(engine, TOKENS, 4, rank=1)])
    assert engine.lookup(request()) == 4
    assert engine.scheduler.stats()["lookups_shard_lost"] == 1
    assert engine.serve(request()) == 4  # repairs it
    assert make_engine(tp=2).serve(request()) == FULL


def test_the_error_pickles() -> None:
    error = KvConnectorLoadError("gone", request_ids=[3], keys=["k"])
    copy = pickle.loads(pickle.dumps(error))
    assert isinstance(copy, KvConnectorError)
    assert (type(copy), str(copy), copy.request_ids, copy.keys) == (
        KvConnectorLoadError,
        "gone",
        [3],
        ["k"],
    )
