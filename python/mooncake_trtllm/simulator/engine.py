"""One rank of an engine: the runtime's loop over scheduler, worker, allocator and pool.

Every rank runs this loop in lockstep, as the runtime's ranks do. One turn:

 1. form a batch; for each new request: local match, query (leader, broadcast), allocation
 2. build the metadata (leader, pickled, broadcast), bind it, start the load
 3. a load that raises on any rank fails the whole batch closed on all of them
 4. forward: per layer hook, check everything before this pass against the oracle, compute, hook;
    then the forward callable and `wait_for_save`. A hook that raises fails the batch as above, and
    the other ranks, which would hang in a collective of the model, never come to `wait_for_save`
 5. end finished requests (of the previous batch under the overlap scheduler), then cancelled ones
 6. `get_finished` on every rank, gathered; pages are freed when all ranks have reported
 7. check what was freed
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from mooncake_trtllm.simulator.batching import blocks_for, chunk_after_match, form_batch
from mooncake_trtllm.simulator.blocks import BlockManager
from mooncake_trtllm.simulator.calls import SchedulerCalls, WorkerCalls
from mooncake_trtllm.simulator.collectives import Collective
from mooncake_trtllm.simulator.completions import Completions
from mooncake_trtllm.simulator.config import ConnectorNames, InstanceConfig, make_llm_args
from mooncake_trtllm.simulator.forward import ForwardPass, Step
from mooncake_trtllm.simulator.ledger import Ledger
from mooncake_trtllm.simulator.oracle import Oracle
from mooncake_trtllm.simulator.pool import Pool
from mooncake_trtllm.simulator.prompt import Prompt
from mooncake_trtllm.simulator.record import Record, RequestResult, State
from mooncake_trtllm.simulator.reports import BatchReporter
from mooncake_trtllm.simulator.violations import InvariantError, SimulationError

__all__ = ["Engine"]

_GATE_POLL_S = 0.01


class Engine:
    """The loop of one rank. All methods are called by the rank's own thread."""

    def __init__(
        self,
        config: InstanceConfig,
        rank: int,
        collective: Collective,
        *,
        beat: Callable[[], None],
        enter_thread: Callable[[], None],
    ) -> None:
        self.config = config
        self.rank = rank
        self._collective = collective
        self._beat = beat
        geometry = config.geometry
        self._pool = Pool(config.pool_geometry or geometry, config.tp, config.pool_blocks)
        self._blocks = BlockManager(
            self._pool, reuse=config.block_reuse, partial_reuse=config.partial_reuse
        )
        oracle = Oracle(geometry, config.tp, rank, config.model.identity)
        self._oracle = oracle
        self.ledger = Ledger(self._pool.page_bytes)
        self._requests: dict[int, Record] = {}
        self._results: dict[int, RequestResult] = {}
        self._ended_tickets: list[int] = []
        self._next_request_id = 1000
        self._previous: list[Step] = []
        self._progressed_at = time.monotonic()
        self._blocks_loading = 0
        self._start(enter_thread)
        self._reporter = BatchReporter(config)
        self._forward = ForwardPass(config, oracle, self._pool, self._worker, self.ledger)
        self._completions = Completions(self._worker, collective, config.tp)

    # Start -----------------------------------------------------------------------------------

    def _start(self, enter_thread: Callable[[], None]) -> None:
        """Constructs both classes at once in pool threads, then registers the pool."""
        import importlib

        names = self.config.connector or ConnectorNames.default()
        module = importlib.import_module(names.connector_module)
        worker_class = getattr(module, names.connector_worker_class)
        scheduler_class = getattr(module, names.connector_scheduler_class)
        arguments = make_llm_args(self.config, names)
        scheduler: Any = None
        with ThreadPoolExecutor(2, initializer=enter_thread) as executor:
            pending_worker = executor.submit(worker_class, arguments)
            if self.rank == 0:
                scheduler = executor.submit(scheduler_class, arguments).result()
            worker = pending_worker.result()
        bound = self.config.callback_bound_s
        self._worker = WorkerCalls(worker, self.ledger, bound, self._beat)
        self._scheduler: SchedulerCalls | None = None
        self._worker.register(self._pool.tensor)
        if self.rank == 0:
            self._scheduler = SchedulerCalls(
                scheduler, self.config.geometry.tokens_per_block, self.ledger, bound, self._beat
            )
            if self.config.shape != "1.1":
                self._scheduler.wait_for_initialization()
        self._collective.allgather(None)

    # Operations ------------------------------------------------------------------------------

    def submit(self, ticket: int, prompt: Prompt) -> None:
        """Queues a request."""
        needed = blocks_for(self.config, len(prompt.tokens) + prompt.max_new_tokens)
        if needed > self.config.pool_blocks:
            raise SimulationError(
                f"a request of {needed} blocks never fits a pool of {self.config.pool_blocks}; "
                "remedy: a larger pool_blocks"
            )
        self._results[ticket] = RequestResult(
            ticket,
            [],
            State.WAITING.value,
            len(prompt.tokens),
            (len(prompt.tokens) - 1) // self.config.geometry.tokens_per_block,
        )
        self._enter(ticket, prompt)

    def _enter(self, ticket: int, prompt: Prompt) -> None:
        lora = prompt.lora_task_id
        content = None if lora is None else self.config.lora_contents.get(lora, f"adapter {lora}")
        prefix = self._oracle.prefix(prompt, content)
        scope = (type(prompt.cache_salt).__name__, prompt.cache_salt, lora, prompt.media)
        record = Record(ticket, self._next_request_id, prompt, prompt.token_list(), prefix, scope)
        self._next_request_id += 1
        self._requests[record.request_id] = record
        self._results[ticket].request_ids.append(record.request_id)

    def cancel(self, ticket: int) -> None:
        """Cancels a request; it ends with the current or next turn. Unknown or ended: no effect."""
        for record in self._requests.values():
            if record.ticket == ticket and not record.state.ended:
                record.cancelled = True

    def run(self) -> list[RequestResult]:
        """Turns until nothing is left to do; returns what ended since the last call."""
        while self._busy():
            self.turn()
        return self.take_results()

    def take_results(self) -> list[RequestResult]:
        """What ended since the last call, in the order of ending."""
        ended = [self._results.pop(ticket) for ticket in self._ended_tickets]
        self._ended_tickets.clear()
        return ended

    def drain(self, timeout_s: float) -> None:
        """Waits until all queued saves are done, then checks balance, counters and pages."""
        drain = getattr(self._worker.worker, "drain", None)
        if drain is not None and not drain(timeout_s):
            raise InvariantError("I6", f"saves were not done {timeout_s:.0f} s after the drain")
        self._collective.allgather(None)
        self._blocks.check()
        self._blocks.check_cached()
        if not self._busy():
            self._check_stats()

    def stats(self) -> dict[str, Any]:
        """What connector and driver counted on this rank."""
        return {
            "scheduler": self._stats_of(self._scheduler and self._scheduler.scheduler),
            "worker": self._stats_of(self._worker.worker),
            "ledger": self.ledger,
        }

    def close(self) -> None:
        """Lets go of both classes, as the runtime does when an engine ends."""
        for owner in (self._worker.worker, self._scheduler and self._scheduler.scheduler):
            close = getattr(owner, "close", None)
            if close is not None:
                close()
        self._worker.worker = None
        self._scheduler = None
        self._blocks.check()

    def _stats_of(self, owner: Any) -> dict[str, int | float] | None:
        stats = getattr(owner, "stats", None)
        return None if stats is None else dict(stats())

    def _check_stats(self) -> None:
        worker = self._stats_of(self._worker.worker)
        if worker is not None:
            self.ledger.check_worker(worker, expect_saves=self.config.expect_saves)
        if self._scheduler is not None:
            scheduler = self._stats_of(self._scheduler.scheduler)
            if scheduler is not None:
                self.ledger.check_scheduler(scheduler)

    # One turn --------------------------------------------------------------------------------

    def turn(self) -> None:
        """One iteration of the runtime's loop, whether or not there is work."""
        self._beat()
        batch = form_batch(self.config, self._requests.values(), self._blocks)
        executed: list[Step] = []
        if batch:
            self._prepare(batch)
            parked = [record for record in batch if record.state is State.LOADING]
            runnable = [record for record in batch if record.state is not State.LOADING]
            if self._start_batch(batch, runnable, parked) and runnable:
                executed = self._run_batch(runnable)
            self._progressed_at = time.monotonic()
        elif self.config.unguarded_metadata:
            self._broadcast_metadata(None)
        self._end_requests(executed)
        self._poll_finished()
        self._blocks.check()
        self._check_stall()

    def _prepare(self, batch: list[Record]) -> None:
        """Pages for everyone in the batch; queries either all first or each beside its own."""
        fresh = [record for record in batch if record.state is State.WAITING]
        for record in fresh:
            self._query(record)
            if not self.config.batched_queries:
                self._allocate(record)
        for record in fresh:
            if self.config.batched_queries:
                self._allocate(record)
        for record in batch:
            if record.state is State.GENERATION:
                step = record.prompt_len + record.produced - 1
                while len(record.blocks) <= step // self.config.geometry.tokens_per_block:
                    record.blocks.append(self._blocks.take())

    def _query(self, record: Record) -> None:
        record.match = self._blocks.match(record.scope, record.tokens)
        record.local_tokens = record.match.tokens
        answer = None
        if self._scheduler is not None:
            answer = self._scheduler.query(record.bound(), record.local_tokens)
        record.promised_tokens, is_async = self._collective.broadcast(answer)
        record.match_is_news = not is_async
        record.position = record.local_tokens + record.promised_tokens
        record.state = State.LOADING if is_async else State.CONTEXT

    def _allocate(self, record: Record) -> None:
        record.blocks = self._blocks.allocate(
            record.match, blocks_for(self.config, record.prompt_len)
        )
        record.chunk = max(chunk_after_match(self.config, record, record.chunk), 1)
        if self._scheduler is not None:
            self._scheduler.allocated(record.bound(), list(record.blocks))
        if record.state is State.LOADING:
            self._completions.park(record)

    def _start_batch(
        self, batch: list[Record], runnable: list[Record], parked: list[Record]
    ) -> bool:
        """Metadata and load; False if the load failed somewhere, and the batch with it."""
        self._broadcast_metadata(runnable)
        loads = [record for record in batch if record.match_is_news or record in parked]
        promised = sum(record.promised_tokens for record in loads)
        blocks = promised // self.config.geometry.tokens_per_block
        self._blocks_loading = blocks
        self.ledger.blocks_loaded += blocks
        if promised and self.config.load_gate is not None:
            self._stand_at(Path(self.config.load_gate))
        return self._attempt(batch, self._worker.start_load)

    def _stand_at(self, gate: Path) -> None:
        """Waits until the gate is open, at most as long as a rank may hang."""
        give_up = time.monotonic() + self.config.hang_timeout_s
        if self.rank == 0 and gate.exists():
            gate.with_name(f"{gate.name}.reached").touch()
        while gate.exists() and time.monotonic() < give_up:
            self._beat()
            threading.Event().wait(_GATE_POLL_S)

    def _attempt(self, batch: list[Record], action: Callable[[], object]) -> bool:
        """Does what may find that a promised block is not in place.

        False if it did on some rank: the batch has failed then.
        """
        failure: str | None = None
        try:
            action()
        except InvariantError:
            raise
        except Exception as error:
            failure = str(error)
            if self._blocks_loading == 0:
                raise InvariantError(
                    "I8", f"a step without a promised block raised {type(error).__name__}: {error}"
                ) from error
            self.ledger.loads_failed += 1
        failures = self._collective.allgather(failure)
        first = next((text for text in failures if text is not None), None)
        if first is None:
            return True
        # Where a load failed, here or elsewhere, it may have been broken off on the way.
        self.ledger.blocks_loaded -= self._blocks_loading
        self.ledger.blocks_in_failed_loads += self._blocks_loading
        for record in batch:
            self._fail_closed(record, first)
        return False

    def _run_batch(self, runnable: list[Record]) -> list[Step]:
        """Forward pass and `wait_for_save`; nothing if either failed somewhere."""
        executed: list[Step] = []
        if not self._attempt(runnable, lambda: self._forward.compute(runnable)):
            return []
        if not self._attempt(runnable, lambda: executed.extend(self._forward.end(runnable))):
            return []
        return executed

    def _broadcast_metadata(self, runnable: list[Record] | None) -> None:
        wire = None
        output = self._reporter.build(runnable, leader=self._scheduler is not None)
        if self._scheduler is not None:
            wire = self._scheduler.build(output)
        self._worker.bind(self._collective.broadcast(wire))

    # Endings ---------------------------------------------------------------------------------

    def _end_requests(self, executed: list[Step]) -> None:
        """Finished requests first, of this batch or (overlap) of the one before, then cancelled."""
        processed = executed
        if self.config.overlap:
            processed, self._previous = self._previous, executed
        for record, sampled in processed:
            if record.state is State.FINISHED:
                # The overlap scheduler meets a request that ended one step early once more.
                if self.config.shape != "1.1":
                    self._request_finished(record, [])
                continue
            if record.state.ended:
                continue
            record.known += sampled
            if record.at_end:
                record.state = State.FINISHED
                self._finish(record)
        for record in list(self._requests.values()):
            if record.cancelled and not record.state.ended:
                self._completions.abandon(record)
                record.state = State.CANCELLED
                self._finish(record, announced=self.config.shape == "1.1" and bool(record.blocks))

    def _finish(self, record: Record, *, announced: bool = True) -> None:
        if announced and self._request_finished(record, list(record.blocks)):
            self._completions.pin(record)
        else:
            self.ledger.silent_endings += not announced and bool(record.blocks)
            self._release(record, keep=True)
        self._conclude(record)

    def _request_finished(self, record: Record, blocks: list[int]) -> bool:
        answer = None
        if self._scheduler is not None:
            answer = self._scheduler.finished(record.bound(), blocks)
        self._forward.count_final_saves(record)
        pinned = bool(self._collective.broadcast(answer))
        if pinned and record.pin_asked:
            raise InvariantError(
                "I3", f"request_finished asked twice to keep the pages of {record.request_id}"
            )
        record.pin_asked = pinned
        return pinned

    def _fail_closed(self, record: Record, error: str) -> None:
        """What was or was not loaded is garbage: nothing of it may be seen again."""
        self._results[record.ticket].errors.append(error)
        record.state = State.FAILED
        self._completions.abandon(record)
        if self.config.shape == "1.1":
            self._request_finished(record, list(record.blocks))
        else:
            self.ledger.silent_endings += 1
        self._release(record, keep=False)
        result = self._results[record.ticket]
        if result.retries < record.prompt.retries:
            result.retries += 1
            del self._requests[record.request_id]
            self._enter(record.ticket, record.prompt)
        else:
            self._conclude(record)

    def _release(self, record: Record, *, keep: bool) -> None:
        if keep:
            computed = record.tokens[: record.kv_tokens]
            self._blocks.remember(record.scope, computed, record.blocks)
        self._blocks.release(record.blocks)
        record.blocks = []

    def _conclude(self, record: Record) -> None:
        size = self.config.geometry.tokens_per_block
        result = self._results[record.ticket]
        result.state = record.state.value
        result.local_tokens = record.local_tokens
        result.blocks_hit = record.promised_tokens // size
        result.blocks_verified = record.verified_blocks
        result.tokens_computed = record.computed_tokens
        result.new_tokens = record.tokens[record.prompt_len : record.known]
        self._ended_tickets.append(record.ticket)
        del self._requests[record.request_id]
        self._progressed_at = time.monotonic()

    def _poll_finished(self) -> None:
        """`get_finished`, every turn, batch or not."""
        freed, rejoined = self._completions.poll()
        for record in freed:
            self._release(record, keep=True)
        for record in rejoined:
            record.state = State.CONTEXT
        if freed or rejoined:
            self._progressed_at = time.monotonic()

    # Idle or stuck ---------------------------------------------------------------------------

    def _busy(self) -> bool:
        return bool(self._requests or self._completions.pinned or self._previous)

    def _check_stall(self) -> None:
        """Background completions may take a while, but not for ever."""
        now = time.monotonic()
        if not self._busy():
            self._progressed_at = now
        idle_s = now - self._progressed_at
        if idle_s < 0.001:
            return
        if idle_s > self.config.stall_timeout_s:
            pinned, loading = self._completions.pinned, self._completions.loading
            raise InvariantError(
                "I6",
                f"no progress for {idle_s:.0f} s: pinned {sorted(pinned)}, "
                f"loading {sorted(loading)}, live {sorted(self._requests)}",
            )
        time.sleep(0.0005)
