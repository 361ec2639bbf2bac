"""A small engine around the connector's classes: real pools, one request at a time.

Every page has bytes of its own, computed from what decides KV, so that a block that comes back
under the wrong name or with a wrong byte shows.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    from mooncake_trtllm import MooncakeKvCacheConnectorWorker

POISON = 0xDB
DRAIN_S = 20.0
MEET_S = 20.0
WARM_UP_ID = 1 << 40
_ITEM_SIZES = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "int8": 1, "uint8": 1}


@dataclass(frozen=True)
class Shape:
    """Geometry of a pool, over all ranks."""

    layers: int = 3
    heads: int = 2
    head_size: int = 8
    tokens_per_block: int = 8
    dtype: str = "float16"
    kv_factor: int = 2
    blocks: int = 64
    replicated: bool = False
    """All ranks hold the same bytes."""

    def pool(self, tp: int) -> tuple[int, int, int, int]:
        """Shape of one rank's pool."""
        heads = -(-self.heads // tp)
        elements = heads * self.head_size * self.tokens_per_block
        return self.blocks, self.layers, self.kv_factor, elements


class HostTensor:
    """What a torch tensor in host memory offers, over numpy's bytes."""

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        self.shape = shape
        self.dtype = f"torch.{dtype}"
        self.device = SimpleNamespace(type="cpu", index=None)
        self._item = _ITEM_SIZES[dtype]
        self.bytes = np.full((shape[0], int(np.prod(shape[1:])) * self._item), POISON, np.uint8)

    def data_ptr(self) -> int:
        """Address of the first byte."""
        return int(self.bytes.ctypes.data)

    def element_size(self) -> int:
        """Bytes of an element."""
        return self._item

    def is_contiguous(self) -> bool:
        """Always."""
        return True


@dataclass
class Request:
    """What a test says of a request; extra attributes are given to the connector as they are."""

    request_id: int
    tokens: list[int]
    extra: dict[str, Any] = field(default_factory=dict)
    # What besides tokens decides the KV, for the oracle: of all blocks, or told for each.
    identity: str | Callable[[int], str] = ""

    def identity_of(self, block: int) -> str:
        """What besides tokens decides the KV of a block."""
        return self.identity(block) if callable(self.identity) else self.identity

    def bound(self) -> SimpleNamespace:
        """The object that the connector gets."""
        return SimpleNamespace(
            request_id=self.request_id,
            prompt_len=len(self.tokens),
            get_tokens=lambda beam: list(self.tokens) if beam == 0 else [],
            is_dummy_request=False,
            is_generation_only_request=False,
            **self.extra,
        )


def make_model(
    folder: Path, shape: Shape, *, weights_seed: int = 1, tokenizer: str = "one", **config: Any
) -> Path:
    """A model folder with weights, a tokenizer and a configuration that fits the shape."""
    folder.mkdir(parents=True)
    values = {
        "model_type": "llama",
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads,
        "head_dim": shape.head_size,
        "torch_dtype": shape.dtype if shape.dtype in ("float16", "bfloat16") else "bfloat16",
        "max_position_embeddings": 4096,
        **config,
    }
    (folder / "config.json").write_text(json.dumps(values))
    (folder / "tokenizer.json").write_text(json.dumps({"name": tokenizer}))
    weights = np.random.default_rng(weights_seed).integers(0, 256, 4096, np.uint8).tobytes()
    header = json.dumps({"w": {"dtype": "U8", "shape": [4096], "data_offsets": [0, 4096]}})
    head = header.encode()
    (folder / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + weights)
    return folder


def llm_args(model: object, shape: Shape, tp: int = 1, **changes: Any) -> SimpleNamespace:
    """The runtime's arguments with its defaults."""
    cache = {
        "tokens_per_block": shape.tokens_per_block,
        "dtype": "auto",
        "enable_block_reuse": True,
        "enable_partial_reuse": True,
        "host_cache_size": None,
        "max_attention_window": None,
        **changes.pop("cache", {}),
    }
    values = {
        "model": str(model),
        "dtype": "auto",
        "tensor_parallel_size": tp,
        "pipeline_parallel_size": 1,
        "context_parallel_size": 1,
        "moe_expert_parallel_size": None,
        "enable_attention_dp": False,
        "max_beam_width": 1,
        "max_seq_len": None,
        "attn_backend": "TRTLLM",
        "speculative_config": None,
        "sparse_attention_config": None,
        "quant_config": SimpleNamespace(quant_algo=None, kv_cache_quant_algo=None),
        "kv_cache_config": SimpleNamespace(**cache),
        **changes,
    }
    return SimpleNamespace(**values)


def oracle(identity: str, tokens: Sequence[int], rank: int, size: int) -> np.ndarray[Any, Any]:
    """The bytes of the page of one rank that ends the prefix `tokens`."""
    digest = hashlib.sha256(f"{identity}|{rank}|{list(tokens)}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest, "little")).integers(0, 256, size, np.uint8)


class Engine:
    """One instance: a scheduler and a worker per rank, all in this process."""

    def __init__(
        self,
        shape: Shape,
        model: Path | str,
        environment: pytest.MonkeyPatch,
        *,
        tp: int = 1,
        args: SimpleNamespace | None = None,
        register: bool = True,
        warm_up: bool = True,
        **changes: Any,
    ) -> None:
        # Not at the top: a stand-in of the runtime may have to be in place first.
        from mooncake_trtllm import (
            MooncakeKvCacheConnectorScheduler,
            MooncakeKvCacheConnectorWorker,
        )

        self.shape, self.tp = shape, tp
        self.args = args if args is not None else llm_args(model, shape, tp, **changes)
        self.pools = [HostTensor(shape.pool(tp), shape.dtype) for _ in range(tp)]
        self._free = list(range(shape.blocks))
        self.workers: list[MooncakeKvCacheConnectorWorker] = []
        with environment.context() as patch:
            patch.setenv("MC_WORLD_SIZE", str(tp))
            for rank in range(tp):
                patch.setenv("MC_RANK", str(rank))
                self.workers.append(MooncakeKvCacheConnectorWorker(self.args))
            patch.setenv("MC_RANK", "0")
            self.scheduler = MooncakeKvCacheConnectorScheduler(self.args)
        if register:
            for worker, pool in zip(self.workers, self.pools, strict=True):
                worker.register_kv_caches(pool)
            self.scheduler.wait_for_initialization()
            if warm_up:
                self.meet_ranks()

    def meet_ranks(self) -> None:
        """Run steps, as an engine's warm-up does, until the scheduler knows all ranks."""
        deadline = time.monotonic() + MEET_S
        while self.scheduler.stats()["ranks_awaited"]:
            assert time.monotonic() < deadline, "ranks and scheduler did not meet"
            self.run(Request(WARM_UP_ID, [1, 2, 3]))
            threading.Event().wait(0.005)

    @property
    def worker(self) -> MooncakeKvCacheConnectorWorker:
        """Rank 0's."""
        return self.workers[0]

    @property
    def by_layer(self) -> bool:
        """Whether layers are in place only once they were waited for."""
        return self.worker.stats()["layers_stored_apart"] > 0

    def close(self) -> None:
        """Release everything."""
        self.scheduler.close()
        for worker in self.workers:
            worker.close()

    def lookup(self, request: Request, computed: int = 0) -> int:
        """Blocks that are promised, for a request that then goes away."""
        tokens, is_async = self.scheduler.get_num_new_matched_tokens(request.bound(), computed)
        self.scheduler.request_finished(request.bound(), [])
        return self._promised(tokens, is_async)

    def _promised(self, tokens: int, is_async: bool) -> int:
        assert (type(tokens), is_async) == (int, False)
        blocks, rest = divmod(tokens, self.shape.tokens_per_block)
        assert rest == 0
        return blocks

    def start(self, request: Request) -> tuple[int, list[int]]:
        """Query and allocation. Returns promised blocks and pages."""
        bound = request.bound()
        matched = self._promised(*self.scheduler.get_num_new_matched_tokens(bound, 0))
        assert matched * self.shape.tokens_per_block < len(request.tokens)
        count = -(-len(request.tokens) // self.shape.tokens_per_block)
        pages = [self._free.pop() for _ in range(count)]
        self.scheduler.update_state_after_alloc(bound, pages)
        return matched, pages

    def plan(self, request: Request, matched: int, pages: list[int]) -> Any:
        """The metadata of the request's only step, as every rank gets it."""
        data = SimpleNamespace(
            request_id=request.request_id,
            new_tokens=list(request.tokens),
            new_block_ids=list(pages),
            computed_position=0,
            num_scheduled_tokens=len(request.tokens) - matched * self.shape.tokens_per_block,
        )
        output = SimpleNamespace(new_requests=[data], cached_requests=[])
        return pickle.loads(pickle.dumps(self.scheduler.build_connector_meta(output)))

    def run(self, request: Request) -> int:
        """Serve a request: load, verify, compute the rest, save, finish. Returns blocks loaded."""
        matched, pages = self.start(request)
        try:
            meta = self.plan(request, matched, pages)
            for worker in self.workers:
                worker.bind_connector_meta(meta)
                worker.start_load_kv(None)
                if self.by_layer:
                    for layer in range(self.shape.layers):
                        worker.wait_for_layer_load(layer, None)
            self.verify(request, pages[:matched])
            self.compute(request, pages, matched)
            for worker in self.workers:
                for layer in range(self.shape.layers):
                    if not self.by_layer:
                        worker.wait_for_layer_load(layer, None)
                    worker.save_kv_layer(layer, None)
                worker.wait_for_save(None)
                assert worker.get_finished([], []) == ([], [])
            assert self.scheduler.request_finished(request.bound(), pages) is False
            return matched
        finally:
            self.scheduler.request_finished(request.bound(), pages)
            for pool in self.pools:
                pool.bytes[pages] = POISON
            self._free.extend(pages)

    def serve(self, request: Request) -> int:
        """Run a request and wait until its blocks are stored."""
        matched = self.run(request)
        assert self.drain()
        return matched

    def drain(self) -> bool:
        """Wait for all saves of all ranks."""
        return False not in [worker.drain(DRAIN_S) for worker in self.workers]

    def expected(self, request: Request, block: int, rank: int) -> np.ndarray[Any, Any]:
        """What the page of a block must hold."""
        end = (block + 1) * self.shape.tokens_per_block
        identity = request.identity_of(block)
        rank = 0 if self.shape.replicated else rank
        return oracle(identity, request.tokens[:end], rank, self.pools[0].bytes.shape[1])

    def verify(self, request: Request, pages: list[int]) -> None:
        """Fail unless each page holds exactly the bytes of its block."""
        for rank, pool in enumerate(self.pools):
            for block, page in enumerate(pages):
                assert np.array_equal(pool.bytes[page], self.expected(request, block, rank)), (
                    f"rank {rank}, block {block}: wrong bytes"
                )

    def compute(self, request: Request, pages: list[int], first: int) -> None:
        """Write what a forward pass would."""
        for rank, pool in enumerate(self.pools):
            for block in range(first, len(pages)):
                pool.bytes[pages[block]] = self.expected(request, block, rank)


def step(engine: Engine, one: Request, pages: list[int], matched: int = 0) -> SimpleNamespace:
    """What the runtime reports of a step with one new request, `matched` blocks of it promised."""
    data = SimpleNamespace(
        request_id=one.request_id,
        new_tokens=one.tokens,
        new_block_ids=pages,
        computed_position=0,
        num_scheduled_tokens=len(one.tokens) - 8 * matched,
    )
    return SimpleNamespace(new_requests=[data], cached_requests=[])
