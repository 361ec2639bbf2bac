"""A stand-in of the runtime: the modules, classes and calls that a connector meets, by version.

Written from the contract's tables, for tests only. install() must run before mooncake_trtllm's
classes are imported, so tests use it in a process of its own.
"""

from __future__ import annotations

import importlib.machinery
import sys
import types
from abc import ABC, abstractmethod
from typing import Any

FAMILIES = ("1.1", "1.3", "1.4", "future")
_PACKAGE = "tensorrt_llm._torch.pyexecutor"


class Worker11(ABC):
    """Worker of 1.1 to 1.3."""

    def __init__(self, llm_args: Any) -> None:
        self._llm_args = llm_args
        self._metadata = None
        super().__init__()

    def bind_connector_meta(self, metadata: object) -> None:
        self._metadata = metadata  # type: ignore[assignment]

    def get_connector_meta(self) -> object:
        return self._metadata

    def _clear_connector_meta(self) -> None:
        self._metadata = None

    def register_forward_pass_callable(self) -> Any:
        return None

    @abstractmethod
    def register_kv_caches(self, kv_cache_tensor: Any) -> None: ...

    @abstractmethod
    def start_load_kv(self, stream: Any) -> None: ...

    @abstractmethod
    def wait_for_layer_load(self, layer_idx: int, stream: Any) -> None: ...

    @abstractmethod
    def save_kv_layer(self, layer_idx: int, stream: Any) -> None: ...

    @abstractmethod
    def wait_for_save(self, stream: Any) -> None: ...

    @abstractmethod
    def get_finished(self, finished: list[int], started: list[int]) -> Any: ...


class Scheduler11(ABC):
    """Scheduler of 1.1 and 1.2."""

    def __init__(self, llm_args: Any) -> None:
        self._llm_args = llm_args
        super().__init__()

    @abstractmethod
    def build_connector_meta(self, scheduler_output: Any) -> object: ...

    @abstractmethod
    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Any: ...

    @abstractmethod
    def request_finished(self, request: Any, cache_block_ids: list[int]) -> bool: ...

    @abstractmethod
    def update_state_after_alloc(self, request: Any, block_ids: list[int]) -> None: ...


class Scheduler13(Scheduler11):
    """Scheduler of 1.3."""

    def wait_for_initialization(self) -> None:
        return None


class Worker14(Worker11):
    """Worker of 1.4."""

    supports_attention_dp = False

    def register_kv_cache_layout(self, layout: Any) -> None:
        raise NotImplementedError


class Scheduler14(Scheduler13):
    """Scheduler of 1.4."""

    supports_attention_dp = False

    def update_state_after_alloc_by_layer_group(self, request: Any, by_group: Any) -> None:
        raise NotImplementedError

    def request_finished_by_layer_group(self, request: Any, by_group: Any) -> bool:
        raise NotImplementedError

    def request_reset(self, request: Any) -> None:
        return None

    def cancel_load(self, request: Any, start: int, end: int) -> None:
        return None


class WorkerFuture(Worker14):
    """A version that does not exist yet."""

    def on_preemption(self, request: Any) -> None:
        return None

    def start_load_kv(self, stream: Any, priority: int) -> None:  # type: ignore[override]
        return None


_BY_FAMILY: dict[str, tuple[str, type, type]] = {
    "1.1": (f"{_PACKAGE}.kv_cache_connector", Worker11, Scheduler11),
    "1.3": (f"{_PACKAGE}.kv_cache_connector", Worker11, Scheduler13),
    "1.4": (f"{_PACKAGE}.connectors.kv_cache_connector", Worker14, Scheduler14),
    "future": (f"{_PACKAGE}.connectors.kv_cache_connector", WorkerFuture, Scheduler14),
}


class ConnectorConfig:
    """Strict, as the runtime's."""

    FIELDS = ("connector_module", "connector_scheduler_class", "connector_worker_class")

    def __init__(self, **values: Any) -> None:
        if set(values) - set(self.FIELDS):
            raise ValueError(
                f"extra fields not permitted: {sorted(set(values) - set(self.FIELDS))}"
            )
        self.__dict__.update(values)


def _module(name: str, **content: Any) -> types.ModuleType:
    module = sys.modules.get(name)
    if module is None:
        module = types.ModuleType(name)
        module.__path__ = []
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        sys.modules[name] = module
        parent, _, leaf = name.rpartition(".")
        if parent:
            setattr(_module(parent), leaf, module)
    module.__dict__.update(content)
    return module


def install(family: str, rank: Any = lambda: 0, size: Any = lambda: 1) -> tuple[type, type]:
    """Put the modules of a version in place. Returns its worker and scheduler classes."""
    name, worker, scheduler = _BY_FAMILY[family]
    version = {"future": "2.0.0"}.get(family, f"{family}.0")
    _module("tensorrt_llm", __version__=version)
    _module("tensorrt_llm._utils", mpi_rank=rank, mpi_world_size=size)
    _module("tensorrt_llm.llmapi", KvCacheConnectorConfig=ConnectorConfig)
    _module(name, KvCacheConnectorWorker=worker, KvCacheConnectorScheduler=scheduler)
    return worker, scheduler
