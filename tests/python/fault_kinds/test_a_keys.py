"""Section A of the fault log through the classes: what a key must cover."""

from __future__ import annotations

import importlib.util
import itertools
import json
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from support.engine import POISON, Engine, Request, Shape, make_model
from support.stores import key_of_block, memory_of, read, shards, write

from mooncake_trtllm import KvConnectorLoadError, _native

MakeEngine = Callable[..., Engine]
TOKENS = [int(t) for t in np.random.default_rng(41).integers(0, 32000, 61)]
FULL = 60 // 8
ONE = [11, -12, 13, -14, 15, -16, 17, -18]
TWO = [11, -12, 13, -14, 15, -16, 17, 99]
_ids = itertools.count(1)


def request(tokens: list[int] = TOKENS, identity: str = "", **extra: Any) -> Request:
    return Request(next(_ids), list(tokens), extra, identity)


def image(words: list[int], start: int = 0, length: int = 3) -> dict[str, Any]:
    return {
        "multimodal_hashes": [words],
        "multimodal_positions": [start],
        "multimodal_lengths": [length],
    }


@pytest.fixture(name="adapters")
def adapters_fixture(environment: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Writes the file of adapters, which engines made from then on read."""
    path = tmp_path / "lora.json"
    environment.setenv("MC_LORA_IDS", str(path))

    def write_file(**by_number: str) -> None:
        path.write_text(json.dumps({name.strip("_"): text for name, text in by_number.items()}))

    return write_file


def test_b01_another_adapter_never_hits(
    make_engine: MakeEngine, adapters: Callable[..., None]
) -> None:
    """Lookup, load and save make one key; an adapter is its content, not its number."""
    adapters(_1="sha256:aa", _2="sha256:bb")
    engine = make_engine()
    engine.serve(request(identity="aa", lora_task_id=1))
    assert engine.lookup(request(lora_task_id=2)) == 0
    assert engine.lookup(request()) == 0
    assert engine.serve(request(identity="aa", lora_task_id=1)) == FULL
    adapters(_1="sha256:cc", _3="sha256:aa")
    later = make_engine()
    assert later.lookup(request(lora_task_id=1)) == 0
    assert later.serve(request(identity="aa", lora_task_id=3)) == FULL


def scopes() -> Iterator[dict[str, Any]]:
    """Every combination, values that move from field to field and texts cut elsewhere included."""
    loras: list[dict[str, Any]] = [{}, *({"lora_task_id": number} for number in (1, 2, 3))]
    salts: list[dict[str, Any]] = [
        {},
        *({"cache_salt": text} for text in ("", "a", "c", "bc", "X", "5", "sha256:aa")),
        *({"cache_salt_id": number} for number in (0, 5)),
    ]
    images: list[dict[str, Any]] = [{}, image(ONE), image(TWO)]
    for lora, salt, media in itertools.product(loras, salts, images):
        yield {**lora, **salt, **media}


def test_b02_fields_of_a_scope_never_run_together(
    make_engine: MakeEngine, environment: pytest.MonkeyPatch, adapters: Callable[..., None]
) -> None:
    """Identities that differ in any field share no object at all, equal ones share every object."""
    adapters(_1="a", _2="ab", _3="X")
    prompt = TOKENS[:17]
    engines = []
    for revision in ("a", "ab"):
        environment.setenv("MC_MODEL_REVISION", revision)
        engines.append(make_engine())
    stored = 0
    for number, engine in enumerate(engines):
        for scope in scopes():
            assert engine.serve(request(prompt, f"{number} {scope}", **scope)) == 0, scope
            stored += 2 * 2  # two blocks, each a shard and a manifest
            assert len(memory_of(engine).keys()) == stored, scope
    for number, engine in enumerate(engines):
        for scope in scopes():
            assert engine.serve(request(prompt, f"{number} {scope}", **scope)) == 2, scope
    assert len(memory_of(engines[0]).keys()) == stored


def reference() -> ModuleType:
    """The second implementation of keys, which shares no code with the library."""
    name = "golden_reference"
    path = Path(__file__).parents[2] / "golden" / "reference.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("scope", "stated"),
    [
        ({}, {}),
        ({"cache_salt": "tenant"}, {"salt": "tenant"}),
        ({"cache_salt_id": 5}, {"salt": 5}),
        ({"cache_salt_id": -5}, {"salt": -5}),
        ({"lora_task_id": 1, "cache_salt": ""}, {"salt": "", "lora": "sha256:aa"}),
        (image(ONE, 9, 10), {"image": (ONE, 9, 10)}),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_b08_stored_keys_are_those_of_the_reference(
    scope: dict[str, Any],
    stated: dict[str, Any],
    make_engine: MakeEngine,
    environment: pytest.MonkeyPatch,
    adapters: Callable[..., None],
    tmp_path: Path,
) -> None:
    """What arrives in the store is named as another implementation of the page names it."""
    adapters(_1="sha256:aa")
    (tmp_path / "secret").write_text("s3cret")
    environment.setenv("MC_KEY_SECRET_FILE", str(tmp_path / "secret"))
    engine = make_engine(tp=2)
    engine.serve(request(**scope))
    golden = reference()
    values = dict(stated)
    if "image" in values:
        words, start, length = values.pop("image")
        values["media"] = (golden.Media(struct.pack(">8i", *words), start, length),)
    names = golden.block_hashes(golden.Request(tuple(TOKENS), 8, secret=b"s3cret", **values))
    keyspace = bytes.fromhex(shards(engine)[0].split("/")[1])
    expected = {golden.manifest_key(keyspace, name) for name in names}
    expected |= {golden.shard_key(keyspace, name, rank) for name in names for rank in (0, 1)}
    assert set(memory_of(engine).keys()) == expected


def test_b10_new_weights_under_the_old_path_miss(make_engine: MakeEngine, tmp_path: Path) -> None:
    """A model is its content: neither its path nor its name."""
    served = tmp_path / "served"
    for weights in (1, 2):
        folder = make_model(tmp_path / f"weights-{weights}", Shape(), weights_seed=weights)
        if served.is_symlink():
            served.unlink()
        served.symlink_to(folder)
        engine = make_engine(model=served)
        assert engine.serve(request(identity=str(weights))) == 0
        assert engine.serve(request(identity=str(weights))) == FULL


SIZES: dict[str, Callable[[bytes], bytes]] = {
    "one byte": lambda data: data[:1],
    "header alone": lambda data: data[: _native.BLOCK_HEADER_BYTES],
    "one byte less": lambda data: data[:-1],
    "one byte more": lambda data: data + b"\0",
    "twice": lambda data: data + data,
}


@pytest.mark.parametrize("name", SIZES)
def test_b11_a_value_of_another_length_is_counted_and_not_copied(
    name: str, promise: str, make_engine: MakeEngine
) -> None:
    make_engine().serve(request())
    engine = make_engine()
    key = key_of_block(engine, TOKENS, 3)
    write(engine, key, SIZES[name](read(engine, key)))
    victim = request()
    matched, pages = engine.start(victim)
    assert matched == (3 if promise == "staged" else FULL)
    engine.worker.bind_connector_meta(engine.plan(victim, matched, pages))
    if promise == "staged":
        engine.worker.start_load_kv(None)
    else:
        with pytest.raises(KvConnectorLoadError) as caught:
            engine.worker.start_load_kv(None)
        assert caught.value.keys == [key]
    assert engine.worker.stats()["rejected_size"] == 1
    assert (engine.pools[0].bytes[pages[3]] == POISON).all()
    engine.verify(victim, pages[:3])
