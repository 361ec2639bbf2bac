"""A gate in front of the memory store: tests hold calls up there, or answer instead of it."""

from __future__ import annotations

import importlib
from typing import Any, Protocol

import pytest

__all__ = ["Gate", "gate_stores"]


class Gate(Protocol):
    """The store of mooncake_trtllm._testing, a module that is built for tests only."""

    def close_gate(self, *, before_reply: bool = False) -> None:
        """Calls wait from now on."""

    def open_gate(self) -> None:
        """All calls pass."""

    def wait_for_waiting(self, count: int) -> bool:
        """Wait until so many calls stand at the gate."""

    def answer_with(self, reaction: str) -> None:
        """Answer instead of the inner store; "ok" ends it."""

    def registered(self) -> int:
        """Memory regions that are registered now."""

    def exists(self, keys: list[str], timeout_s: float = 5.0) -> list[str]:
        """Ask the store itself."""


def gate_stores(patch: pytest.MonkeyPatch) -> list[Gate]:
    """Put a gate in front of every memory store that is opened from now on; they are listed."""
    from mooncake_trtllm import _stores

    testing: Any = importlib.import_module("mooncake_trtllm._testing")
    gates: list[Gate] = []
    inner = _stores.StoreRegistry._memory_store

    def gated(self: Any, key: Any, capacity: int) -> Any:
        gates.append(testing.GatedStore(inner(self, key, capacity)))
        return gates[-1]

    patch.setattr(_stores.StoreRegistry, "_memory_store", gated)
    return gates
