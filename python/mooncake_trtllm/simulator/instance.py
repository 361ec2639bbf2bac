"""One engine instance under simulation: what tests and verbs use.

    with Instance(config) as instance:
        ticket = instance.submit(Prompt(tokens))
        [result] = instance.run()
        instance.drain()

Every method runs on all ranks in lockstep. The first rank that fails ends the instance, and the
method raises what it found: InvariantError, or RankError for everything else (a start-up
error of the connector, a rank that died or hung). Both are bounded in time.
"""

from __future__ import annotations

import time
from dataclasses import replace
from types import TracebackType
from typing import Any

from mooncake_trtllm.simulator.config import ConnectorNames, InstanceConfig
from mooncake_trtllm.simulator.process_ranks import ProcessRanks
from mooncake_trtllm.simulator.prompt import Prompt
from mooncake_trtllm.simulator.rank_loop import Operation
from mooncake_trtllm.simulator.record import RequestResult
from mooncake_trtllm.simulator.thread_ranks import ThreadRanks
from mooncake_trtllm.simulator.violations import (
    RankFailure,
    SimulationError,
    to_exception,
)

__all__ = ["Instance"]

_POLL_S = 0.2
_ECHO_WAIT_S = 1.0
_HANG_MARGIN_S = 5.0
_WARM_UP_S = 10.0


class Instance:
    """Not for use from several threads at once. Start it from a thread that outlives it."""

    def __init__(self, config: InstanceConfig) -> None:
        self.config = config
        self._ranks: ThreadRanks | ProcessRanks | None = None
        self._next_ticket = 0

    # Life cycle ------------------------------------------------------------------------------

    def start(self) -> Instance:
        """Constructs the connector on every rank and registers the pools."""
        if self._ranks is not None:
            raise SimulationError("the instance is already started; remedy: make another one")
        # Named before any stand-in of the runtime's modules can be mistaken for the runtime.
        names = self.config.connector or ConnectorNames.default()
        config = replace(self.config, connector=names)
        threads = config.ranks == "threads"
        ranks = ThreadRanks(config) if threads else ProcessRanks(config)
        self._ranks = ranks
        try:
            self._replies()
        except BaseException:
            self._end(failed=True)
            raise
        ranks.started()
        self._warm_up()
        return self

    def _warm_up(self) -> None:
        """Steps without blocks, as engines make some before they serve, until all ranks are met."""
        give_up = time.monotonic() + _WARM_UP_S
        while self._ranks_awaited() and time.monotonic() < give_up:
            self.serve(Prompt([1], cache_salt="warm-up", max_new_tokens=1))

    def _ranks_awaited(self) -> int:
        if self.config.tp == 1:
            return 0
        scheduler = self.stats()[0].get("scheduler") or {}
        return int(scheduler.get("ranks_awaited", 0))

    def close(self) -> None:
        """Closes the connector and ends the ranks. Idempotent."""
        if self._ranks is None:
            return
        try:
            self._ranks.send(None)
            self._replies()
        except BaseException:
            self._end(failed=True)
            raise
        self._end(failed=False)

    def kill(self) -> None:
        """Ends the instance without any farewell, as a crash would."""
        self._end(failed=True)

    def restart(self) -> Instance:
        """Closes this instance and starts a fresh one of the same configuration in its place."""
        self.close()
        return self.start()

    def __enter__(self) -> Instance:
        return self if self._ranks is not None else self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self.kill()

    @property
    def pids(self) -> list[int]:
        """The process of each rank."""
        return [] if self._ranks is None else self._ranks.pids

    # Work ------------------------------------------------------------------------------------

    def submit(self, prompt: Prompt) -> int:
        """Queues a request and returns its ticket."""
        self._next_ticket += 1
        self._execute([("submit", (self._next_ticket, prompt))])
        return self._next_ticket

    def cancel(self, ticket: int) -> None:
        """Cancels a request; it ends with the next turn."""
        self._execute([("cancel", (ticket,))])

    def step(self, turns: int = 1) -> list[RequestResult]:
        """Runs so many turns, idle or not; returns the requests that ended."""
        operations: list[Operation] = [("turn", ())] * turns
        return self._results([*operations, ("take_results", ())])

    def run(self) -> list[RequestResult]:
        """Runs until idle; returns the requests that ended, in the order of their tickets."""
        return self._results([("run", ())])

    def serve(self, prompt: Prompt, *, drain_s: float | None = None) -> RequestResult:
        """One request from submission to end, then (optionally) all its saves."""
        self._next_ticket += 1
        operations: list[Operation] = [("submit", (self._next_ticket, prompt)), ("run", ())]
        if drain_s is not None:
            operations.append(("drain", (drain_s,)))
        replies = self._execute(operations)
        [result] = _merged([rank_replies[1] for rank_replies in replies])
        return result

    def drain(self, timeout_s: float = 30.0) -> None:
        """Waits for all queued saves on all ranks and checks balance and counters (I4, I6, I7)."""
        self._execute([("drain", (timeout_s,))])

    def stats(self) -> list[dict[str, Any]]:
        """For each rank: `scheduler` (rank 0), `worker` and the driver's own `ledger`."""
        return [replies[0] for replies in self._execute([("stats", ())])]

    # Inside ----------------------------------------------------------------------------------

    def _results(self, operations: list[Operation]) -> list[RequestResult]:
        return _merged([replies[-1] for replies in self._execute(operations)])

    def _execute(self, operations: list[Operation]) -> list[list[Any]]:
        if self._ranks is None:
            raise SimulationError("the instance is not running; remedy: start() it")
        self._ranks.send(operations)
        try:
            return self._replies()
        except BaseException:
            self._end(failed=True)
            raise

    def _replies(self) -> list[Any]:
        """One reply of each rank, or the first failure (the cause rather than its echoes)."""
        assert self._ranks is not None
        replies: dict[int, Any] = {}
        failures: list[RankFailure] = []
        heard = dict.fromkeys(range(self.config.tp), time.monotonic())
        limit = self.config.hang_timeout_s + _HANG_MARGIN_S
        give_up: float | None = None
        while len(replies) < self.config.tp:
            for rank, (kind, content) in self._ranks.receive(_POLL_S):
                heard[rank] = time.monotonic()
                if rank in replies or any(failure.rank == rank for failure in failures):
                    continue  # It has said what it had to say; its end is no news.
                if kind == "failed":
                    failures.append(content)
                    give_up = give_up or time.monotonic() + _ECHO_WAIT_S
                elif kind == "done":
                    replies[rank] = content
            now = time.monotonic()
            quiet = [r for r in heard if r not in replies and now - heard[r] > limit]
            if quiet and not failures:
                text = f"no sign of life for {limit:.0f} s"
                failures.append(RankFailure(quiet[0], "crash", "RankHung", text))
                give_up = now
            cause = next((f for f in failures if f.kind != "collective"), None)
            if cause is not None:
                raise to_exception(cause)
            if give_up is not None and now >= give_up:
                raise to_exception(failures[0])
        return [replies[rank] for rank in range(self.config.tp)]

    def _end(self, *, failed: bool) -> None:
        ranks, self._ranks = self._ranks, None
        if ranks is not None:
            ranks.end(failed=failed)


def _merged(by_rank: list[list[RequestResult]]) -> list[RequestResult]:
    """One result for each request; a block counts as verified if it was on every rank."""
    merged = sorted(by_rank[0], key=lambda result: result.ticket)
    for other in by_rank[1:]:
        for result, twin in zip(merged, sorted(other, key=lambda r: r.ticket), strict=True):
            if (result.ticket, result.state) != (twin.ticket, twin.state):
                raise SimulationError(f"ranks disagree on request {result.ticket}")
            result.blocks_verified = min(result.blocks_verified, twin.blocks_verified)
    return merged
