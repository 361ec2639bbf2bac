"""Stores of this process: one per configuration, shared by all connectors that use it.

A memory store outlives its connectors, so that blocks of one instance are there for the next one. A
client of Mooncake, or of a store in a folder, lives while a connector refers to it. Around each
stands a guard that ends calls by their deadline; its threads end with the last connector.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from mooncake_trtllm import _native
from mooncake_trtllm._lifecycle import track
from mooncake_trtllm._log import log
from mooncake_trtllm.errors import KvConnectorError
from mooncake_trtllm.settings import ConnectorSettings, origin

__all__ = ["StoreLease", "StoreRegistry", "stores"]

# A call that is given up occupies one of the threads until it returns.
_GUARD_THREADS = 8
_MAX_ABANDONED = 4
# Twice at the end of the last connector, in addition to what that takes itself: see worker.py.
_CLOSE_TIMEOUT_S = 0.5

_FILE_FIGURES = tuple(
    name for name, *_ in _native.stat_table()["store"] if name.startswith("store_file_")
)
_RDMA_DEVICES = Path("/sys/class/infiniband")
_MOONCAKE_TEXTS = (
    "MOONCAKE_MASTER",
    "MOONCAKE_TE_META_DATA_SERVER",
    "MOONCAKE_PROTOCOL",
    "MOONCAKE_DEVICE",
    "MOONCAKE_LOCAL_HOSTNAME",
    "MOONCAKE_TENANT_ID",
    "MC_REPLICATION_ADMIN",
)


@dataclass(eq=False)
class _Shared:
    """A guarded store and how many connectors use it."""

    key: Hashable
    guarded: _native.GuardedStore | None
    file: _native.FileStore | None
    """What is guarded, if that is a store in a folder."""
    users: int = 0
    last_counters: dict[str, int] = field(default_factory=dict)

    def counters(self) -> dict[str, int]:
        guarded, file = self.guarded, self.file
        if guarded is not None:
            of_folder = dict.fromkeys(_FILE_FIGURES, 0) if file is None else file.stats()
            self.last_counters = {**guarded.counters(), **of_folder}
        return self.last_counters

    def end(self) -> None:
        """Close the guard and let its threads go."""
        if self.guarded is not None:
            last = self.counters()  # A folder says nothing once it is closed.
            self.guarded.close(_CLOSE_TIMEOUT_S)
            self.last_counters = {**last, **self.guarded.counters()}
            self.guarded = self.file = None

    def give_up(self) -> None:
        if self.guarded is not None:
            self.guarded.disown()
            self.guarded = None
        if self.file is not None:
            self.file.disown()
            self.file = None


@dataclass(eq=False)
class StoreLease:
    """One connector's use of a store. Release it when the connector has no call in flight."""

    _store: _native.Store | None
    _shared: _Shared
    _registry: StoreRegistry

    @property
    def store(self) -> _native.Store:
        """The store. Not after release()."""
        assert self._store is not None, "the lease was released"
        return self._store

    def counters(self) -> dict[str, int]:
        """What the guard and a folder counted, for all connectors that share the store."""
        return self._shared.counters()

    def release(self) -> None:
        """End the use; the last user ends the guard and a client of Mooncake. Idempotent."""
        self._registry.release(self)

    def give_up(self) -> None:
        """Forget the store in a forked child."""
        if self._store is not None:
            self._store.disown()
            self._store = None


class StoreRegistry:
    """The stores of a process.

    release() may be called by the garbage collector at any time, also while this thread holds the
    lock: it is then put off until the lock is free.
    """

    def __init__(self) -> None:
        # Reentrant, for a collection between taking the lock and noting the owner.
        self._lock = threading.RLock()
        self._owner: int | None = None
        self._put_off: list[StoreLease] = []
        self._shared: dict[Hashable, _Shared] = {}
        self._memory: dict[Hashable, _native.MemoryStore] = {}

    def acquire(self, settings: ConnectorSettings) -> StoreLease:
        """Return a lease on the store that the settings name.

        Raises KvConnectorConfigError or KvConnectorStoreError if it cannot be opened.
        """
        key, open_inner = self._opener(settings)
        with self._locked():
            shared = self._shared.get(key)
            if shared is None:
                inner = open_inner()
                guarded = _native.GuardedStore(
                    inner, threads=_GUARD_THREADS, max_abandoned=_MAX_ABANDONED
                )
                file = inner if isinstance(inner, _native.FileStore) else None
                shared = self._shared[key] = _Shared(key, guarded, file)
            assert shared.guarded is not None
            lease = StoreLease(shared.guarded.handle(), shared, self)
            shared.users += 1
        return lease

    def release(self, lease: StoreLease) -> None:
        """See StoreLease.release()."""
        if self._owner == threading.get_ident():
            self._put_off.append(lease)
            return
        with self._locked():
            self._release(lease)

    def give_up(self) -> None:
        """Start anew in a forked child: what the parent opened stays the parent's."""
        for shared in self._shared.values():
            shared.give_up()
        for memory in self._memory.values():
            memory.disown()
        self._lock = threading.RLock()
        self._owner = None
        self._put_off, self._shared, self._memory = [], {}, {}

    def _opener(self, settings: ConnectorSettings) -> tuple[Hashable, Callable[[], _native.Store]]:
        if settings.backend == "memory":
            key: Hashable = ("memory", settings.memory_bytes)
            return key, lambda: self._memory_store(key, settings.memory_bytes)
        if settings.backend == "file":
            path, max_bytes = settings.file_path, settings.file_max_bytes
            return ("file", path, max_bytes), lambda: _file_store(path, max_bytes)
        core = settings.core
        segment_bytes = core.number("MOONCAKE_GLOBAL_SEGMENT_SIZE")
        texts = [core.text(name) for name in _MOONCAKE_TEXTS]

        def open_mooncake() -> _native.Store:
            master, metadata_server, protocol, devices, local_hostname, tenant, admin = texts
            if protocol == "rdma" and not has_rdma_device():
                log.warning_once(
                    "MOONCAKE_PROTOCOL=rdma, but this machine has no RDMA device in %s: Mooncake "
                    "moves the data over TCP then, without a word",
                    _RDMA_DEVICES,
                )
            try:
                return _native.open_mooncake_store(
                    master,
                    metadata_server=metadata_server,
                    protocol=protocol,
                    devices=devices,
                    local_hostname=local_hostname,
                    tenant=tenant,
                    global_segment_bytes=segment_bytes,
                    admin=admin,
                )
            except KvConnectorError as error:
                where = origin(core)
                if not where:
                    raise
                raise type(error)(f"{error}. The master is {master}{where}") from None

        return ("mooncake", segment_bytes, *texts), open_mooncake

    def _memory_store(self, key: Hashable, capacity_bytes: int) -> _native.Store:
        memory = self._memory.get(key)
        if memory is None:
            memory = self._memory[key] = _native.MemoryStore(capacity_bytes)
        return memory.handle()  # closing the guard must not close the store

    def _release(self, lease: StoreLease) -> None:
        store, lease._store = lease._store, None
        if store is None:
            return
        store.close(_CLOSE_TIMEOUT_S)
        shared = lease._shared
        shared.users -= 1
        if shared.users == 0:
            self._shared.pop(shared.key, None)
            shared.end()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._lock:
            self._owner = threading.get_ident()
            try:
                yield
            finally:
                while self._put_off:
                    self._release(self._put_off.pop())
                self._owner = None


def has_rdma_device() -> bool:
    """Whether the kernel lists one."""
    try:
        return any(_RDMA_DEVICES.iterdir())
    except OSError:
        return False


def _file_store(path: str, max_bytes: int) -> _native.Store:
    store = _native.FileStore(path, max_bytes)
    now = store.stats()
    log.info_once(
        "file store %s: %d bytes used of at most %d",
        path,
        now["store_file_bytes_used"],
        now["store_file_bytes_limit"],
    )
    return store


stores = StoreRegistry()
track(stores)
