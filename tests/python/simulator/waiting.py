"""Waiting for what other processes and threads do: bounded, and over as soon as it holds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

__all__ = ["alive", "descendants", "wait_until", "wait_until_gone"]


def wait_until(condition: Callable[[], bool], timeout_s: float = 10.0) -> bool:
    """Whether `condition` came to hold within the bound."""
    deadline = time.monotonic() + timeout_s
    event = threading.Event()
    while not condition():
        if time.monotonic() > deadline:
            return False
        event.wait(0.01)
    return True


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def descendants(pid: int) -> list[int]:
    """The children of a process, and theirs."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        try:
            children = task.joinpath("children").read_text().split()
        except OSError:
            continue  # It ended meanwhile.
        for child in map(int, children):
            found += [child, *descendants(child)]
    return found


def wait_until_gone(pids: Iterable[int]) -> bool:
    """Whether all of them ended within the bound."""
    waiting = list(pids)
    return wait_until(lambda: not any(alive(pid) for pid in waiting))
