"""Which rank of how many this instance is."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mooncake_trtllm.errors import KvConnectorConfigError
from mooncake_trtllm.shim import find_runtime

__all__ = ["Rank", "resolve_rank"]

# (rank, world size) as launchers state them. PMIx states no size.
_LAUNCHER_VARIABLES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("PMIX_RANK", None),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)
_REMEDY = (
    "Remedy: start as many ranks as tensor_parallel_size says, or state them with MC_RANK and "
    "MC_WORLD_SIZE"
)


@dataclass(frozen=True)
class Rank:
    """A rank, its world and where both were learnt."""

    rank: int
    world_size: int
    source: str


def resolve_rank(
    tensor_parallel_size: int,
    stated_rank: int | None = None,
    stated_world_size: int | None = None,
) -> Rank:
    """Return the rank of the calling thread. Raises KvConnectorConfigError if it does not fit.

    What is stated (MC_RANK, MC_WORLD_SIZE) counts unless the runtime itself can be asked.

    Call it in the constructor, on the thread that the runtime calls: ranks may be threads of one
    process, and then only that thread knows which one it is.
    """
    found = _from_runtime(tensor_parallel_size)
    if found is None:
        found = _from_settings(stated_rank, stated_world_size)
    if found is None:
        found = _from_launcher(tensor_parallel_size, os.environ)
    if found.world_size != tensor_parallel_size:
        raise KvConnectorConfigError(
            f"{found.world_size} rank(s) according to {found.source}, but tensor_parallel_size is "
            f"{tensor_parallel_size}: every rank holds one shard of each block, so they must be "
            f"equal. {_REMEDY}"
        )
    if not 0 <= found.rank < found.world_size:
        raise KvConnectorConfigError(
            f"rank {found.rank} according to {found.source} is outside of 0..{found.world_size - 1}"
            f" (tensor_parallel_size {tensor_parallel_size}). {_REMEDY}"
        )
    return found


def _from_runtime(tensor_parallel_size: int) -> Rank | None:
    utils = find_runtime("tensorrt_llm._utils")
    mpi_rank = _function(utils, "mpi_rank")
    if mpi_rank is None:
        return None
    mpi_world_size = _function(utils, "mpi_world_size")  # absent in older versions
    world_size = mpi_world_size() if mpi_world_size else tensor_parallel_size
    return Rank(int(mpi_rank()), int(world_size), "tensorrt_llm._utils.mpi_rank()")


def _function(module: Any, name: str) -> Callable[[], int] | None:
    # A stand-in module may invent a class for any name; only functions are taken at their word.
    value = getattr(module, name, None)
    return value if callable(value) and not isinstance(value, type) else None


def _from_settings(rank: int | None, size: int | None) -> Rank | None:
    if rank is None or size is None:  # Settings take both or none.
        return None
    return Rank(rank, size, "MC_RANK and MC_WORLD_SIZE")


def _from_launcher(tensor_parallel_size: int, environment: Mapping[str, str]) -> Rank:
    for rank_name, size_name in _LAUNCHER_VARIABLES:
        if rank_name in environment:
            rank = _integer(rank_name, environment)
            if size_name is None or size_name not in environment:
                return Rank(rank, tensor_parallel_size, rank_name)
            return Rank(rank, _integer(size_name, environment), f"{rank_name} and {size_name}")
    return Rank(0, 1, "the default (no launcher's variables are set)")


def _integer(name: str, environment: Mapping[str, str]) -> int:
    try:
        return int(environment[name])
    except ValueError:
        raise KvConnectorConfigError(
            f"{name}={environment[name]!r} is no integer. Remedy: correct or unset {name}"
        ) from None
