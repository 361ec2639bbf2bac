"""What Mooncake's binding says and does about replicas, as plain numbers and strings.

The native client (`bindings/mooncake_replica_calls.h`) makes one `ReplicaCalls` per store object
and calls its methods. Conversion alone: when to copy, and what to read from where, is decided
natively.
"""

from __future__ import annotations

import importlib
import json
import socket
import urllib.request
from typing import Any

__all__ = ["ReplicaCalls"]

_ADMIN_TIMEOUT_S = 1.0
# Where a master has its admin pages unless told otherwise.
_ADMIN_PORT = 9003
_TRANSFER_FAIL = -800


class ReplicaCalls:
    """Raises AttributeError or ImportError when made with a binding that lacks a part."""

    def __init__(
        self,
        store: Any,
        *,
        master: str,
        admin: str,
        own_address: str,
        metadata_server: str,
        protocol: str,
        devices: str,
    ) -> None:
        binding = importlib.import_module("mooncake.store")
        self._config_class = binding.ReplicateConfig
        self._complete = binding.ReplicaStatus.COMPLETE
        self._describe = store.batch_get_replica_desc
        self._create_copy_task = store.create_copy_task
        self._admin = admin or f"{_host_of(master)}:{_ADMIN_PORT}"
        self._own_host = _host_of(own_address)
        self._transport = (metadata_server, protocol, devices)
        self._engine: Any = None
        self.config(2)

    def config(self, replicas: int) -> Any:
        """Return what a put is told to store so many copies."""
        config = self._config_class()
        config.replica_num = replicas
        return config

    def of_keys(self, keys: list[bytes]) -> list[list[tuple[str, int, int]]]:
        """Return endpoint, address and size of the complete copies in memory, by key."""
        described = self._describe(keys)
        return [
            [
                (where.transport_endpoint, where.buffer_address, where.size)
                for replica in described.get(key.decode(), ())
                if replica.status == self._complete and replica.is_memory_replica()
                for where in [replica.get_memory_descriptor().buffer_descriptor]
            ]
            for key in keys
        ]

    def segments(self) -> list[tuple[str, str, int]]:
        """Return name, endpoint and free bytes of each segment that takes objects."""
        # No proxy: the address is one of the store's own network.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        url = f"http://{self._admin}/get_segments_detail"
        with opener.open(url, timeout=_ADMIN_TIMEOUT_S) as reply:
            segments = json.loads(reply.read())["segments"]
        return [
            (
                str(segment["segment_name"]),
                str(segment["te_endpoint"]),
                int(segment["allocator_capacity_bytes"]) - int(segment["allocator_used_bytes"]),
            )
            for segment in segments
            if segment["status"] == "OK"
        ]

    def copy(self, key: bytes, segment: str) -> int:
        """Have the store copy an object in the background; the code of having been asked."""
        _, code = self._create_copy_task(key, [segment])
        return int(code)

    def read(self, endpoint: str, address: int, pointer: int, size: int) -> int:
        """Read a copy past the store; its size, or a negative code."""
        engine = self._transfer_engine()
        if self._transport[1] != "tcp":
            engine.register_memory(pointer, size)
        try:
            code = engine.transfer_sync_read(endpoint, pointer, address, size)
        finally:
            if self._transport[1] != "tcp":
                engine.unregister_memory(pointer)
        return size if code == 0 else _TRANSFER_FAIL

    def _transfer_engine(self) -> Any:
        """Made on first need: most clients never lose a storage process."""
        if self._engine is None:
            engine = importlib.import_module("mooncake.engine").TransferEngine()
            code = engine.initialize(f"{self._own_host}:{_free_port()}", *self._transport)
            if code != 0:
                raise RuntimeError(f"Mooncake's transfer engine did not start: {code}")
            self._engine = engine
        return self._engine


def _host_of(address: str) -> str:
    """Return the host of host:port, also of the first one of scheme://host:port,host:port."""
    return address.rpartition("://")[2].partition(",")[0].rpartition(":")[0]


def _free_port() -> int:
    with socket.create_server(("", 0)) as server:
        return int(server.getsockname()[1])
