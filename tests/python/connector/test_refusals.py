"""Start-up: what the runtime's configuration may be, and what is refused with value and remedy."""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.engine import Engine, HostTensor, Shape, llm_args, make_model
from support.ids import readable

from mooncake_trtllm import (
    KvConnectorConfigError,
    KvConnectorStoreError,
    MooncakeKvCacheConnectorScheduler,
    MooncakeKvCacheConnectorWorker,
    _native,
)
from mooncake_trtllm._log import log

MakeEngine = Callable[..., Engine]
BOTH = (MooncakeKvCacheConnectorScheduler, MooncakeKvCacheConnectorWorker)


@pytest.fixture(name="model")
def model_fixture(environment: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    return make_model(tmp_path / "model", Shape())


def refused(args: Any, words: list[str]) -> None:
    """Both classes refuse, with a message that says all of this."""
    for cls in BOTH:
        with pytest.raises(KvConnectorConfigError) as caught:
            cls(args)
        message = str(caught.value)
        assert [word for word in [*words, "Remedy"] if word not in message] == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pipeline_parallel_size": 2}, ["pipeline_parallel_size=2"]),
        ({"context_parallel_size": 4}, ["context_parallel_size=4"]),
        ({"enable_attention_dp": True}, ["enable_attention_dp=True"]),
        ({"max_beam_width": 4}, ["max_beam_width=4"]),
        ({"speculative_config": SimpleNamespace()}, ["speculative_config"]),
        ({"sparse_attention_config": SimpleNamespace()}, ["sparse_attention_config"]),
        ({"cache": {"enable_block_reuse": False}}, ["enable_block_reuse=False"]),
        ({"cache": {"host_cache_size": 1 << 30}}, ["host_cache_size=1073741824"]),
        ({"cache": {"disk_cache_size": 1 << 30}}, ["disk_cache_size=1073741824"]),
        ({"cache": {"use_kv_cache_manager_v2": True}}, ["use_kv_cache_manager_v2", "V1"]),
        ({"cache": {"dtype": "nvfp4"}}, ["NVFP4"]),
        ({"quant_config": SimpleNamespace(kv_cache_quant_algo="NVFP4")}, ["NVFP4"]),
        ({"cache": {"max_attention_window": [512, 4096]}}, ["max_attention_window", "pools"]),
        ({"cache": {"max_attention_window": [512]}}, ["max_attention_window", "window"]),
        ({"cache": {"tokens_per_block": 0}}, ["tokens_per_block=0"]),
        ({"cache": {"tokens_per_block": "many"}}, ["tokens_per_block='many'"]),
        ({"tensor_parallel_size": 2}, ["tensor_parallel_size is 2"]),
        ({"model": "no/such-model"}, ["no/such-model", "MC_MODEL_REVISION"]),
        ({"model": ""}, ["MC_MODEL_REVISION"]),
        # Of another type, or out of all bounds.
        ({"max_beam_width": "2"}, ["max_beam_width=2"]),
        ({"max_beam_width": [2]}, ["max_beam_width=[2]"]),
        ({"max_beam_width": 1.5}, ["max_beam_width=1.5"]),
        ({"tensor_parallel_size": float("inf")}, ["tensor_parallel_size=inf"]),
        ({"tensor_parallel_size": 1.5}, ["tensor_parallel_size=1.5"]),
        ({"tensor_parallel_size": True}, ["tensor_parallel_size=True"]),
        ({"tensor_parallel_size": 1 << 40}, ["tensor_parallel_size=1099511627776"]),
        ({"moe_expert_parallel_size": "x"}, ["moe_expert_parallel_size='x'"]),
        (
            {"moe_expert_parallel_size": 1 << 70},
            ["moe_expert_parallel_size=1180591620717411303424"],
        ),
        ({"max_seq_len": "long"}, ["max_seq_len='long'"]),
        ({"cache": {"tokens_per_block": 8.5}}, ["kv_cache_config.tokens_per_block=8.5"]),
        ({"cache": {"tokens_per_block": 1 << 33}}, ["kv_cache_config.tokens_per_block=8589934592"]),
        ({"cache": {"host_cache_size": "1GB"}}, ["kv_cache_config.host_cache_size='1GB'"]),
        ({"cache": {"disk_cache_size": [1]}}, ["kv_cache_config.disk_cache_size=[1]"]),
        ({"cache": {"enable_block_reuse": 0}}, ["enable_block_reuse=0"]),
        ({"cache": {"max_attention_window": "x"}}, ["max_attention_window='x'"]),
        ({"cache": {"max_attention_window": ["x"]}}, ["max_attention_window=['x']"]),
        ({"cache": {"max_attention_window": 5.5}}, ["max_attention_window=5.5"]),
        ({"cache": {"max_attention_window": object()}}, ["max_attention_window=<object"]),
        ({"cache": {"dtype": "\udc00"}}, ["kv_cache_config.dtype="]),
        ({"dtype": "\udc00"}, ["dtype="]),
        ({"attn_backend": "\udcff"}, ["attn_backend="]),
        ({"quant_config": SimpleNamespace(quant_algo="\udcff")}, ["quantisation"]),
        ({"model": "a" * 5000}, ["MC_MODEL_REVISION"]),
        ({"model": "a\0b"}, ["MC_MODEL_REVISION"]),
        ({"model": "~nobody-of-this-name/x"}, ["MC_MODEL_REVISION"]),
        ({"model": 7}, ["model='7'", "MC_MODEL_REVISION"]),
    ],
    ids=lambda value: readable(value)[:60] if isinstance(value, dict) else "",
)
def test_refused(changes: dict[str, Any], words: list[str], model: Path) -> None:
    refused(llm_args(**{"model": model, "shape": Shape(), **changes}), words)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"layer_types": ["full_attention", "linear_attention", "mamba"]}, ["linear_attention"]),
        ({"hybrid_override_pattern": "M-M*"}, ["hybrid_override_pattern"]),
    ],
)
def test_recurrent_layers_are_refused(
    config: dict[str, Any], words: list[str], environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = make_model(tmp_path / "model", Shape(), **config)
    refused(llm_args(model, Shape()), words)


@pytest.mark.parametrize("name", ["config.json", "hf_quant_config.json"])
@pytest.mark.parametrize("text", ["{", "", "\ufeff{}", "[" * 100_000, '{"a": %s}' % ("9" * 5000)])
def test_a_broken_model_folder_is_refused(
    text: str, name: str, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = make_model(tmp_path / "model", Shape())
    (model / name).write_text(text)
    refused(llm_args(model, Shape()), [name])


def test_a_folder_whose_path_is_no_text_is_refused(
    environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = make_model(tmp_path / os.fsdecode(b"M\xfcnchen"), Shape())
    refused(llm_args(model, Shape()), ["UTF-8", "rename"])


class Unreadable:
    """Arguments of a version that raises what nobody expects."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no {name} today")


def test_arguments_that_raise_are_refused(environment: pytest.MonkeyPatch) -> None:
    refused(Unreadable(), ["Unreadable", "RuntimeError", "today"])


@pytest.mark.parametrize(
    "changes",
    [
        {"cuda_graph_config": SimpleNamespace(batch_sizes=[1, 2])},
        {"disable_overlap_scheduler": False},
        {"torch_compile_config": SimpleNamespace()},
        {"cache_transceiver_config": SimpleNamespace(backend="UCX")},
        {"lora_config": SimpleNamespace()},
        {"enable_chunked_prefill": True},
        {"scheduler_config": SimpleNamespace(capacity_scheduler_policy="MAX_UTILIZATION")},
        {"cache": {"max_attention_window": [4096], "host_cache_size": 0}},
        {"cache": {"use_kv_cache_manager_v2": False}},
        {"cache": {"use_kv_cache_manager_v2": "auto"}},
        {"max_seq_len": 256, "cache": {"max_attention_window": [512, 1024]}},
        {"moe_expert_parallel_size": -1},
        {"max_beam_width": None},
    ],
    ids=str,
)
def test_served(changes: dict[str, Any], make_engine: MakeEngine) -> None:
    """The runtime's defaults, and features that need nothing of the connector."""
    make_engine(**changes)


def test_arguments_that_lack_almost_everything(
    environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = make_model(tmp_path / "model", Shape(tokens_per_block=32))
    for args in (SimpleNamespace(model=model), SimpleNamespace(model=str(model), dtype=None)):
        worker = MooncakeKvCacheConnectorWorker(args)
        worker.register_kv_caches(HostTensor(Shape(tokens_per_block=32).pool(1), "float16"))
        worker.close()


def test_partial_reuse_is_turned_off_and_told_once(
    make_engine: MakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    log._told.clear()
    with caplog.at_level(logging.WARNING, "mooncake_trtllm"):
        engines = [make_engine() for _ in range(2)]
    assert [e.args.kv_cache_config.enable_partial_reuse for e in engines] == [False, False]
    assert len([r for r in caplog.records if "enable_partial_reuse" in r.getMessage()]) == 1


def test_partial_reuse_that_cannot_be_turned_off_is_told(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Frozen(SimpleNamespace):
        def __setattr__(self, name: str, value: Any) -> None:
            raise TypeError("frozen")

    log._told.clear()
    args = llm_args(model, Shape())
    args.kv_cache_config = Frozen(**vars(args.kv_cache_config))
    with caplog.at_level(logging.WARNING, "mooncake_trtllm"):
        MooncakeKvCacheConnectorScheduler(args).close()
    assert "Remedy: set it to false" in caplog.text


# The pool against the configuration --------------------------------------------------------------


def worker_for(model: Path, shape: Shape, **changes: Any) -> MooncakeKvCacheConnectorWorker:
    return MooncakeKvCacheConnectorWorker(llm_args(model, shape, **changes))


@pytest.mark.parametrize(
    ("pool", "words"),
    [
        ((64, 4, 2, 128), ["4 layers", "num_hidden_layers=3"]),
        ((64, 3, 2, 256), ["256 elements", "make 128", "16 tokens a block", "override"]),
        ((64, 3, 2, 64), ["64 elements", "make 128", "4 tokens a block"]),
        ((64, 3, 2, 120), ["120 elements", "make 128", "another model"]),
        ((64, 3, 3, 128), ["[64, 3, 3, 128]", "Remedy"]),
        ((64, 3, 2, 129), ["129"]),
    ],
)
def test_a_pool_that_does_not_fit(pool: tuple[int, ...], words: list[str], model: Path) -> None:
    worker = worker_for(model, Shape())
    with pytest.raises(KvConnectorConfigError) as caught:
        worker.register_kv_caches(HostTensor(pool, "float16"))
    assert [word for word in words if word not in str(caught.value)] == []
    worker.register_kv_caches(HostTensor(Shape().pool(1), "float16"))  # the right one still goes
    worker.close()


def test_fewer_heads_than_ranks(make_engine: MakeEngine) -> None:
    """Heads are replicated: each of four ranks holds one of two."""
    shape = Shape(heads=2)
    engine = make_engine(shape, tp=4)
    assert engine.pools[0].shape[3] == 8 * 8


def test_a_latent_cache(make_engine: MakeEngine, tmp_path: Path) -> None:
    shape = Shape(heads=1, head_size=24, kv_factor=1)
    model = make_model(tmp_path / "mla", shape, kv_lora_rank=16, qk_rope_head_dim=8)
    make_engine(shape, model=model)
    worker = worker_for(model, shape)
    with pytest.raises(KvConnectorConfigError, match="16 tokens a block"):
        worker.register_kv_caches(HostTensor((8, 3, 1, 24 * 16), "float16"))


def test_bytes_of_another_type(make_engine: MakeEngine, model: Path) -> None:
    """A pool may hold any type as plain bytes; the configuration tells which."""
    shape = Shape()
    worker = worker_for(model, shape)
    worker.register_kv_caches(np.zeros((8, 3, 2, 256), np.uint8))
    worker.close()
    worker = worker_for(model, shape, cache={"dtype": "bfloat16"})
    worker.register_kv_caches(np.zeros((8, 3, 2, 128), np.uint16))
    worker.close()
    worker = worker_for(model, shape, cache={"dtype": "bfloat16"})
    worker.register_kv_caches(np.zeros((8, 3, 2, 128), np.dtype("V2")))
    worker.close()


def test_a_stated_type_must_be_the_pools(model: Path) -> None:
    worker = worker_for(model, Shape(), cache={"dtype": "fp8"})
    with pytest.raises(KvConnectorConfigError) as caught:
        worker.register_kv_caches(HostTensor(Shape().pool(1), "float16"))
    message = str(caught.value)
    assert "float16" in message
    assert "fp8_e4m3" in message
    assert "Remedy" in message


def test_a_derived_type_gives_way_to_the_pools(model: Path) -> None:
    worker = worker_for(model, Shape(), dtype="float16")
    worker.register_kv_caches(HostTensor(Shape(dtype="bfloat16").pool(1), "bfloat16"))
    worker.close()


def test_a_second_pool_is_refused(make_engine: MakeEngine) -> None:
    engine = make_engine()
    with pytest.raises(KvConnectorConfigError, match="already"):
        engine.worker.register_kv_caches(engine.pools[0])


def test_the_layout_of_the_v2_manager_is_refused(make_engine: MakeEngine) -> None:
    engine = make_engine(register=False)
    layout = SimpleNamespace(groups=(object(), object()), tokens_per_block=8)
    with pytest.raises(KvConnectorConfigError, match=r"2 layer groups.*use_kv_cache_manager_v2"):
        engine.worker.register_kv_cache_layout(layout)


def test_a_pool_that_does_not_fit_the_staging_memory(
    make_engine: MakeEngine, environment: pytest.MonkeyPatch
) -> None:
    environment.setenv("MC_STAGING_BYTES", "4096")
    with pytest.raises(KvConnectorConfigError) as raised:
        make_engine(Shape(layers=16, head_size=32))
    message = str(raised.value)
    assert "MC_STAGING_BYTES is 4096: a page of this cache has 32768 bytes" in message
    assert not {"MC_SAVE_QUEUE_BYTES", "MC_MEMORY_BYTES"} & set(re.findall(r"MC_\w+", message))
    (least,) = re.findall(r"raise it to at least (\d+)", message)
    environment.setenv("MC_STAGING_BYTES", least)
    make_engine(Shape(layers=16, head_size=32))
    environment.setenv("MC_SAVE_QUEUE_BYTES", "4096")
    with pytest.raises(KvConnectorConfigError, match=r"MC_SAVE_QUEUE_BYTES is 4096: .* 32768 b"):
        make_engine(Shape(layers=16, head_size=32))


def test_staging_memory_that_the_host_does_not_have(
    make_engine: MakeEngine, environment: pytest.MonkeyPatch
) -> None:
    class Worker:
        """No amount is too much for every host."""

        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def register_layout(self, *_: Any) -> None:
            raise KvConnectorStoreError("no memory")

    environment.setattr(_native, "Worker", Worker)
    environment.setenv("MC_STAGING_BYTES", "64MB")
    remedy = r"no memory\. Remedy: lower MC_STAGING_BYTES \(now 67108864\).* each rank$"
    with pytest.raises(KvConnectorConfigError, match=remedy):
        make_engine()


def test_a_block_that_does_not_fit_the_store(
    make_engine: MakeEngine, environment: pytest.MonkeyPatch
) -> None:
    environment.setenv("MC_MEMORY_BYTES", "1048577")
    environment.setenv("MC_STAGING_BYTES", "64MB")
    with pytest.raises(
        KvConnectorConfigError, match=r"takes at most.*MC_MEMORY_BYTES \(now 1048577"
    ):
        make_engine(Shape(layers=64, heads=32, head_size=64))


def test_a_store_that_cannot_be_reached(model: Path, environment: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    environment.setenv("MC_BACKEND", "mooncake")
    environment.setenv("MOONCAKE_MASTER", address)
    for cls in BOTH:
        with pytest.raises(KvConnectorStoreError) as caught:
            cls(llm_args(model, Shape()))
        assert [w for w in (address, "Remedy") if w not in str(caught.value)] == []
