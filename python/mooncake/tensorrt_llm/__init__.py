"""The Mooncake connector for TensorRT-LLM, under the name that configurations use.

Everything lives in `mooncake_trtllm`. The package `mooncake` around this folder belongs to
Mooncake's own wheel; without that wheel it is a namespace package.
"""

from typing import Any

from mooncake_trtllm import (
    KvConnectorConfigError,
    KvConnectorError,
    KvConnectorLoadError,
    KvConnectorStoreError,
    __version__,
    make_kv_connector_config,
)

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


def __getattr__(name: str) -> Any:
    # The classes are looked up when asked for: they pull in the runtime's base classes.
    if name.startswith("Mooncake"):
        import mooncake_trtllm

        return getattr(mooncake_trtllm, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
