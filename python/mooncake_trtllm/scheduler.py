"""The scheduler's half of the connector: it translates the runtime's calls; the core decides."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from mooncake_trtllm import _native
from mooncake_trtllm._instance import Instance, start_base, start_instance, total
from mooncake_trtllm._lifecycle import release_with
from mooncake_trtllm._log import log
from mooncake_trtllm._metrics import exporter
from mooncake_trtllm._rendezvous import OwnWorkerUnknownError, SchedulerEntry, rendezvous
from mooncake_trtllm._stats import BYPASSES, figures, no_figures, numbers_of
from mooncake_trtllm.errors import KvConnectorConfigError, KvConnectorStoreError
from mooncake_trtllm.identity import states_block_size
from mooncake_trtllm.request import (
    Bypass,
    RequestContent,
    StepReport,
    read_request,
    read_request_id,
    read_slots,
    read_slots_by_group,
    read_step,
)
from mooncake_trtllm.shim import SchedulerBase

__all__ = ["MooncakeKvCacheConnectorScheduler"]

_NO_PROMISE = (0, False)
_LOGGED_BYPASSES = 20
_MAX_OPEN_PROMISES = 1 << 16
# For what may pass, such as a port that another process still has: some six minutes in all.
_ATTEMPTS = 12
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
_GAUGES_OF_THE_LIVING = ("requests_tracked", "promises_held", "ranks_connected", "ranks_awaited")


class _NoPool(Bypass):
    reason = "no_pool"


class _Disabled(Bypass):
    reason = "disabled"


class _Resources:
    """What a scheduler must give back. Holds no reference to it."""

    def __init__(self, instance: Instance, entry: SchedulerEntry) -> None:
        self._instance = instance
        self._entry = entry
        self._core: _native.Scheduler | None = None
        self._lock = threading.Lock()
        self._ended = False
        self._is_staged = False
        self._failure: str | None = None
        self._attempts_failed = 0
        self._next_attempt = 0.0  # On the monotonic clock.
        self._awaited = "no worker of this instance has registered a KV pool in this process"
        self._last = no_figures("scheduler")
        self.queries = 0
        self.bypassed = dict.fromkeys(BYPASSES, 0)
        self._exported = exporter.add(
            self, "scheduler", instance.rank.rank, instance.settings.metrics_address
        )

    def core(self) -> _native.Scheduler | None:
        """Return the core's scheduler, None until its own rank 0 is known and knows its pool.

        None for good if it cannot be made. That is tried and told once, since this is called in
        every callback, or, if it may pass, some times with growing pauses, and told at the first
        and the last of them.
        """
        if not self._is_due():
            return self._core
        keyspace = rendezvous.keyspace_for(self._entry)
        if keyspace is None:
            return None
        with self._lock:
            if self._is_due():
                try:
                    self._core = self._make(keyspace)
                    if self._attempts_failed > 0:
                        log.essential("the scheduler could be made by now: blocks are reused")
                except OwnWorkerUnknownError as reason:
                    self._awaited = str(reason)
                except KvConnectorStoreError as error:
                    self._try_again(error)
                except Exception as error:  # noqa: BLE001 - nothing may leave a callback
                    self._failure = str(error)
                    log.exception(
                        "the scheduler cannot be made: nothing is loaded or saved. Remedy: correct "
                        "what the error names and restart the engine"
                    )
            return self._core

    def _is_due(self) -> bool:
        if self._core is not None or self._ended or self._failure is not None:
            return False
        return time.monotonic() >= self._next_attempt

    def _try_again(self, error: KvConnectorStoreError) -> None:
        self._awaited = f"the scheduler could not be made yet: {error}"
        pause = min(_FIRST_PAUSE_S * 2.0**self._attempts_failed, _LONGEST_PAUSE_S)
        self._next_attempt = time.monotonic() + pause
        self._attempts_failed += 1
        if self._attempts_failed == _ATTEMPTS:
            self._failure = str(error)
            log.exception(
                "the scheduler cannot be made, after %d attempts: nothing is loaded or saved. "
                "Remedy: correct what the error names and restart the engine",
                _ATTEMPTS,
            )
        elif self._attempts_failed == 1:
            log.warning(
                "the scheduler cannot be made yet, which is tried again from time to time; until "
                "then nothing is loaded or saved: %s",
                error,
            )

    def why_no_core(self) -> str:
        """Return why core() is None."""
        if self._ended:
            return "the scheduler has ended"
        if self._failure is not None:
            return f"the scheduler could not be made: {self._failure}"
        return self._awaited

    def _make(self, keyspace: bytes) -> _native.Scheduler:
        instance = self._instance
        stage_worker = None
        if instance.settings.staged:
            stage_worker = rendezvous.stage_worker_for(self._entry, keyspace)
            if stage_worker is None:
                log.warning(
                    "MC_PROMISE is staged, but which worker of this process is the scheduler's own "
                    "cannot be told, or it is not staged: the promises of this scheduler are leased"
                )
        core = _native.Scheduler(
            instance.lease.store,
            keyspace,
            tokens_per_block=instance.args.tokens_per_block,
            world_size=rendezvous.shards_of(keyspace),
            deployment_secret=instance.settings.key_secret,
            lookup_deadline_s=instance.settings.lookup_deadline_s,
            exact_pages=not states_block_size(instance.args),
            layers=rendezvous.layers_of(keyspace),
            max_replicas=instance.settings.replication_max,
            hot_at=instance.settings.replication_heat,
            half_life_s=instance.settings.replication_half_life_s,
            stage_worker=stage_worker,
            ranks=instance.rank.world_size,
            stage_address=instance.settings.stage_address,
            prefill_tokens_per_s=instance.settings.prefill_tok_per_s,
            min_hit_blocks=instance.settings.min_hit_blocks,
        )
        self._is_staged = stage_worker is not None
        return core

    def load_budget(self) -> int | None:
        """Return the blocks that rank 0 can load in time in one step; staged ones are there."""
        return None if self._is_staged else rendezvous.load_budget_for(self._entry)

    def metrics(self) -> dict[str, Any]:
        """Return all figures; after the end, what they were."""
        core = self._core
        counted = self._last if core is None else figures(core)
        if core is None and not self._ended and self._instance.settings.staged:
            # As the core counts while none has called: nothing can be promised yet.
            counted = {**counted, "ranks_awaited": self._instance.rank.world_size}
        bypassed = {f"queries_bypassed_{reason}": n for reason, n in self.bypassed.items()}
        total = {"queries": self.queries, "queries_bypassed": sum(bypassed.values())}
        return {**counted, **total, **bypassed}

    def explain(self) -> list[str]:
        """Return a line for each of the last requests; after the end, none."""
        core = self._core
        return [] if core is None else core.explain()

    def release(self) -> None:
        """See Releasable."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
            if self._core is not None:
                ended = dict.fromkeys(_GAUGES_OF_THE_LIVING, 0)
                self._last = {**figures(self._core), **ended}
            self._core = None
        exporter.remove(self._exported)
        rendezvous.remove(self._entry)
        self._instance.lease.release()

    def give_up(self) -> None:
        """See ForkAware."""
        self._lock = threading.Lock()
        self._ended = True
        if self._core is not None:
            self._core.disown()
        self._core = None
        self._instance.lease.give_up()


class MooncakeKvCacheConnectorScheduler(SchedulerBase):
    """Promises stored blocks to requests and plans loads and saves. Made on rank 0.

    Every callback returns: whatever goes wrong is logged, counted and answered with "nothing".
    """

    settings_in_code: ClassVar[Mapping[str, str]] = {}
    """They go before environment and file; see mooncake_trtllm.configured."""

    def __init__(self, llm_args: Any, *_args: Any, **_kwargs: Any) -> None:
        """Start up. Raises KvConnectorConfigError or KvConnectorStoreError."""
        start_base(self, SchedulerBase, llm_args)
        self._instance = start_instance(llm_args, self.settings_in_code)
        self._resources = _Resources(
            self._instance, rendezvous.add_scheduler(llm_args, self._instance.identity)
        )
        self._finalizer = release_with(self, self._resources)
        # Requests with a promise: not allocated yet; allocated, load not planned yet; and those
        # whose load cannot be planned, which the workers must hear of. Kept here, since they count
        # for the runtime also when the core has forgotten them, or is gone.
        self._promised: dict[int, None] = {}
        self._owed: set[int] = set()
        self._broken: set[int] = set()
        # Allocations that Ctrl-C ended before it was known whose they are.
        self._unfinished = 0

    # The life of a request ---------------------------------------------------------------------

    @total(lambda: _NO_PROMISE)
    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int, bool]:
        """Return how many tokens after the runtime's own match will be loaded."""
        self._resources.queries += 1
        core = self._resources.core()
        try:
            if core is None:
                raise _NoPool(self._resources.why_no_core())
            if self._instance.settings.disabled():
                raise _Disabled(f"{self._instance.settings.disable_file} is there")
            content = read_request(request, self._instance.settings.lora_ids)
            tokens = self._lookup(core, content, num_computed_tokens)
        except (Bypass, KvConnectorConfigError) as reason:
            self._bypass(request, reason)
            return _NO_PROMISE
        except Exception:
            self._bypass(request, None)
            raise
        self._remember_promise(content.request_id, tokens)
        return tokens, False

    def _remember_promise(self, request_id: int, tokens: int) -> None:
        self._promised.pop(request_id, None)
        if tokens > 0:
            self._promised[request_id] = None
        while len(self._promised) > _MAX_OPEN_PROMISES:
            del self._promised[next(iter(self._promised))]

    def _bypass(self, request: Any, why: Bypass | KvConnectorConfigError | None) -> None:
        """The request is not cached; nothing that was known of its id holds any more."""
        reason = "error" if why is None else getattr(why, "reason", Bypass.reason)
        bypassed = self._resources.bypassed
        bypassed[reason] += 1
        self._forget(request)
        self._note_opted_out(request, reason)
        if why is not None and sum(bypassed.values()) <= _LOGGED_BYPASSES:
            request_id = getattr(request, "request_id", "without id")
            log.info("request %s bypasses the store: %s", request_id, why)

    def _note_opted_out(self, request: Any, reason: str) -> None:
        core = self._resources.core()
        if core is not None:
            with contextlib.suppress(Bypass):  # without an id nobody can ask about it
                core.note_opted_out(read_request_id(request), reason)

    def _lookup(
        self, core: _native.Scheduler, content: RequestContent, num_computed_tokens: int
    ) -> int:
        return core.query(
            content.request_id,
            content.tokens,
            prompt_tokens=content.prompt_tokens,
            cache_salt=content.salt,
            lora=content.lora,
            media=content.media,
            computed_tokens=num_computed_tokens,
            load_budget=self._resources.load_budget(),
        )

    @total(lambda: None)
    def update_state_after_alloc(self, request: Any, block_ids: Any, *_args: Any) -> None:
        """Take the pages of the whole prompt."""
        self._allocated(request, read_slots, block_ids)

    @total(lambda: None)
    def update_state_after_alloc_by_layer_group(
        self, request: Any, block_ids_by_layer_group: Any, *_args: Any
    ) -> None:
        """Take the pages of the only layer group."""
        self._allocated(request, read_slots_by_group, block_ids_by_layer_group)

    def _allocated(self, request: Any, read: Callable[[Any], list[int]], block_ids: Any) -> None:
        self._unfinished += 1  # Before any call, as Ctrl-C may come after each.
        request_id = read_request_id(request)
        promised = request_id in self._promised
        core, known = None, False
        try:  # Whatever ends this, a promise is owed or broken from here on.
            self._promised.pop(request_id, None)
            core = self._resources.core()
            known = core is not None and core.allocated(request_id, read(block_ids))
        finally:
            if promised and known:
                self._owed.add(request_id)
            elif promised:
                self._broken.add(request_id)
                if core is not None:
                    core.finished(request_id)
        self._unfinished -= 1

    @total(lambda: False)
    def request_finished(
        self,
        request: Any,
        cache_block_ids: Any,  # noqa: ARG002
        *_args: Any,
    ) -> bool:
        """Forget the request. Its pages are free: saves were taken as snapshots."""
        self._forget(request)
        return False

    @total(lambda: False)
    def request_finished_by_layer_group(
        self,
        request: Any,
        block_ids_by_layer_group: Any,  # noqa: ARG002
        *_args: Any,
    ) -> bool:
        """Same as request_finished()."""
        return self.request_finished(request, [])

    @total(lambda: None)
    def request_reset(self, request: Any, *_args: Any) -> None:
        """Forget the request's pages; it will be queried again."""
        self._forget(request)

    @total(lambda: None)
    def cancel_load(self, request: Any, start: int, *_args: Any) -> None:
        """Give up the promise from the absolute prompt position `start` on."""
        core = self._resources.core()
        if core is not None:
            core.cancel_load(read_request_id(request), max(0, int(start)))

    def _forget(self, request: Any) -> None:
        try:
            request_id = read_request_id(request)
        except Bypass:  # without an id it was never known
            return
        self._promised.pop(request_id, None)
        self._owed.discard(request_id)
        self._broken.discard(request_id)
        core = self._resources.core()
        if core is not None:
            core.finished(request_id)

    # The life of a step ------------------------------------------------------------------------

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        """Return the plan of the step, in bytes; with it the requests that cannot be loaded."""
        if scheduler_output is None:  # no batch: what is owed stays owed
            return b""
        none_owed: set[int] = set()
        none_broken: set[int] = set()
        try:
            plan = self._plan_or_nothing(scheduler_output)
            if not plan:
                self._give_up_owed()
            told = (plan, tuple(sorted(self._broken))) if self._broken else plan
        except BaseException:  # Ctrl-C, say; whoever goes on all the same hears of it next time
            self._give_up_owed()
            raise
        # Without a call, after which Ctrl-C could come: what is forgotten is told.
        self._owed, self._broken = none_owed, none_broken
        return told

    def _plan_or_nothing(self, scheduler_output: Any) -> bytes:
        try:
            core = self._resources.core()
            return b"" if core is None else self._plan_step(core, scheduler_output)
        except Exception:  # noqa: BLE001 - nothing may leave a callback
            log.exception("no plan for this step; promised loads fail")
            return b""

    def _give_up_owed(self) -> None:
        """Loads that were not planned now must not come later, when their pages are others'."""
        self._broken |= self._owed  # In one go: Ctrl-C may end the rest.
        with contextlib.suppress(Exception):
            core = self._resources.core()
            if core is not None:
                for request_id in self._owed:
                    core.finished(request_id)

    def _plan_step(self, core: _native.Scheduler, scheduler_output: Any) -> bytes:
        reports, unusable = read_step(scheduler_output)
        if self._unfinished:  # One of those that run without an allocation, if any do.
            unusable += [r.request_id for r in reports if r.request_id in self._promised]
            self._broken.update(self._promised.keys() & set(unusable))
            reports = [r for r in reports if r.request_id not in self._promised]
        plan = self._plan(core, reports, unusable)
        for request_id in unusable:
            core.finished(request_id)
        if self._instance.settings.disabled():
            return _native.without_saves(plan)
        return plan

    @staticmethod
    def _plan(core: _native.Scheduler, reports: list[StepReport], unusable: list[int]) -> bytes:
        try:
            batch = _native.StepBatch(
                [
                    (
                        report.request_id,
                        report.is_new,
                        report.new_tokens,
                        report.new_slots,
                        report.computed_tokens,
                        report.scheduled_tokens,
                    )
                    for report in reports
                ]
            )
        except Exception:  # noqa: BLE001 - promised loads are planned in any case
            log.exception("the reports of a step cannot be read; its requests are not saved")
            unusable.extend(report.request_id for report in reports)
            batch = _native.StepBatch([])
        # Once: what has been planned is not planned again, also if it is lost on its way here.
        return core.plan_step(batch)

    # The life of the scheduler -----------------------------------------------------------------

    @total(lambda: None)
    def wait_for_initialization(self, *_args: Any) -> None:
        """Make the core's scheduler, since the pool of rank 0 should be known by now, or tell."""
        if self._resources.core() is None:
            log.warning("nothing is promised: %s", self._resources.why_no_core())

    @total(dict)
    def metrics(self) -> dict[str, Any]:
        """Return numbers since the start by name, and histograms of latencies.

        A histogram is `{"count": n, "sum_seconds": s, "buckets": [(bound, count up to it), ...]}`;
        its last bound is "+Inf". All of it can be written as JSON.
        """
        return self._resources.metrics()

    @total(list)
    def explain(self) -> list[str]:
        """Return a line for each of the last requests asked about, oldest first.

        It says what the runtime had itself, what was offered, and what ended that.
        """
        return self._resources.explain()

    def stats(self) -> dict[str, int | float]:
        """Return the numbers of metrics()."""
        return numbers_of(self.metrics())

    def close(self) -> None:
        """Give everything back now instead of when the last reference goes. Idempotent."""
        self._finalizer()
