"""Ranks as threads of this process."""

from __future__ import annotations

import os
import queue
import threading
from typing import Any

from mooncake_trtllm._set_by import marked
from mooncake_trtllm.simulator import mpi_stand_in
from mooncake_trtllm.simulator.collectives import ThreadGroup
from mooncake_trtllm.simulator.config import InstanceConfig
from mooncake_trtllm.simulator.rank_loop import Operation, serve

__all__ = ["ThreadRanks"]


_NOTICE_S = 1.0
"""For ranks to notice that the instance has failed."""
_FAREWELL_S = 30.0
"""For one that cannot at once: it has failed and closes its store, or still opens it. Either takes
seconds on a busy machine."""


class _QueueChannel:
    def __init__(self, rank: int, events: queue.SimpleQueue[tuple[int, tuple[str, Any]]]) -> None:
        self._rank = rank
        self._events = events
        self.starting = True
        self.failed = False
        """The rank is on its way out."""
        self.operations: queue.SimpleQueue[list[Operation] | None] = queue.SimpleQueue()

    def send(self, message: tuple[str, Any]) -> None:
        self.failed = self.failed or message[0] == "failed"
        self.starting = self.starting and message[0] == "alive"
        self._events.put((self._rank, message))

    def receive(self) -> list[Operation] | None:
        return self.operations.get()


class ThreadRanks:
    """Starts one thread for each rank. A thread that hangs cannot be ended: it is left behind."""

    def __init__(self, config: InstanceConfig) -> None:
        mpi_stand_in.install()
        self._events: queue.SimpleQueue[tuple[int, tuple[str, Any]]] = queue.SimpleQueue()
        self._group = ThreadGroup(config.tp, config.hang_timeout_s)
        self._channels = [_QueueChannel(rank, self._events) for rank in range(config.tp)]
        environment = marked(config.env)
        self._saved_environment = {name: os.environ.get(name) for name in environment}
        os.environ.update(environment)
        self._threads = [
            threading.Thread(
                target=self._run, args=(config, rank), name=f"sim-rank-{rank}", daemon=True
            )
            for rank in range(config.tp)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def pids(self) -> list[int]:
        """Once for each rank: the pid of this process."""
        return [os.getpid()] * len(self._threads)

    def started(self) -> None:
        """The ranks have read their settings: this process gets its environment back."""
        for name, value in self._saved_environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._saved_environment = {}

    def send(self, operations: list[Operation] | None) -> None:
        """The same operations to every rank."""
        for channel in self._channels:
            channel.operations.put(operations)

    def receive(self, timeout_s: float) -> list[tuple[int, tuple[str, Any]]]:
        """Messages that have arrived, after at most `timeout_s`."""
        try:
            return [self._events.get(timeout=timeout_s)]
        except queue.Empty:
            return []

    def end(self, *, failed: bool) -> None:
        """Waits for the threads; after a failure only for those that notice it.

        One that is left behind while it closes or opens a store would crash the process at its
        exit, or let it complain of objects that are still in use.
        """
        if failed:
            self._group.abort("the instance has failed")
            self.send(None)
        for thread in self._threads:
            thread.join(_NOTICE_S if failed else None)
        for thread, channel in zip(self._threads, self._channels, strict=True):
            if channel.failed or channel.starting:
                thread.join(_FAREWELL_S)
        # Not before: a rank that is still starting would read the settings of this process, and
        # open its store.
        self.started()
        mpi_stand_in.remove()

    def _run(self, config: InstanceConfig, rank: int) -> None:
        def enter() -> None:
            mpi_stand_in.enter(rank, config.tp)

        enter()
        serve(
            config,
            rank,
            self._group.member(rank),
            self._channels[rank],
            enter_thread=enter,
            abort=self._group.abort,
        )
