"""A connector in plain Python over a dict, to test the simulator with.

It shares nothing with the product: it stands for "any connector that follows the contract".
"""

from __future__ import annotations

import array
import ctypes
import hashlib
import os
import threading
from dataclasses import dataclass, field
from typing import Any

Key = tuple[object, ...]


@dataclass
class SharedStore:
    """What all connectors of this process share."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    objects: dict[Key, bytes] = field(default_factory=dict)
    delay_s: float = 0.0


STORE = SharedStore()


class KvConnectorError(RuntimeError):
    """Raised by `start_load_kv` for a promised block that is gone."""


class KvConnectorConfigError(KvConnectorError):
    """Raised at start-up."""


class KvConnectorStoreError(KvConnectorError):
    """Raised at start-up."""


def _rank_and_world() -> tuple[int, int]:
    try:
        from tensorrt_llm import _utils
    except ImportError:
        return int(os.environ.get("MC_RANK", "0")), int(os.environ.get("MC_WORLD_SIZE", "1"))
    return _utils.mpi_rank(), _utils.mpi_world_size()


def _scope(request: Any) -> Key:
    media: Key = ()
    if request.multimodal_hashes:
        media = tuple(
            zip(
                (tuple(digest) for digest in request.multimodal_hashes),
                request.multimodal_positions,
                request.multimodal_lengths,
                strict=True,
            )
        )
    return ("salt", request.cache_salt, request.cache_salt_id, media)


def _cacheable(request: Any) -> bool:
    return request.lora_task_id is None and not hasattr(request, "prompt_embedding_table")


@dataclass
class Tracked:
    """What the scheduler knows of one request."""

    scope: Key
    prompt: tuple[int, ...]
    cacheable: bool
    local: int
    offered: int = 0
    tokens: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    saved: int = 0


@dataclass
class Plan:
    """The metadata: for each load and save a request, a key, a page."""

    loads: list[tuple[int, Key, int]] = field(default_factory=list)
    saves: list[tuple[int, Key, int]] = field(default_factory=list)


class Scheduler:
    """Follows the contract with synchronous offers."""

    def __init__(self, llm_args: Any) -> None:
        self.size: int = llm_args.kv_cache_config.tokens_per_block
        self.world = llm_args.tensor_parallel_size
        self.identity: Key = (
            str(llm_args.model),
            llm_args.dtype,
            llm_args.kv_cache_config.dtype,
            self.size,
            self.world,
        )
        self.requests: dict[int, Tracked] = {}
        self.loads: list[tuple[int, Key, int]] = []
        self.queries = 0
        self.offered = 0

    def key(self, tracked: Tracked, index: int, tokens: Any = None) -> Key:
        tokens = tracked.tokens if tokens is None else tokens
        prefix = array.array("i", tokens[: (index + 1) * self.size]).tobytes()
        return (*self.identity, tracked.scope, index, hashlib.sha256(prefix).digest())

    def has(self, key: Key) -> bool:
        with STORE.lock:
            return all((*key, rank) in STORE.objects for rank in range(self.world))

    def get_num_new_matched_tokens(self, request: Any, computed: int) -> tuple[int, bool]:
        self.queries += 1
        tokens = request.get_tokens(0)
        tracked = Tracked(_scope(request), tuple(tokens), _cacheable(request), computed)
        self.requests[request.request_id] = tracked
        if computed % self.size or not tracked.cacheable:
            return 0, False
        index = computed // self.size
        while index < self.limit(tokens) and self.has(self.key(tracked, index, tokens)):
            index += 1
        tracked.offered = index * self.size - computed
        self.offered += tracked.offered // self.size
        return tracked.offered, False

    def limit(self, tokens: list[int]) -> int:
        return (len(tokens) - 1) // self.size

    def update_state_after_alloc(self, request: Any, block_ids: list[int]) -> None:
        tracked = self.requests[request.request_id]
        first = tracked.local // self.size
        for index in range(first, first + tracked.offered // self.size):
            key = self.key(tracked, index, tracked.prompt)
            self.loads.append((request.request_id, key, block_ids[index]))

    def build_connector_meta(self, output: Any) -> Any:
        plan = Plan(self.loads)
        self.loads = []
        if output is None:
            return plan
        for data in output.new_requests:
            tracked = self.requests[data.request_id]
            tracked.tokens, tracked.blocks, tracked.saved = [], [], 0
            self.progress(plan, data, tracked, tracked.offered)
        for data in output.cached_requests:
            self.progress(plan, data, self.requests[data.request_id], 0)
        return plan

    def progress(self, plan: Plan, data: Any, tracked: Tracked, matched: int) -> None:
        tracked.tokens += data.new_tokens
        tracked.blocks += data.new_block_ids
        end = data.computed_position + matched + data.num_scheduled_tokens
        bound = min(end, len(tracked.tokens)) // self.size
        first = max(tracked.saved, (tracked.local + tracked.offered) // self.size)
        if tracked.cacheable:
            for index in range(first, min(bound, len(tracked.blocks))):
                plan.saves.append(
                    (data.request_id, self.key(tracked, index), tracked.blocks[index])
                )
        tracked.saved = max(tracked.saved, bound)

    def request_finished(self, request: Any, block_ids: list[int]) -> bool:
        self.requests.pop(request.request_id, None)
        return False

    def wait_for_initialization(self) -> None:
        pass

    def stats(self) -> dict[str, int | float]:
        return {
            "queries": self.queries,
            "blocks_offered": self.offered,
            "requests_tracked": len(self.requests),
        }


class Worker:
    """Loads and saves with memcpy, at once."""

    def __init__(self, llm_args: Any) -> None:
        self.rank, self.world = _rank_and_world()
        if self.world != llm_args.tensor_parallel_size:
            raise KvConnectorConfigError(
                f"world size {self.world} does not fit {llm_args.tensor_parallel_size}"
            )
        self.plan = Plan()
        self.counts: dict[str, int | float] = dict.fromkeys(
            (
                "blocks_loaded",
                "bytes_loaded",
                "blocks_saved",
                "bytes_saved",
                "blocks_already_stored",
                "loads_missing",
                "save_queue_bytes",
            ),
            0,
        )

    def register_forward_pass_callable(self) -> Any:
        return None

    def register_kv_caches(self, tensor: Any) -> None:
        self.base = tensor.data_ptr()
        elements = tensor.shape[1] * tensor.shape[2] * tensor.shape[3]
        self.page_bytes = elements * tensor.element_size()

    def read(self, page: int) -> bytes:
        return ctypes.string_at(self.base + page * self.page_bytes, self.page_bytes)

    def write(self, page: int, data: bytes) -> None:
        ctypes.memmove(self.base + page * self.page_bytes, data, len(data))

    def bind_connector_meta(self, metadata: Any) -> None:
        self.plan = metadata

    def start_load_kv(self, stream: Any) -> None:
        loads, self.plan.loads = self.plan.loads, []
        for request_id, key, page in loads:
            with STORE.lock:
                data = STORE.objects.get((*key, self.rank))
            if data is None:
                self.counts["loads_missing"] += 1
                raise KvConnectorError(f"request {request_id}: a promised block is gone")
            self.write(page, data)
            self.counts["blocks_loaded"] += 1
            self.counts["bytes_loaded"] += len(data)

    def wait_for_layer_load(self, layer_idx: int, stream: Any) -> None:
        pass

    def save_kv_layer(self, layer_idx: int, stream: Any) -> None:
        pass

    def wait_for_save(self, stream: Any) -> None:
        saves, self.plan.saves = self.plan.saves, []
        for _, key, page in saves:
            self.save(key, page)

    def save(self, key: Key, page: int) -> None:
        data = self.read(page)
        shard = (*key, self.rank)
        with STORE.lock:
            if shard in STORE.objects:
                self.counts["blocks_already_stored"] += 1
                return
            STORE.objects[shard] = data
        self.counts["blocks_saved"] += 1
        self.counts["bytes_saved"] += len(data)

    def get_finished(
        self, finished_ids: list[int], started_ids: list[int]
    ) -> tuple[list[int], list[int]]:
        return [], []

    def drain(self, timeout_s: float) -> bool:
        return True

    def stats(self) -> dict[str, int | float]:
        return self.counts


class AsyncScheduler(Scheduler):
    """Offers asynchronously: loads ride on metadata of a step that does not run the request."""

    def get_num_new_matched_tokens(self, request: Any, computed: int) -> tuple[int, bool]:
        offered, _ = super().get_num_new_matched_tokens(request, computed)
        return offered, offered > 0

    def progress(self, plan: Plan, data: Any, tracked: Tracked, matched: int) -> None:
        # After an asynchronous load the reported position includes what was loaded.
        super().progress(plan, data, tracked, 0)


class AsyncWorker(Worker):
    """Reports a load one poll after it was given."""

    def get_finished(
        self, finished_ids: list[int], started_ids: list[int]
    ) -> tuple[list[int], list[int]]:
        done, self.pending = getattr(self, "pending", []), list(started_ids)
        return [], done


class PinningScheduler(Scheduler):
    """Asks for every request's pages to stay until its worker says so."""

    def request_finished(self, request: Any, block_ids: list[int]) -> bool:
        first = request.request_id in self.requests
        super().request_finished(request, block_ids)
        return first


class PinningWorker(Worker):
    """Gives pages back one poll late."""

    def get_finished(
        self, finished_ids: list[int], started_ids: list[int]
    ) -> tuple[list[int], list[int]]:
        done, self.pending = getattr(self, "pending", []), list(finished_ids)
        return done, []


class MeetingScheduler(Scheduler):
    """Waits in its constructor for its worker's, so that one after the other would never end."""

    barrier = threading.Barrier(2)

    def __init__(self, llm_args: Any) -> None:
        super().__init__(llm_args)
        self.barrier.wait(10)


class MeetingWorker(Worker):
    """The other half."""

    def __init__(self, llm_args: Any) -> None:
        super().__init__(llm_args)
        MeetingScheduler.barrier.wait(10)


EVENTS: list[tuple[str, Any]] = []
"""What the recording classes were called with, in order."""


class RecordingScheduler(Scheduler):
    """Notes every call."""

    def get_num_new_matched_tokens(self, request: Any, computed: int) -> tuple[int, bool]:
        EVENTS.append(("query", request.request_id))
        return super().get_num_new_matched_tokens(request, computed)

    def update_state_after_alloc(self, request: Any, block_ids: list[int]) -> None:
        EVENTS.append(("alloc", (request.request_id, list(block_ids))))
        super().update_state_after_alloc(request, block_ids)

    def build_connector_meta(self, output: Any) -> Any:
        EVENTS.append(("build", output))
        return super().build_connector_meta(output)

    def request_finished(self, request: Any, block_ids: list[int]) -> bool:
        EVENTS.append(("finished", (request.request_id, len(block_ids))))
        return super().request_finished(request, block_ids)


class RecordingWorker(Worker):
    """Notes every call."""

    def register_forward_pass_callable(self) -> Any:
        EVENTS.append(("register_callable", None))
        return lambda: EVENTS.append(("callable", None))

    def register_kv_caches(self, tensor: Any) -> None:
        EVENTS.append(("register", tensor))
        super().register_kv_caches(tensor)

    def bind_connector_meta(self, metadata: Any) -> None:
        EVENTS.append(("bind", metadata))
        super().bind_connector_meta(metadata)

    def start_load_kv(self, stream: Any) -> None:
        EVENTS.append(("load", None))
        super().start_load_kv(stream)

    def wait_for_layer_load(self, layer_idx: int, stream: Any) -> None:
        EVENTS.append(("before_layer", layer_idx))

    def save_kv_layer(self, layer_idx: int, stream: Any) -> None:
        EVENTS.append(("after_layer", layer_idx))

    def wait_for_save(self, stream: Any) -> None:
        EVENTS.append(("save", None))
        super().wait_for_save(stream)

    def get_finished(
        self, finished_ids: list[int], started_ids: list[int]
    ) -> tuple[list[int], list[int]]:
        EVENTS.append(("poll", None))
        return super().get_finished(finished_ids, started_ids)
