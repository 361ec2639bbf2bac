"""In front of the memory store: a gate at which tests hold calls up, or seeded faults."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Protocol

import pytest

__all__ = ["FaultyStore", "Gate", "fault_stores", "gate_stores"]


class Gate(Protocol):
    """The store of mooncake_trtllm._testing, a module that is built for tests only."""

    def close_gate(self, *, before_reply: bool = False) -> None:
        """Calls wait from now on."""

    def open_gate(self) -> None:
        """All calls pass."""

    def let_pass(self, count: int) -> None:
        """So many of the calls that wait, or come next, pass."""

    def waiting(self) -> int:
        """Calls at the gate."""

    def count(self, op: str) -> int:
        """Calls so far of exists, put, get or remove."""

    def wait_for_waiting(self, count: int) -> bool:
        """Wait until so many calls stand at the gate."""

    def answer_with(self, reaction: str) -> None:
        """Answer instead of the inner store; "ok" ends it."""

    def registered(self) -> int:
        """Memory regions that are registered now."""

    def exists(self, keys: list[str], timeout_s: float = 5.0) -> list[str]:
        """Ask the store itself."""


class FaultyStore(Protocol):
    """The store of mooncake_trtllm._testing that answers some items otherwise, by seed."""

    def fired(self) -> int:
        """How many."""


def gate_stores(patch: pytest.MonkeyPatch) -> list[Gate]:
    """Put a gate in front of every memory store that is opened from now on; they are listed."""
    gates: list[Gate] = []

    def gated(store: Any) -> Any:
        gates.append(_testing().GatedStore(store))
        return gates[-1]

    _wrap_stores(patch, gated)
    return gates


def fault_stores(
    patch: pytest.MonkeyPatch, *, op: str, reaction: str, chance: int, seed: int = 1
) -> list[FaultyStore]:
    """Let items of every memory store that is opened from now on fail; the stores are listed.

    `chance` in a million of the items of `op` are answered with `reaction`.
    """
    stores: list[FaultyStore] = []

    def faulty(store: Any) -> Any:
        stores.append(
            _testing().FaultyStore(store, seed=seed, op=op, reaction=reaction, chance=chance)
        )
        return stores[-1]

    _wrap_stores(patch, faulty)
    return stores


def _testing() -> Any:
    return importlib.import_module("mooncake_trtllm._testing")


def _wrap_stores(patch: pytest.MonkeyPatch, wrap: Callable[[Any], Any]) -> None:
    from mooncake_trtllm import _stores

    inner = _stores.StoreRegistry._memory_store

    def wrapped(self: Any, key: Any, capacity: int) -> Any:
        return wrap(inner(self, key, capacity))

    patch.setattr(_stores.StoreRegistry, "_memory_store", wrapped)
