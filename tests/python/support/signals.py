"""Signals to other processes whose effect is there when the call returns.

`os.kill` returns once the kernel has noted a signal. Until one thread of the process has taken it,
which on busy cores takes milliseconds, all others go on: a store that was just stopped or killed
answers what it is asked. A test that expects it not to must not begin before.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from support.waiting import alive, thread_states, until

__all__ = ["kill", "resume", "stop", "stopped"]


def stop(pid: int) -> None:
    """Stops all threads of a process, which must run."""
    os.kill(pid, signal.SIGSTOP)
    until(lambda: thread_states(pid) == {"T"}, f"process {pid} to stop")


def resume(pid: int) -> None:
    """Lets a stopped process run again, at some time soon."""
    os.kill(pid, signal.SIGCONT)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """It is stopped in the body, and runs again after it."""
    stop(pid)
    try:
        yield
    finally:
        resume(pid)


def kill(pid: int) -> None:
    """Ends a process, stopped or not: its sockets are closed. Its parent collects its status."""
    os.kill(pid, signal.SIGKILL)
    # The last thread closes the descriptors of all, before it is a zombie.
    until(lambda: not alive(pid), f"process {pid} to die")
