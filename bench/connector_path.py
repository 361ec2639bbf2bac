"""The whole path through the Python classes, driven as the engine drives it, over a host pool.

The classes are found by name from make_kv_connector_config(), and the plan is pickled between
scheduler and worker, as it is between the ranks of an engine. One request covers half of the pool's
blocks, or several that arrive in one step share them; pages are known bytes, so that every load is
verified (outside of what is timed).
"""

from __future__ import annotations

import hashlib
import importlib
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

__all__ = ["ConnectorPath", "Geometry"]

_HEADER_BYTES = 128
_TOKENS_PER_BLOCK = 32
_DRAIN_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Geometry:
    """A pool of float16 pages, two times `blocks` of them and one spare."""

    blocks: int
    layers: int
    elements_per_token: int

    @classmethod
    def of_objects(cls, object_bytes: int, blocks: int) -> Geometry:
        """Return the geometry whose stored objects, header included, are exactly that large."""
        payload = object_bytes - _HEADER_BYTES
        per_layer_and_element = 2 * _TOKENS_PER_BLOCK * 2  # keys and values, two bytes each
        cells, rest = divmod(payload, per_layer_and_element)
        if payload <= 0 or rest:
            raise ValueError(
                f"object_bytes={object_bytes}: not {_HEADER_BYTES} bytes of header and a multiple "
                f"of {per_layer_and_element}; remedy: 4194304 or 65536"
            )
        layers = max(count for count in range(1, 65) if cells % count == 0)
        return cls(blocks=blocks, layers=layers, elements_per_token=cells // layers)

    @property
    def page_bytes(self) -> int:
        """Bytes of one page, which is the payload of one object."""
        return self.layers * 2 * _TOKENS_PER_BLOCK * self.elements_per_token * 2

    @property
    def object_bytes(self) -> int:
        """Bytes of one stored object."""
        return self.page_bytes + _HEADER_BYTES

    @property
    def request_bytes(self) -> int:
        """Bytes of the objects of one request: what both sides of a pair move."""
        return self.blocks * self.object_bytes

    @property
    def pool_shape(self) -> tuple[int, int, int, int]:
        """Shape of the pool as the engine registers it."""
        return (
            2 * self.blocks + 1,
            self.layers,
            2,
            _TOKENS_PER_BLOCK * self.elements_per_token,
        )


@dataclass
class _RequestData:
    request_id: int
    new_tokens: list[int]
    new_block_ids: list[int]
    computed_position: int
    num_scheduled_tokens: int
    priorities: None = None


@dataclass
class _SchedulerOutput:
    new_requests: list[_RequestData]
    cached_requests: list[_RequestData] = field(default_factory=list)


class ConnectorPath:
    """One instance, one rank: saves the first half of its pool, loads into the second."""

    def __init__(self, geometry: Geometry, seed: int) -> None:
        self.geometry = geometry
        rng = np.random.default_rng(seed)
        shape = geometry.pool_shape
        self._pool = np.zeros(shape, dtype=np.float16)
        self._bytes = self._pool.view(np.uint8).reshape(shape[0], geometry.page_bytes)
        self._source = self._bytes[: geometry.blocks]
        self._target = self._bytes[geometry.blocks : 2 * geometry.blocks]
        self._source[:] = rng.integers(0, 256, self._source.shape, dtype=np.uint8)
        self._prompt = rng.integers(0, 32000, geometry.blocks * _TOKENS_PER_BLOCK + 1).tolist()
        self._next_id = 1
        self._alive: list[SimpleNamespace] = []
        self._scheduler, self._worker = self._start()

    def _start(self) -> tuple[Any, Any]:
        config = importlib.import_module("mooncake.tensorrt_llm").make_kv_connector_config()
        module = importlib.import_module(config.connector_module)
        args = _llm_args()
        with ThreadPoolExecutor(max_workers=2) as pool:
            worker = pool.submit(getattr(module, config.connector_worker_class), args)
            scheduler = pool.submit(getattr(module, config.connector_scheduler_class), args)
        worker.result().register_kv_caches(self._pool)
        scheduler.result().wait_for_initialization()
        return scheduler.result(), worker.result()

    def save(self, salt: str, share: int = 1) -> None:
        """Compute-less step of a new request: ends when all of its blocks are committed.

        Of the source pages it has one of `share` parts.
        """
        self.save_step(salt, share)()
        self.end()
        self.drain()

    def drain(self) -> None:
        """Wait until all saves are committed."""
        if not self._worker.drain(_DRAIN_TIMEOUT_S):
            raise RuntimeError(f"blocks were not saved within {_DRAIN_TIMEOUT_S:.0f} s")

    def save_step(self, salt: str, share: int = 1) -> Callable[[], None]:
        """The same up to `wait_for_save`, which is returned; end() comes after it."""
        request = self.ask(salt, 0, share)
        self._bind([(request, 0)], scheduled=request.prompt_len)
        self._worker.start_load_kv(None)
        return lambda: self._worker.wait_for_save(None)

    def load(self, *salts: str) -> None:
        """Requests of one step whose blocks are all stored: ends when every page is in place."""
        self.load_step(*salts)()
        self._worker.wait_for_save(None)
        self.end()

    def load_step(self, *salts: str, in_full: bool = True) -> Callable[[], None]:
        """The same up to `start_load_kv`, which is returned; end() comes after it.

        `in_full`: what is not promised whole is an error.
        """
        share = len(salts)
        blocks = self.geometry.blocks // share
        requests = [self.ask(salt, blocks if in_full else None, share) for salt in salts]
        first_pages = range(self.geometry.blocks, 2 * self.geometry.blocks, blocks)
        self._bind(list(zip(requests, first_pages, strict=False)), scheduled=1)
        return lambda: self._worker.start_load_kv(None)

    def ask(self, salt: str, promised: int | None, share: int = 1) -> SimpleNamespace:
        """A new request, of whose blocks so many must be promised. It lives until end()."""
        request = self._request(salt, share)
        answer = self._scheduler.get_num_new_matched_tokens(request, 0)
        if promised is not None and answer != (promised * _TOKENS_PER_BLOCK, False):
            raise RuntimeError(f"salt {salt}: {answer} promised, expected {promised} blocks")
        self._alive.append(request)
        return request

    def end(self) -> None:
        """All requests are over."""
        while self._alive:
            self._scheduler.request_finished(self._alive.pop(), [])

    def poison_target(self) -> None:
        """Overwrite the pages that loads fill."""
        self._target[:] = 0xA5

    def verify_target(self, share: int = 1) -> None:
        """Raise unless each loaded page holds the bytes of its source page."""
        blocks = self.geometry.blocks // share
        for first in range(0, share * blocks, blocks):
            if not np.array_equal(self._source[:blocks], self._target[first : first + blocks]):
                raise RuntimeError("loaded pages differ from the saved ones")

    def check_counters(self, *, saved: int, loaded: int) -> None:
        """Raise unless the counters say that exactly this many blocks moved."""
        stats = self.worker_stats()
        seen = {
            "blocks_saved": saved,
            "blocks_committed": saved,
            "saves_dropped": 0,
            "saves_failed": 0,
            "blocks_loaded": loaded,
        }
        wrong = {name: stats[name] for name, value in seen.items() if stats[name] != value}
        if wrong:
            raise RuntimeError(f"expected {seen}, but the counters say {wrong}")

    def scheduler_stats(self) -> dict[str, Any]:
        """Counters of the scheduler class."""
        return dict(self._scheduler.stats())

    def worker_stats(self) -> dict[str, Any]:
        """Counters of the worker class."""
        return dict(self._worker.stats())

    def digest(self) -> str:
        """SHA-256 of the pages that the last load filled."""
        return hashlib.sha256(self._target.data).hexdigest()

    def close(self) -> None:
        """Release both classes."""
        self._worker.close()
        self._scheduler.close()

    def _request(self, salt: str, share: int) -> SimpleNamespace:
        self._next_id += 1
        prompt = self._prompt[: self.geometry.blocks // share * _TOKENS_PER_BLOCK + 1]
        return SimpleNamespace(
            request_id=self._next_id,
            prompt_len=len(prompt),
            get_tokens=lambda _beam: prompt,
            cache_salt=salt,
            lora_task_id=None,
            is_generation_only_request=False,
            is_dummy_request=False,
        )

    def _bind(self, requests: list[tuple[SimpleNamespace, int]], scheduled: int) -> None:
        """Pages from a first one on for each request, and the plan of the step they are in."""
        spare = 2 * self.geometry.blocks
        batch = []
        for request, first in requests:
            tokens = request.get_tokens(0)
            pages = [*range(first, first + len(tokens) // _TOKENS_PER_BLOCK), spare]
            self._scheduler.update_state_after_alloc(request, pages)
            batch.append(_RequestData(request.request_id, tokens, pages, 0, scheduled))
        plan = self._scheduler.build_connector_meta(_SchedulerOutput(batch))
        self._worker.bind_connector_meta(pickle.loads(pickle.dumps(plan)))


def _llm_args() -> SimpleNamespace:
    return SimpleNamespace(
        model="bench",
        dtype="float16",
        tensor_parallel_size=1,
        pipeline_parallel_size=1,
        context_parallel_size=1,
        attn_backend="TRTLLM",
        kv_cache_config=SimpleNamespace(
            tokens_per_block=_TOKENS_PER_BLOCK,
            dtype="auto",
            enable_block_reuse=True,
            host_cache_size=0,
        ),
    )
