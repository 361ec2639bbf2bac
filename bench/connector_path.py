"""The whole path through the Python classes, driven as the engine drives it, over a host pool.

The classes are found by name from make_kv_connector_config(), and the plan is pickled between
scheduler and worker, as it is between the ranks of an engine. One request covers the pool's blocks;
its pages are known bytes, so that every load is verified (outside of what is timed).
"""

from __future__ import annotations

import hashlib
import importlib
import pickle
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

    def save(self, salt: str) -> None:
        """Compute-less step of a new request: ends when all of its blocks are committed."""
        blocks = self.geometry.blocks
        request = self._request(salt)
        matched, _ = self._scheduler.get_num_new_matched_tokens(request, 0)
        if matched:
            raise RuntimeError(f"salt {salt}: {matched} tokens matched before anything was saved")
        self._step(request, first_page=0, scheduled=len(self._prompt))
        self._worker.wait_for_save(None)
        if not self._worker.drain(_DRAIN_TIMEOUT_S):
            raise RuntimeError(f"{blocks} blocks were not saved within {_DRAIN_TIMEOUT_S:.0f} s")
        self._scheduler.request_finished(request, [])

    def load(self, salt: str) -> None:
        """A request whose blocks are all stored: ends when every page is in place."""
        blocks = self.geometry.blocks
        request = self._request(salt)
        matched, is_async = self._scheduler.get_num_new_matched_tokens(request, 0)
        if (matched, is_async) != (blocks * _TOKENS_PER_BLOCK, False):
            raise RuntimeError(
                f"salt {salt}: promised ({matched}, {is_async}) of {blocks} stored blocks"
            )
        self._step(request, first_page=blocks, scheduled=1)
        self._worker.wait_for_save(None)
        self._scheduler.request_finished(request, [])

    def poison_target(self) -> None:
        """Overwrite the pages that loads fill."""
        self._target[:] = 0xA5

    def verify_target(self) -> None:
        """Raise unless each loaded page holds the bytes of its source page."""
        if not np.array_equal(self._source, self._target):
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

    def _request(self, salt: str) -> SimpleNamespace:
        self._next_id += 1
        prompt = self._prompt
        return SimpleNamespace(
            request_id=self._next_id,
            prompt_len=len(prompt),
            get_tokens=lambda _beam: prompt,
            cache_salt=salt,
            lora_task_id=None,
            is_generation_only_request=False,
            is_dummy_request=False,
        )

    def _step(self, request: SimpleNamespace, first_page: int, scheduled: int) -> None:
        spare = 2 * self.geometry.blocks
        pages = [*range(first_page, first_page + self.geometry.blocks), spare]
        self._scheduler.update_state_after_alloc(request, pages)
        data = _RequestData(request.request_id, self._prompt, pages, 0, scheduled)
        plan = self._scheduler.build_connector_meta(_SchedulerOutput([data]))
        self._worker.bind_connector_meta(pickle.loads(pickle.dumps(plan)))
        self._worker.start_load_kv(None)


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
