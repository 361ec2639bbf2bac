"""What this build can run, in one place: back ends and granularities.

The back ends are those that the core's own table of settings takes, so a new one shows here by
itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from mooncake_trtllm.cli.exits import UsageError

__all__ = [
    "ALL_BACKENDS",
    "ALL_GRANULARITIES",
    "GRANULARITIES",
    "backends",
    "check",
    "granularity_settings",
    "in_process_only",
    "objects_per_block",
]

ALL_BACKENDS = ("memory", "file", "mooncake")
ALL_GRANULARITIES = ("block", "layer")
GRANULARITIES = ("block",)
"""Those of this build."""


def backends() -> tuple[str, ...]:
    """The back ends of this build, in the order of the full list."""
    from mooncake_trtllm._native import setting_table

    row = next(row for row in setting_table() if row["name"] == "MC_BACKEND")
    return tuple(name for name in ALL_BACKENDS if name in row["choices"])


def in_process_only(backend: str) -> bool:
    """Whether ranks must be threads of one process to share this store."""
    return backend == "memory"


def granularity_settings(granularity: str) -> Mapping[str, str]:
    """The environment by which an instance stores blocks whole or layer by layer."""
    return {"MC_LAYER_GRANULARITY": "1"} if granularity == "layer" else {}


def objects_per_block(granularity: str, ranks: int, layers: int) -> int:
    """At most so many: shards, a mark of completeness for each rank's layers, the manifest."""
    return ranks * (layers + 1) + 1 if granularity == "layer" else ranks + 1


def check(wanted_backends: list[str], wanted_granularities: list[str]) -> None:
    """Raises UsageError that names what of the wanted this build does not have."""
    here = backends()
    lacks = [f"back end '{name}'" for name in wanted_backends if name not in here]
    lacks += [f"granularity '{name}'" for name in wanted_granularities if name not in GRANULARITIES]
    if lacks:
        raise UsageError(
            f"this build has no {' and no '.join(lacks)}; remedy: select what it has: "
            f"--backends {','.join(here)} --granularity {','.join(GRANULARITIES)}"
        )
