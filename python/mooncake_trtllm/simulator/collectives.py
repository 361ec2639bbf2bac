"""Rendezvous between the ranks of one instance; a missing rank fails them, it never hangs them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, Protocol

from mooncake_trtllm.simulator.violations import CollectiveError

__all__ = ["Collective", "PipeCollective", "ThreadGroup"]


class Collective(Protocol):
    """What the runtime's MPI layer offers one rank."""

    def allgather(self, value: Any) -> list[Any]:
        """Everyone's value, by rank."""

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value; the others' is ignored."""


class ThreadGroup:
    """The ranks of one instance as threads of one process."""

    def __init__(self, size: int, timeout_s: float) -> None:
        self._size = size
        self._timeout_s = timeout_s
        self._condition = threading.Condition()
        self._rounds: dict[int, dict[int, Any]] = {}
        self._left: dict[int, int] = {}
        self._aborted: str | None = None

    def member(self, rank: int) -> Collective:
        """The view of one rank."""
        return _ThreadMember(self, rank)

    def abort(self, reason: str) -> None:
        """Fails everyone who waits or comes later."""
        with self._condition:
            self._aborted = self._aborted or reason
            self._condition.notify_all()

    def exchange(self, rank: int, number: int, value: Any) -> list[Any]:
        """Deposits a value for round `number` and takes everyone's."""
        with self._condition:
            values = self._rounds.setdefault(number, {})
            values[rank] = value
            if len(values) == self._size:
                self._condition.notify_all()
            complete = self._condition.wait_for(
                lambda: len(values) == self._size or self._aborted is not None, self._timeout_s
            )
            if self._aborted is not None:
                raise CollectiveError(self._aborted)
            if not complete:
                missing = sorted(set(range(self._size)) - values.keys())
                raise CollectiveError(
                    f"rank {missing[0]} did not reach a collective within {self._timeout_s:.0f} s"
                )
            self._left[number] = self._left.get(number, 0) + 1
            if self._left[number] == self._size:
                del self._rounds[number], self._left[number]
            return [values[member] for member in range(self._size)]


class _ThreadMember:
    def __init__(self, group: ThreadGroup, rank: int) -> None:
        self._group = group
        self._rank = rank
        self._number = 0

    def allgather(self, value: Any) -> list[Any]:
        self._number += 1
        return self._group.exchange(self._rank, self._number, value)

    def broadcast(self, value: Any) -> Any:
        return self.allgather(value)[0]


class PipeCollective:
    """A rank that is a process. Rank 0 is the hub and holds a pipe to each of the others."""

    def __init__(self, rank: int, pipes: Sequence[Connection], timeout_s: float) -> None:
        self._rank = rank
        self._pipes = pipes
        self._timeout_s = timeout_s

    def allgather(self, value: Any) -> list[Any]:
        """Everyone's value, by rank."""
        if self._rank == 0:
            values = [value]
            values += [self._receive(pipe, peer) for peer, pipe in enumerate(self._pipes, 1)]
            for peer, pipe in enumerate(self._pipes, 1):
                self._send(pipe, peer, values)
            return values
        self._send(self._pipes[0], 0, value)
        return [*self._receive(self._pipes[0], 0)]

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value."""
        return self.allgather(value if self._rank == 0 else None)[0]

    def _send(self, pipe: Connection, peer: int, value: Any) -> None:
        try:
            pipe.send(value)
        except OSError as error:
            raise CollectiveError(f"rank {peer} is gone ({error})") from error

    def _receive(self, pipe: Connection, peer: int) -> Any:
        try:
            if not pipe.poll(self._timeout_s):
                raise CollectiveError(
                    f"rank {peer} did not reach a collective within {self._timeout_s:.0f} s"
                )
            return pipe.recv()
        except (EOFError, OSError) as error:
            raise CollectiveError(f"rank {peer} is gone ({error!r})") from error
