"""How a scheduler learns its keyspace from the worker of rank 0 in the same process.

The pool that completes a keyspace is known to workers only. Rank 0's worker announces itself when
it is made, and its keyspace once a pool is registered; the scheduler of the same instance finds it
here. An instance is known by the object that the runtime passed to both constructors, or, where
each got a copy, by equal identity. Several instances may live in one process. No two schedulers
order blocks into the memory of one worker, and none into that of a worker which may not be its own;
what is certain once stays so.

Entries live as long as their worker. The table is bounded, since a process has few instances.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mooncake_trtllm._lifecycle import track

__all__ = ["OwnWorkerUnknownError", "Rendezvous", "SchedulerEntry", "WorkerEntry", "rendezvous"]

_MAX_ENTRIES = 1024


class OwnWorkerUnknownError(Exception):
    """Which worker is a scheduler's own is open until the next of them comes or goes."""


@dataclass(eq=False)
class WorkerEntry:
    """Rank 0's worker of one instance."""

    llm_args: Any
    identity: Any
    keyspace: bytes | None = None
    load_budget: Callable[[], int] | None = None
    stage_worker: Any = None
    layers: int = 0
    shards: int = 1


@dataclass(eq=False)
class SchedulerEntry:
    """The scheduler of one instance."""

    llm_args: Any
    identity: Any
    own: WorkerEntry | None = None
    """Once it is certain, also if it has gone."""

    def may_share_with(self, other: SchedulerEntry) -> bool:
        """Return whether the two could belong to the same worker, as far as is known."""
        return self.own is None and self.identity == other.identity


@dataclass(eq=False)
class Rendezvous:
    """Workers and schedulers of one process, each in the order in which they were made.

    The lock is reentrant and the lists are copied to walk them, since remove() may be called by the
    garbage collector at any time.
    """

    _workers: list[WorkerEntry] = field(default_factory=list)
    _schedulers: list[SchedulerEntry] = field(default_factory=list)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def add_worker(self, llm_args: Any, identity: Any) -> WorkerEntry:
        """Announce rank 0's worker. `identity` is what a keyspace has besides the pool."""
        entry = WorkerEntry(llm_args, identity)
        with self._lock:
            del self._workers[: max(0, len(self._workers) - _MAX_ENTRIES + 1)]
            self._workers.append(entry)
        return entry

    def add_scheduler(self, llm_args: Any, identity: Any) -> SchedulerEntry:
        """Announce a scheduler."""
        entry = SchedulerEntry(llm_args, identity)
        with self._lock:
            del self._schedulers[: max(0, len(self._schedulers) - _MAX_ENTRIES + 1)]
            self._schedulers.append(entry)
        return entry

    def publish(
        self,
        entry: WorkerEntry,
        keyspace: bytes,
        load_budget: Callable[[], int],
        *,
        stage_worker: Any = None,
        layers: int = 0,
        shards: int = 1,
    ) -> None:
        """Tell the keyspace of a worker, whose pool is registered now, and what its loads move.

        `stage_worker`: the core's, where promises are staged.
        `layers`: how many of a page are stored as objects of their own; 0: blocks are whole.
        `shards`: of a block, over all ranks.
        """
        with self._lock:
            entry.keyspace, entry.load_budget = keyspace, load_budget
            entry.stage_worker = stage_worker
            entry.layers, entry.shards = layers, shards

    def remove(self, entry: WorkerEntry | SchedulerEntry) -> None:
        """Forget a worker or scheduler. Idempotent."""
        with self._lock:
            entries: list[Any] = (
                self._workers if isinstance(entry, WorkerEntry) else self._schedulers
            )
            if entry in entries:
                entries.remove(entry)
            if isinstance(entry, WorkerEntry):
                # They keep the core's worker alive.
                entry.load_budget = entry.stage_worker = None

    def give_up(self) -> None:
        """Start anew in a forked child, whose parent may have held the lock."""
        self._workers, self._schedulers = [], []
        self._lock = threading.RLock()

    def load_budget_for(self, scheduler: SchedulerEntry) -> int | None:
        """Return the blocks that one step of the scheduler's workers can load, if that is known."""
        with self._lock:
            own = self._own(scheduler)
            return min((w.load_budget() for w in own if w.load_budget is not None), default=None)

    def stage_worker_for(self, scheduler: SchedulerEntry, keyspace: bytes) -> Any:
        """Return the core's worker of rank 0, None if that one does not stage promises.

        Raises OwnWorkerUnknownError while it is open which of several workers that is. None if they
        got copies of the arguments: then nothing will ever tell.
        """
        with self._lock:
            own = [w for w in self._own(scheduler) if w.keyspace == keyspace]
            is_copy = bool(own) and own[0].llm_args is not scheduler.llm_args
            if len(own) == 1 and (not is_copy or self._is_left_to(scheduler, own[0])):
                scheduler.own = own[0]
                return own[0].stage_worker
            if len(own) > 1 and is_copy:
                return None
            raise OwnWorkerUnknownError(
                f"{len(own)} workers of this process have the arguments of the scheduler, and not "
                "as many schedulers: which of them is its own is open"
            )

    def _is_left_to(self, scheduler: SchedulerEntry, worker: WorkerEntry) -> bool:
        """Return whether no other scheduler that is known could own the worker.

        That are schedulers with its arguments, and those that, as this one, got copies of them.
        """
        known = [w.llm_args for w in tuple(self._workers)]
        return not any(
            s.own is worker
            or s.llm_args is worker.llm_args
            or (s.may_share_with(scheduler) and not any(s.llm_args is args for args in known))
            for s in tuple(self._schedulers)
            if s is not scheduler
        )

    def _own(self, scheduler: SchedulerEntry) -> list[WorkerEntry]:
        """Return the scheduler's own worker, or all that may be it while that is open.

        Several instances may be made from one object: then the n-th scheduler belongs to the n-th
        worker, of those that are not certain yet, if there are as many of one as of the other. With
        more schedulers than workers none is found, since one's own may still have to come.
        """
        workers = tuple(self._workers)
        if scheduler.own is not None:
            return [scheduler.own] if scheduler.own in workers else []
        schedulers = tuple(self._schedulers)
        twins = [w for w in workers if w.identity == scheduler.identity]
        if not any(w.llm_args is scheduler.llm_args for w in twins):
            return twins
        taken = [s.own for s in schedulers if s.own is not None]
        own = [w for w in twins if w.llm_args is scheduler.llm_args and w not in taken]
        peers = [
            s
            for s in schedulers
            if s.llm_args is scheduler.llm_args and s.may_share_with(scheduler)
        ]
        if len(peers) == len(own) and scheduler in peers:
            return [own[peers.index(scheduler)]]
        return own if len(own) > len(peers) else []

    def layers_of(self, keyspace: bytes) -> int:
        """Return how many layers the workers of a keyspace, which covers that, store apart."""
        with self._lock:
            return max((w.layers for w in self._workers if w.keyspace == keyspace), default=0)

    def shards_of(self, keyspace: bytes) -> int:
        """Return how many shards a block of a keyspace, which covers that, has over all ranks."""
        with self._lock:
            return max((w.shards for w in self._workers if w.keyspace == keyspace), default=1)

    def keyspace_for(self, scheduler: SchedulerEntry) -> bytes | None:
        """Return the keyspace of the scheduler's own workers, None while that is not known."""
        with self._lock:
            own = self._own(scheduler)
            if len(own) == 1 and own[0].keyspace and own[0].llm_args is scheduler.llm_args:
                scheduler.own = own[0]
            return _agreed(own)


def _agreed(workers: list[WorkerEntry]) -> bytes | None:
    """The keyspace that all of them have, if they have the same."""
    keyspaces = {worker.keyspace for worker in workers}
    return keyspaces.pop() if len(keyspaces) == 1 else None


rendezvous = Rendezvous()
track(rendezvous)
