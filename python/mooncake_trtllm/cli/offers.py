"""What a run can be made of: back ends and granularities."""

from __future__ import annotations

import os
from collections.abc import Mapping

__all__ = [
    "BACKENDS",
    "GRANULARITIES",
    "granularity_settings",
    "in_process_only",
    "is_staged",
    "objects_per_block",
]

BACKENDS = ("memory", "file", "mooncake")
GRANULARITIES = ("block", "layer")


def in_process_only(backend: str) -> bool:
    """Whether ranks must be threads of one process to share this store."""
    return backend == "memory"


def granularity_settings(granularity: str) -> Mapping[str, str]:
    """The environment by which an instance stores blocks whole or layer by layer."""
    return {"MC_LAYER_GRANULARITY": "1"} if granularity == "layer" else {}


def is_staged(environment: Mapping[str, str]) -> bool:
    """Whether instances with these variables, over the user's settings, stage their promises."""
    from mooncake_trtllm.settings import parse_settings  # needs the native module

    settings = parse_settings({**os.environ, **environment}, {})
    return settings.text("MC_PROMISE") == "staged" and not settings.flag("MC_LAYER_GRANULARITY")


def objects_per_block(granularity: str, ranks: int, layers: int) -> int:
    """At most so many: shards, a mark of completeness for each rank's layers, the manifest."""
    return ranks * (layers + 1) + 1 if granularity == "layer" else ranks + 1
