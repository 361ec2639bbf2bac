"""Reuse through the classes over real pools: what must hit, bit-exact, and what must miss.

Whatever the connector loads is compared with what the oracle says, byte by byte, by Engine.run().
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.engine import Engine, Request, Shape, make_model

from mooncake_trtllm import KvConnectorConfigError, KvConnectorLoadError

MakeEngine = Callable[..., Engine]
TOKENS = [int(t) for t in np.random.default_rng(7).integers(0, 32000, 61)]
FULL = 60 // 8
_ids = itertools.count(1)


def request(tokens: list[int] | None = None, identity: str = "", **extra: Any) -> Request:
    return Request(next(_ids), list(TOKENS if tokens is None else tokens), extra, identity)


# What must hit ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn", "int8", "float32"])
@pytest.mark.parametrize("tp", [1, 2])
def test_blocks_come_back_bit_exact(make_engine: MakeEngine, dtype: str, tp: int) -> None:
    shape = Shape(dtype=dtype)
    first, second = (make_engine(shape, tp=tp) for _ in range(2))
    assert first.serve(request()) == 0
    assert second.serve(request()) == FULL
    for worker in second.workers:
        stats = worker.stats()
        assert stats["blocks_loaded"] == FULL
        assert stats["bytes_loaded"] == FULL * second.pools[0].bytes.shape[1]
        assert stats["loads_missing"] == stats["rejected_checksum"] == 0


def test_special_values_are_bytes_like_others(make_engine: MakeEngine) -> None:
    """NaNs with a payload, infinities and negative zeros survive."""
    engine = make_engine(Shape(dtype="float16"))
    one = request()
    _, pages = engine.start(one)
    meta = engine.plan(one, 0, pages)
    engine.worker.bind_connector_meta(meta)
    engine.worker.start_load_kv(None)
    patterns = np.array([0x7E01, 0xFFFF, 0x7C00, 0xFC00, 0x8000, 0x0001], np.uint16)
    values = engine.pools[0].bytes.view(np.uint16)
    values[pages] = np.resize(patterns, (len(pages), values.shape[1]))
    saved = engine.pools[0].bytes[pages].copy()
    engine.worker.wait_for_save(None)
    assert engine.drain()
    engine.scheduler.request_finished(one.bound(), pages)

    two = request()
    matched, pages = engine.start(two)
    assert matched == FULL
    engine.worker.bind_connector_meta(engine.plan(two, matched, pages))
    engine.worker.start_load_kv(None)
    assert np.array_equal(engine.pools[0].bytes[pages[:matched]], saved[:matched])


def test_a_longer_prompt_reuses_the_common_prefix(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.serve(request(TOKENS[:33]))
    assert engine.serve(request(TOKENS)) == 4
    assert engine.serve(request(TOKENS)) == FULL
    assert engine.serve(request([*TOKENS[:20], 5, *TOKENS[21:]])) == 2


def test_one_prompt_token_is_always_left(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.serve(request(TOKENS[:48]))
    assert engine.lookup(request(TOKENS[:48])) == 5
    assert engine.lookup(request(TOKENS[:49])) == 6
    assert engine.lookup(request(TOKENS[:8])) == 0
    assert engine.lookup(request(TOKENS[:1])) == 0


def test_the_local_match_is_counted_off(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.serve(request())
    assert engine.lookup(request(), computed=16) == FULL - 2
    assert engine.lookup(request(), computed=56) == 0
    assert engine.lookup(request(), computed=17) == 0
    assert engine.scheduler.stats()["lookups_unaligned"] == 1


def test_an_instance_that_comes_later_hits(make_engine: MakeEngine) -> None:
    """The memory store outlives its connectors."""
    first = make_engine()
    first.serve(request())
    first.close()
    assert make_engine().serve(request()) == FULL


def test_hub_names_are_found_in_the_cache(
    make_engine: MakeEngine, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hub = tmp_path / "hub"
    cached = hub / "models--org--name"
    revision = "0123456789abcdef0123456789abcdef01234567"
    make_model(cached / "snapshots" / revision, Shape())
    environment.setenv("HF_HUB_CACHE", str(hub))
    engine = make_engine(model="org/name")
    engine.serve(request())
    assert make_engine(model=cached / "snapshots" / revision).lookup(request()) == FULL
    # With a second revision it is open which one the runtime has loaded.
    make_model(cached / "snapshots" / revision[::-1], Shape())
    with pytest.raises(KvConnectorConfigError, match="MC_MODEL_REVISION"):
        make_engine(model="org/name")


def test_a_copy_of_the_model_elsewhere_hits(make_engine: MakeEngine, tmp_path: Path) -> None:
    original = make_model(tmp_path / "here", Shape())
    shutil.copytree(original, tmp_path / "there" / "other-name")
    make_engine(model=original).serve(request())
    assert make_engine(model=tmp_path / "there" / "other-name").lookup(request()) == FULL


# What must miss ---------------------------------------------------------------------------------

SCOPES: dict[str, dict[str, Any]] = {
    "none": {},
    "empty": {"cache_salt": ""},
    "a": {"cache_salt": "a"},
    "b": {"cache_salt": "b"},
    "text 5": {"cache_salt": "5"},
    "number 5": {"cache_salt_id": 5},
    "number 0": {"cache_salt_id": 0},
    "lora 1": {"lora_task_id": 1},
    "lora 2": {"lora_task_id": 2},
    "lora 1, salt a": {"lora_task_id": 1, "cache_salt": "a"},
}


def test_scopes_are_disjoint(
    make_engine: MakeEngine, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Equal tokens under other salts and adapters: each scope hits itself and nothing else."""
    adapters = tmp_path / "lora.json"
    adapters.write_text(json.dumps({"1": "sha256:aa", "2": "sha256:bb"}))
    environment.setenv("MC_LORA_IDS", str(adapters))
    engine = make_engine()
    for name, scope in SCOPES.items():
        assert engine.serve(request(identity=name, **scope)) == 0, name
    for name, scope in SCOPES.items():
        assert engine.serve(request(identity=name, **scope)) == FULL, name


def test_an_adapter_is_its_content_not_its_number(
    make_engine: MakeEngine, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    adapters = tmp_path / "lora.json"
    environment.setenv("MC_LORA_IDS", str(adapters))
    adapters.write_text(json.dumps({"1": "sha256:aa"}))
    make_engine().serve(request(lora_task_id=1))
    adapters.write_text(json.dumps({"1": "sha256:bb", "9": "sha256:aa"}))
    engine = make_engine()
    assert engine.lookup(request(lora_task_id=1)) == 0
    assert engine.lookup(request(lora_task_id=9)) == FULL


def test_an_unknown_adapter_bypasses_both_ways(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.serve(request())
    assert engine.serve(request(lora_task_id=1, identity="lora")) == 0
    assert engine.lookup(request(lora_task_id=1)) == 0
    assert engine.worker.stats()["blocks_saved"] == FULL
    assert engine.scheduler.stats()["queries_bypassed"] == 2


OTHERS: dict[str, dict[str, Any]] = {
    "weights": {"model": {"weights_seed": 2}},
    "tokenizer": {"model": {"tokenizer": "two"}},
    "rope": {"model": {"rope_theta": 5e5}},
    "dtype": {"shape": {"dtype": "bfloat16"}},
    "fp8": {"shape": {"dtype": "float8_e4m3fn"}},
    "tokens per block": {"shape": {"tokens_per_block": 16}},
    "layers": {"shape": {"layers": 4}},
    "heads": {"shape": {"heads": 4}},
    "head size": {"shape": {"head_size": 16}},
    "tp": {"engine": {"tp": 2}},
    "backend": {"engine": {"attn_backend": "FLASHINFER"}},
    "expert parallel": {"engine": {"moe_expert_parallel_size": 2}},
    "compute dtype": {"engine": {"dtype": "float32", "cache": {"dtype": "float16"}}},
    "epoch": {"environment": {"MC_KEY_EPOCH": "1"}},
    "revision": {"environment": {"MC_MODEL_REVISION": "r1"}},
}


@pytest.mark.parametrize("name", OTHERS)
def test_b09_other_instances_share_nothing(
    name: str, make_engine: MakeEngine, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One difference alone, of anything that decides bytes: 0 hits each way; none: full hits."""
    other = OTHERS[name]
    base_shape = Shape()
    shape = replace(base_shape, **other.get("shape", {}))
    base_model = make_model(tmp_path / "base", base_shape)
    model = make_model(tmp_path / "other", shape, **other.get("model", {}))

    def base_engine() -> Engine:
        return make_engine(base_shape, model=base_model)

    def other_engine() -> Engine:
        with environment.context() as patch:
            for variable, value in other.get("environment", {}).items():
                patch.setenv(variable, value)
            return make_engine(shape, model=model, **other.get("engine", {}))

    first = base_engine()
    first.serve(request())
    second = other_engine()
    assert second.serve(request(identity=name)) == 0
    assert base_engine().serve(request()) == FULL
    assert other_engine().serve(request(identity=name)) == 60 // shape.tokens_per_block


def test_a_secret_separates(
    make_engine: MakeEngine, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make_engine().serve(request())
    secret = tmp_path / "secret"
    secret.write_text("one")
    environment.setenv("MC_KEY_SECRET_FILE", str(secret))
    engine = make_engine()
    assert engine.serve(request(identity="secret")) == 0
    assert make_engine().serve(request(identity="secret")) == FULL
    secret.write_text("two")
    assert make_engine().lookup(request()) == 0


def test_pools_of_one_configuration_but_another_type(make_engine: MakeEngine) -> None:
    """Arguments that say nothing of the type, pools that do: told apart by the pool."""
    base, other = Shape(dtype="float16"), Shape(dtype="bfloat16")
    first = make_engine(base)
    first.serve(request())
    second = make_engine(other, args=first.args)
    assert second.serve(request(identity="other")) == 0
    assert second.serve(request(identity="other")) == FULL
    assert first.serve(request()) == FULL


def test_a_plan_of_another_keyspace_fails_closed(make_engine: MakeEngine) -> None:
    """A worker refuses to exchange bytes under names that are not its own."""
    ours, theirs = make_engine(), make_engine(attn_backend="FLASHINFER")
    ours.serve(request())
    one = request()
    matched, pages = ours.start(one)
    assert matched == FULL
    theirs.worker.bind_connector_meta(ours.plan(one, matched, pages))
    before = theirs.pools[0].bytes.copy()
    with pytest.raises(KvConnectorLoadError, match="Remedy"):
        theirs.worker.start_load_kv(None)
    assert np.array_equal(theirs.pools[0].bytes, before)
    theirs.worker.wait_for_save(None)
    assert theirs.drain()
    assert theirs.worker.stats()["blocks_saved"] == 0
