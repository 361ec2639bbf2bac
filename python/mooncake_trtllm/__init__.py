"""A KV-cache connector for TensorRT-LLM on the Mooncake Distributed Store.

    from mooncake.tensorrt_llm import make_kv_connector_config
    llm = LLM(model=..., backend="pytorch", kv_connector_config=make_kv_connector_config())

Importing this package starts no thread, opens no socket and imports neither TensorRT-LLM, torch nor
Mooncake. The connector classes are loaded when they are asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mooncake_trtllm.config import make_kv_connector_config
from mooncake_trtllm.errors import (
    KvConnectorConfigError,
    KvConnectorError,
    KvConnectorLoadError,
    KvConnectorStoreError,
)

if TYPE_CHECKING:
    from mooncake_trtllm.scheduler import MooncakeKvCacheConnectorScheduler
    from mooncake_trtllm.worker import MooncakeKvCacheConnectorWorker

__version__ = "0.1.0"

__all__ = [
    "KvConnectorConfigError",
    "KvConnectorError",
    "KvConnectorLoadError",
    "KvConnectorStoreError",
    "MooncakeKvCacheConnectorScheduler",
    "MooncakeKvCacheConnectorWorker",
    "__version__",
    "make_kv_connector_config",
]

_LAZY = {
    "MooncakeKvCacheConnectorScheduler": "mooncake_trtllm.scheduler",
    "MooncakeKvCacheConnectorWorker": "mooncake_trtllm.worker",
}


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value
