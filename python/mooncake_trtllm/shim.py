"""The base classes of the connector: the runtime's own when they can be imported, else stand-ins.

The stand-ins have the methods and defaults of the runtime's classes, so that the connector can be
driven without TensorRT-LLM (by the simulator, by tests, by other harnesses).
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from mooncake_trtllm._log import log

__all__ = ["SchedulerBase", "WorkerBase", "find_runtime", "surface_problems"]

# Newest first; the older name exists in 1.1 to early 1.3.
_CONNECTOR_MODULES = (
    "tensorrt_llm._torch.pyexecutor.connectors.kv_cache_connector",
    "tensorrt_llm._torch.pyexecutor.kv_cache_connector",
)

# Parts of the runtime's classes that we leave as they are, knowingly: accessors of the bound
# metadata, and the protocol of prefix reservations, which must be offered as a whole or not at all.
_INHERITED = frozenset(
    {
        "abort_request",
        "finish_load",
        "get_connector_meta",
        "get_finished_prefix_loads",
        "release_prefix_reservation",
        "reserve_prefix",
        "take_failed_load_request_ids",
    }
)


def find_runtime(name: str) -> ModuleType | None:
    """Imports a module of the runtime, or returns None where there is none (or none that works)."""
    module = sys.modules.get(name)
    if module is not None:
        return module
    top = name.partition(".")[0]
    if top not in sys.modules:
        try:
            if importlib.util.find_spec(top) is None:
                return None
        except (ImportError, ValueError):
            return None
    try:
        return importlib.import_module(name)
    except ImportError as error:
        log.debug("%s cannot be imported: %s", name, error)
    except Exception as error:  # noqa: BLE001 - a broken installation must not break our import
        log.warning("%s is installed but fails to import (%s); doing without it", name, error)
    return None


class _WorkerShim(ABC):
    """Same surface as the runtime's KvCacheConnectorWorker."""

    def __init__(self, llm_args: Any) -> None:
        self._llm_args = llm_args
        self._metadata: Any = None

    def bind_connector_meta(self, metadata: Any) -> None:
        self._metadata = metadata

    def get_connector_meta(self) -> Any:
        return self._metadata

    def _clear_connector_meta(self) -> None:
        self._metadata = None

    def register_forward_pass_callable(self) -> Callable[[], None] | None:
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
    def get_finished(
        self, finished_gen_req_ids: list[int], started_loading_req_ids: list[int]
    ) -> tuple[list[int], list[int]]: ...


class _SchedulerShim(ABC):
    """Same surface as the runtime's KvCacheConnectorScheduler."""

    def __init__(self, llm_args: Any) -> None:
        self._llm_args = llm_args
        super().__init__()

    @abstractmethod
    def build_connector_meta(self, scheduler_output: Any) -> Any: ...

    @abstractmethod
    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int, bool]: ...

    @abstractmethod
    def request_finished(self, request: Any, cache_block_ids: list[int]) -> bool: ...

    @abstractmethod
    def update_state_after_alloc(self, request: Any, block_ids: list[int]) -> None: ...

    def wait_for_initialization(self) -> None:
        return None


def _find_bases() -> tuple[Any, Any]:
    for name in _CONNECTOR_MODULES:
        module = find_runtime(name)
        worker = getattr(module, "KvCacheConnectorWorker", None)
        scheduler = getattr(module, "KvCacheConnectorScheduler", None)
        if inspect.isclass(worker) and inspect.isclass(scheduler):
            return worker, scheduler
    return _WorkerShim, _SchedulerShim


if TYPE_CHECKING:
    WorkerBase = _WorkerShim
    SchedulerBase = _SchedulerShim
else:
    WorkerBase, SchedulerBase = _find_bases()


def surface_problems(cls: type, base: type) -> list[str]:
    """What of the runtime's `base` our `cls` neither implements nor knowingly inherits.

    The runtime calls with positional arguments, so each method must take as many as the base's.
    """
    problems = []
    for name, theirs in inspect.getmembers(base, inspect.isfunction):
        if name.startswith("_") or name in _INHERITED:
            continue
        ours = getattr(cls, name)
        if ours is theirs:
            problems.append(f"{base.__name__}.{name} is new in this runtime and not implemented")
            continue
        wanted = len(inspect.signature(theirs).parameters)
        try:
            inspect.signature(ours).bind(*[None] * wanted)
        except TypeError as error:
            problems.append(f"{base.__name__}.{name} takes {wanted - 1} arguments: {error}")
    return problems
