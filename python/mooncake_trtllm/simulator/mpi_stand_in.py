"""A stand-in for `tensorrt_llm._utils`, by which ranks that are threads know who they are.

It exists only while instances with thread ranks live and no real TensorRT-LLM is installed.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
import threading
import types

from mooncake_trtllm.simulator.violations import SimulationError

__all__ = ["RankIdentity", "enter", "install", "remove"]

_PACKAGE = "tensorrt_llm"
_MODULE = "tensorrt_llm._utils"
_lock = threading.Lock()
_users = 0


class RankIdentity(threading.local):
    """Rank and world size of the current thread."""

    rank = 0
    world_size = 1


_identity = RankIdentity()


def enter(rank: int, world_size: int) -> None:
    """Makes the current thread a rank."""
    _identity.rank = rank
    _identity.world_size = world_size


def install() -> None:
    """Puts the stand-in in place, or one more user on it. Raises where the real one would win."""
    global _users
    with _lock:
        if _users == 0:
            if _PACKAGE in sys.modules or importlib.util.find_spec(_PACKAGE) is not None:
                raise SimulationError(
                    "ranks cannot be threads where TensorRT-LLM is installed, whose mpi_rank() is "
                    "one per process; remedy: let every rank be a process (ranks='processes')"
                )
            for name in (_PACKAGE, _MODULE):
                module = types.ModuleType(name)
                module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
                module.__path__ = []
                sys.modules[name] = module
            utilities = sys.modules[_MODULE]
            utilities.__dict__["mpi_rank"] = lambda: _identity.rank
            utilities.__dict__["mpi_world_size"] = lambda: _identity.world_size
            sys.modules[_PACKAGE].__dict__["_utils"] = utilities
        _users += 1


def remove() -> None:
    """One user less; the last one takes the stand-in away."""
    global _users
    with _lock:
        _users -= 1
        if _users == 0:
            for name in (_MODULE, _PACKAGE):
                sys.modules.pop(name, None)
