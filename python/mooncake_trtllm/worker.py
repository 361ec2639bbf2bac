"""The worker's half of the connector: it translates the runtime's calls; the core moves bytes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from mooncake_trtllm import _native
from mooncake_trtllm._args import EngineArgs
from mooncake_trtllm._instance import Instance, start_base, start_instance, total
from mooncake_trtllm._lifecycle import release_with
from mooncake_trtllm._log import log
from mooncake_trtllm._metrics import exporter
from mooncake_trtllm._pool import HostPool, host_pool
from mooncake_trtllm._rendezvous import WorkerEntry, rendezvous
from mooncake_trtllm._stats import figures, no_figures, numbers_of
from mooncake_trtllm.errors import (
    KvConnectorConfigError,
    KvConnectorLoadError,
    KvConnectorStoreError,
)
from mooncake_trtllm.identity import check_geometry, is_replicated, settle_kv_dtype
from mooncake_trtllm.shim import WorkerBase

__all__ = ["MooncakeKvCacheConnectorWorker"]

# Bounds of what ends with the connector. With 0.5 s of the metrics' server and twice 0.5 s of its
# store they come to 4.5 s, below the 5 s of a callback, since the last reference may go in one.
_DRAIN_AT_END_S = 2.0
_CLOSE_S = 1.0
_SAVE_DEADLINE_S = 10.0
_THREADS = 4
_NAMED_IN_MESSAGE = 4
_LAYERS_MAX = 1 << 20


class _Resources:
    """What a worker must give back. Holds no reference to it."""

    def __init__(self, instance: Instance, entry: WorkerEntry | None) -> None:
        self._instance = instance
        self._entry = entry
        self._pool: HostPool | None = None
        self._lock = threading.Lock()
        self._ended = False
        self._last = no_figures("worker")
        self.layers = 0
        self.core: _native.Worker | None = None
        # The core takes the calls of a step one after the other; a runtime makes them on one
        # thread, and whoever does not must not make it read a plan that is being replaced.
        self.turn = threading.RLock()
        self._exported = exporter.add(
            self, "worker", instance.rank.rank, instance.settings.metrics_address
        )

    def register(self, pool: HostPool) -> None:
        """Make the core's worker for a pool, and tell the scheduler its keyspace."""
        instance = self._instance
        args = instance.args
        kv_dtype = settle_kv_dtype(instance.identity, pool)
        try:
            layout = _native.describe_dense_pool(
                pool.address, list(pool.shape), pool.element_bytes, args.tokens_per_block
            )
        except KvConnectorConfigError as error:
            raise KvConnectorConfigError(
                f"the KV pool {list(pool.shape)} cannot be used: {error}. Remedy: register the "
                "pool of the V1 manager, [blocks, layers, kv_factor, elements per block]"
            ) from None
        check_geometry(args, pool, kv_dtype)
        by_layer = instance.settings.by_layer and _layers_are_known(args)
        replicated = is_replicated(args, layout.geometry)
        keyspace = instance.identity.keyspace(
            layout.geometry, kv_dtype, by_layer=by_layer, replicated=replicated
        )
        core = self._make_core(by_layer=by_layer, replicated=replicated)
        self._register_layout(core, pool, keyspace, layout)
        with self._lock:
            if self._ended:
                core.close(_CLOSE_S)
                raise KvConnectorConfigError(
                    "a KV pool was registered after the worker was closed. Remedy: make a new one"
                )
            self.core, self._pool = core, pool
            self.layers = core.layers_stored_apart()
        if self._entry is not None:
            rendezvous.publish(
                self._entry,
                keyspace,
                core.load_budget_blocks,
                stage_worker=core if instance.settings.staged else None,
                layers=self.layers,
                shards=1 if replicated else instance.rank.world_size,
            )
        log.essential(
            "rank %d of %d: KV pool %s of %s, %d bytes a page, stored by %s, keyspace %s",
            instance.rank.rank,
            instance.rank.world_size,
            list(pool.shape),
            kv_dtype,
            layout.geometry.bytes_per_page,
            "layer" if by_layer else "block",
            keyspace.hex(),
        )

    def _register_layout(
        self,
        core: _native.Worker,
        pool: HostPool,
        keyspace: bytes,
        layout: _native.DenseLayout,
    ) -> None:
        what = f"the KV pool {list(pool.shape)} cannot be served:"
        try:
            core.register_layout(keyspace, layout)
        except KvConnectorConfigError as error:
            raise KvConnectorConfigError(f"{what} {self._what_to_raise(str(error))}") from None
        except KvConnectorStoreError as error:
            settings = self._instance.settings
            remedy = (
                f"{what} {error}. Remedy: lower MC_STAGING_BYTES (now {settings.staging_bytes}) "
                "to what this host can spare for each rank"
            )
            if settings.backend == "mooncake" and "the store did not take" in str(error):
                raise KvConnectorStoreError(f"{remedy}, or see that the store is up") from None
            # Not got from the host, or for a back end that takes whatever there is.
            raise KvConnectorConfigError(remedy) from None

    def _what_to_raise(self, reason: str) -> str:
        """What the core found too small, with the setting that it comes from."""
        settings = self._instance.settings
        for setting in ("MC_STAGING_BYTES", "MC_SAVE_QUEUE_BYTES"):
            option = setting.removeprefix("MC_").lower()
            if reason.startswith(f"{option} is "):
                rest = reason.removeprefix(option)
                return f"{setting}{rest}. Remedy: raise {setting} as far as that"
        if settings.backend == "memory" and "takes at most" in reason:
            return f"{reason}. Remedy: raise MC_MEMORY_BYTES (now {settings.memory_bytes})"
        return f"{reason}. Remedy: correct what is named"

    def _make_core(self, *, by_layer: bool, replicated: bool) -> _native.Worker:
        instance, settings = self._instance, self._instance.settings
        return _native.Worker(
            instance.lease.store,
            rank=instance.rank.rank,
            world_size=instance.rank.world_size,
            tokens_per_block=instance.args.tokens_per_block,
            staging_bytes=settings.staging_bytes,
            save_queue_bytes=settings.save_queue_bytes,
            load_deadline_s=settings.load_deadline_s,
            save_deadline_s=_SAVE_DEADLINE_S,
            threads=_THREADS,
            by_layer=by_layer,
            replicated=replicated,
            overlap_loads=_may_overlap(instance.args),
            replication_bytes_per_second=settings.replication_bytes_per_s,
            staged=settings.staged,
        )

    def metrics(self) -> dict[str, Any]:
        """Return all figures; after the end, what they were."""
        core = self.core
        counted = self._last if core is None else figures(core)
        return {
            **counted,
            "layers_stored_apart": self.layers,
            **self._instance.lease.counters(),
        }

    def release(self) -> None:
        """See Releasable."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
        core = self.core
        if core is not None:
            core.drain(_DRAIN_AT_END_S)
            core.close(_CLOSE_S)
            self._last = figures(core)
        self.core = self._pool = None
        exporter.remove(self._exported)
        if self._entry is not None:
            rendezvous.remove(self._entry)
        self._instance.lease.release()

    def give_up(self) -> None:
        """See ForkAware."""
        self._lock, self.turn = threading.Lock(), threading.RLock()
        self._ended = True
        if self.core is not None:
            self.core.disown()
        self.core = None
        self._instance.lease.give_up()


class MooncakeKvCacheConnectorWorker(WorkerBase):
    """Moves pages between the KV pool of one rank and the store. Made on every rank.

    After start-up it raises only when a promised block is not in place: in start_load_kv() or,
    where blocks are stored layer by layer, in wait_for_layer_load() of the first layer that is
    missing, or in wait_for_save() if the pass did not wait for its layers.
    """

    settings_in_code: ClassVar[Mapping[str, str]] = {}
    """They go before environment and file; see mooncake_trtllm.configured."""

    def __init__(self, llm_args: Any, *_args: Any, **_kwargs: Any) -> None:
        """Start up. Raises KvConnectorConfigError or KvConnectorStoreError."""
        start_base(self, WorkerBase, llm_args)
        self._instance = start_instance(llm_args, self.settings_in_code)
        entry = None
        if self._instance.rank.rank == 0:
            entry = rendezvous.add_worker(llm_args, self._instance.identity)
        self._resources = _Resources(self._instance, entry)
        self._finalizer = release_with(self, self._resources)
        self._unusable: str | None = None
        self._may_save = True
        self._failed_requests: tuple[int, ...] = ()
        # Whether the core has a plan whose loads were not asked for yet.
        self._is_bound = False
        # Whether the plan's loads have begun, and the pass that rests on them has not ended.
        self._is_loading = False
        self._by_layer = False

    # Start-up ----------------------------------------------------------------------------------

    def register_forward_pass_callable(self) -> Callable[[], None] | None:
        """Return None: nothing is to be done inside the forward pass."""
        return None

    def register_kv_caches(self, kv_cache_tensor: Any) -> None:
        """Take the pool of the V1 manager. Raises KvConnectorConfigError if it does not fit."""
        if self._resources.core is not None:
            raise KvConnectorConfigError(
                "a KV pool is registered already, and pages of it may be in use. Remedy: make a "
                "new connector for a new pool"
            )
        self._resources.register(host_pool(kv_cache_tensor))
        self._by_layer = self._resources.layers > 0

    def register_kv_cache_layout(self, layout: Any, *_args: Any) -> None:
        """Refuse the layout of the V2 manager."""
        groups = getattr(layout, "groups", None)
        count = len(groups) if groups is not None else "unknown"
        raise KvConnectorConfigError(
            f"a KV cache layout of the V2 manager ({count} layer groups) was registered: this "
            "version supports the V1 manager. Remedy: set "
            "kv_cache_config.use_kv_cache_manager_v2 to false"
        )

    # The life of a step ------------------------------------------------------------------------

    def bind_connector_meta(self, metadata: Any) -> None:
        """Take the plan of the step. What is wrong with it is told when its loads are due."""
        # What Ctrl-C has left of an earlier step is not forgotten before it is told.
        untold = self._unusable
        # Until it is bound: an older plan is, and its pages belong to others by now.
        self._unusable = untold or "the plan of the step was not bound"
        with self._resources.turn:
            self._metadata = metadata
            self._failed_requests, self._may_save, self._is_loading = (), False, False
            try:
                self._bind(metadata)
            except Exception as error:  # noqa: BLE001 - promised loads may be lost: never silently
                self._unusable = f"the plan of the step cannot be used: {error}"
                return
            self._may_save = True
        self._unusable = untold

    def _bind(self, metadata: Any) -> None:
        plan: Any = metadata
        failed: Any = ()
        if isinstance(metadata, tuple):
            plan, failed = metadata
        if plan is not None and not isinstance(plan, bytes):
            raise TypeError(f"metadata of type {type(plan).__name__} is not this connector's")
        if not isinstance(failed, tuple) or not all(isinstance(one, int) for one in failed):
            raise TypeError("what it says of failed requests is not this connector's")
        core = self._resources.core
        if core is not None:
            core.bind(plan or b"")
        elif plan and _native.decode_step_plan(plan).loads:
            raise ValueError("it has loads, but no KV pool is registered")
        self._failed_requests, self._is_bound = failed, core is not None

    def start_load_kv(self, stream: Any) -> None:
        """Load the promised blocks. Raises KvConnectorLoadError if one is not in place."""
        # Until it is done: whoever goes on after a Ctrl-C has no pages to go on with.
        unusable, self._unusable = self._unusable, "loading was interrupted"
        # Whoever keeps the error keeps this frame, which must not keep the core alive.
        with self._resources.turn:
            may_save, self._may_save = self._may_save, False
            problem = self._unusable_plan(unusable) if unusable else self._load(stream, may_save)
        self._unusable = None
        if problem is not None:
            raise problem

    def _unusable_plan(self, reason: str) -> KvConnectorLoadError:
        self._is_bound, self._failed_requests = False, ()
        return KvConnectorLoadError(
            f"promised blocks may be missing: {reason}. Remedy: run the same version of the "
            "connector on every rank, and retry the requests of this step"
        )

    def _load(self, stream: Any, may_save: bool) -> KvConnectorLoadError | None:
        core = self._resources.core
        was_bound, self._is_bound = self._is_bound, False
        failed, self._failed_requests = self._failed_requests, ()
        failures: list[tuple[int, str, str, str]] = []
        if core is not None:
            # Where blocks are whole, loads are complete when they return.
            self._is_loading = self._by_layer
            try:
                failures = core.load(_stream_handle(stream))
            except Exception as error:  # noqa: BLE001 - how far it came is not known
                return _broken_load(error)
        elif was_bound:  # and closed since, or forked
            failures = _loads_of(self._metadata)
        # Whatever is computed from pages that were not filled must not be saved.
        self._may_save = may_save and not failed
        return _load_error(failures, failed) if failures or failed else None

    def wait_for_layer_load(self, layer_idx: int, stream: Any) -> None:
        """Wait until a layer of the promised blocks, and all before it, are in place.

        Returns at once where blocks are whole: they are in place when start_load_kv() returns.
        Raises KvConnectorLoadError if that layer of a block is not to be had.
        """
        if not self._by_layer:
            return
        problem = self._wait_for_layer(layer_idx, stream)
        if problem is not None:
            raise problem

    def _wait_for_layer(self, layer_idx: int, stream: Any) -> KvConnectorLoadError | None:
        with self._resources.turn:
            core = self._resources.core
            if not _is_layer(layer_idx):
                return None
            if core is None:
                return self._closed_while_loading()
            try:
                failures = core.wait_for_layer(layer_idx, _stream_handle(stream))
            except Exception as error:  # noqa: BLE001 - whether the layer is there is not known
                self._may_save = False
                return _broken_load(error)
        return _load_error(failures, ()) if failures else None

    @total(lambda: None)
    def save_kv_layer(self, layer_idx: int, stream: Any) -> None:
        """Take a snapshot of one layer, where blocks are stored so; wait_for_save() stores them."""
        if not self._by_layer or not _is_layer(layer_idx):
            return
        with self._resources.turn:
            core = self._resources.core
            if core is not None and self._may_save:
                core.layer_computed(layer_idx, _stream_handle(stream))

    def wait_for_save(self, stream: Any) -> None:
        """Take snapshots of the pages to save; the rest happens in the background.

        Raises KvConnectorLoadError if the pass did not wait for the layers that it has read.
        """
        problem = self._end_pass(stream)
        if problem is not None:
            raise problem

    @total(lambda: None)
    def _end_pass(self, stream: Any) -> KvConnectorLoadError | None:
        with self._resources.turn:
            try:
                return self._save(stream)
            finally:
                self._is_loading = False

    def _save(self, stream: Any) -> KvConnectorLoadError | None:
        core = self._resources.core
        if core is None:
            return self._closed_while_loading()
        if not self._may_save:
            return None
        try:
            failures = core.save(_stream_handle(stream))
        except Exception as error:
            if self._is_loading and _loads_of(self._metadata):
                # Whether the pass has waited for them is not known.
                return _broken_load(error)
            raise
        return _load_error(failures, ()) if failures else None

    def _closed_while_loading(self) -> KvConnectorLoadError | None:
        lost = _loads_of(self._metadata) if self._is_loading else []
        return _load_error(lost, ()) if lost else None

    @total(lambda: ([], []))
    def get_finished(
        self,
        finished_gen_req_ids: Iterable[int] | None,
        started_loading_req_ids: Iterable[int] | None,
    ) -> tuple[list[int], list[int]]:
        """Return what was asked about: no read of pages and no load is outstanding after this.

        It comes after every pass, a failed one too, and before pages change hands.
        """
        self._end_loads()
        return _distinct(finished_gen_req_ids), _distinct(started_loading_req_ids)

    @total(lambda: None)
    def _end_loads(self) -> None:
        if not self._by_layer:
            return
        with self._resources.turn:
            core = self._resources.core
            if core is not None:
                core.end_loads()

    # The life of the worker --------------------------------------------------------------------

    @total(dict)
    def metrics(self) -> dict[str, Any]:
        """Return numbers since the start by name, and histograms of latencies.

        A histogram is `{"count": n, "sum_seconds": s, "buckets": [(bound, count up to it), ...]}`;
        its last bound is "+Inf". All of it can be written as JSON.
        """
        return self._resources.metrics()

    def stats(self) -> dict[str, int | float]:
        """Return the numbers of metrics()."""
        return numbers_of(self.metrics())

    def drain(self, timeout_s: float) -> bool:
        """Wait until every save so far has ended, at most `timeout_s`. True if all did."""
        core = self._resources.core
        return core is None or core.drain(max(0.0, float(timeout_s)))

    def close(self) -> None:
        """Give everything back now instead of when the last reference goes. Idempotent."""
        self._finalizer()


def _stream_handle(stream: Any) -> int:
    """Return the number of a stream; 0 for none, and for host memory."""
    handle = getattr(stream, "cuda_stream", None)
    return handle if isinstance(handle, int) and handle > 0 else 0


def _is_layer(layer_idx: Any) -> bool:
    return isinstance(layer_idx, int) and 0 <= layer_idx < _LAYERS_MAX


def _layers_are_known(args: EngineArgs) -> bool:
    """Whether config.json confirms the layers of the pool (check_geometry() has compared them)."""
    if args.config_integer("num_hidden_layers") is not None:
        return True
    log.warning_once(
        "MC_LAYER_GRANULARITY=1, but the number of layers is not known, since no config.json of "
        "model %r states num_hidden_layers: blocks are stored whole. Remedy: pass the "
        "model's folder",
        args.model,
    )
    return False


def _may_overlap(args: EngineArgs) -> bool:
    """Whether a pass that computes prompts calls the layer hooks whenever an earlier one did.

    A runtime that compiles the model replays pieces of it from graphs, by the number of tokens.
    """
    return not args.compiles_model


def _broken_load(error: Exception) -> KvConnectorLoadError:
    return KvConnectorLoadError(
        f"the loads of this step failed: {error}. Remedy: retry the requests of this step; they "
        "are computed anew"
    )


def _distinct(ids: Iterable[int] | None) -> list[int]:
    # An array has no truth value of its own.
    return [] if ids is None else list(dict.fromkeys(ids))


def _loads_of(metadata: Any) -> list[tuple[int, str, str, str]]:
    """Return the loads of a plan that was good, as failures."""
    plan = metadata[0] if isinstance(metadata, tuple) else metadata
    return [
        (request_id, block.hex(), "unavailable", "the worker was closed before it was loaded")
        for request_id, block, _ in (_native.decode_step_plan(plan).loads if plan else ())
    ]


def _load_error(
    failures: list[tuple[int, str, str, str]], failed: tuple[int, ...]
) -> KvConnectorLoadError:
    # One without a key stands for all loads of the step: it is not known whose failed.
    named = [failure for failure in failures if failure[1]]
    requests = list(dict.fromkeys([*(failure[0] for failure in named), *failed]))
    keys = [failure[1] for failure in named]
    causes = [f"{key or 'any of them'}: {message or code}" for _, key, code, message in failures]
    if failed:
        causes.append(f"pages of request(s) {list(failed)} were not understood")
    shown = "; ".join(causes[:_NAMED_IN_MESSAGE])
    if len(causes) > _NAMED_IN_MESSAGE:
        shown += f"; and {len(causes) - _NAMED_IN_MESSAGE} more"
    return KvConnectorLoadError(
        f"{len(causes)} promised block(s) of request(s) {requests} are not in place: {shown}. "
        "Remedy: retry these requests; their blocks are then computed and stored anew",
        request_ids=requests,
        keys=keys,
    )
