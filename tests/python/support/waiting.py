"""Waiting for what other processes and threads do: bounded, and over as soon as it holds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

__all__ = ["alive", "descendants", "thread_states", "until", "wait_until", "wait_until_gone"]

PATIENCE_S = 60.0


def wait_until(condition: Callable[[], bool], timeout_s: float = 10.0) -> bool:
    """Whether `condition` came to hold within the bound."""
    deadline = time.monotonic() + timeout_s
    event = threading.Event()
    while not condition():
        if time.monotonic() > deadline:
            return False
        event.wait(0.01)
    return True


def until(condition: Callable[[], bool], what: str = "it") -> None:
    """Waits for what must come to hold."""
    assert wait_until(condition, PATIENCE_S), f"waited {PATIENCE_S:.0f} s in vain for {what}"


def thread_states(pid: int) -> set[str]:
    """The letters of proc(5) for the threads of a process; none if it is gone."""
    states = set()
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        try:
            # "pid (name) state ...", and a name may hold spaces and parentheses.
            states.add(stat.read_text().rpartition(")")[2].split()[0])
        except OSError:
            continue  # This thread has ended since.
    return states


def alive(pid: int) -> bool:
    """Whether a thread of a process runs; a zombie does not."""
    return not thread_states(pid) <= {"Z", "X"}


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
