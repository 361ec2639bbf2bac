"""Requests whose pages wait for the workers: pinned after their end, or parked while they load."""

from __future__ import annotations

from mooncake_trtllm.simulator.calls import WorkerCalls
from mooncake_trtllm.simulator.collectives import Collective
from mooncake_trtllm.simulator.record import Record

__all__ = ["Completions"]


class Completions:
    """Asks `get_finished` every turn; an id counts when every rank has reported it."""

    def __init__(self, worker: WorkerCalls, collective: Collective, world_size: int) -> None:
        self._worker = worker
        self._collective = collective
        self._world_size = world_size
        self.pinned: dict[int, Record] = {}
        self.loading: dict[int, Record] = {}
        self._new_pins: list[int] = []
        self._new_loads: list[int] = []
        self._saved: dict[int, set[int]] = {}
        self._loaded: dict[int, set[int]] = {}

    def pin(self, record: Record) -> None:
        """`request_finished` said True: the pages stay until all ranks report the id as saved."""
        self.pinned[record.request_id] = record
        self._new_pins.append(record.request_id)

    def park(self, record: Record) -> None:
        """An asynchronous load began: the request rejoins when all ranks report it as loaded."""
        self.loading[record.request_id] = record
        self._new_loads.append(record.request_id)

    def abandon(self, record: Record) -> None:
        """The request ended while it was parked; the runtime does not wait for its load."""
        self.loading.pop(record.request_id, None)

    def poll(self) -> tuple[list[Record], list[Record]]:
        """One `get_finished` on every rank; returns who may be freed and who may rejoin."""
        answer = self._worker.get_finished(self._new_pins, self._new_loads)
        self._new_pins, self._new_loads = [], []
        for rank, (saved, loaded) in enumerate(self._collective.allgather(answer)):
            for request_id in saved:
                self._saved.setdefault(request_id, set()).add(rank)
            for request_id in loaded:
                self._loaded.setdefault(request_id, set()).add(rank)
        freed = [self.pinned.pop(request_id) for request_id in self._complete(self._saved)]
        rejoined = [
            self.loading.pop(request_id)
            for request_id in self._complete(self._loaded)
            if request_id in self.loading
        ]
        return freed, rejoined

    def _complete(self, reports: dict[int, set[int]]) -> list[int]:
        done = sorted(i for i, ranks in reports.items() if len(ranks) == self._world_size)
        for request_id in done:
            del reports[request_id]
        return done
