"""A private Mooncake Store on loopback: a master and storage processes from Mooncake's wheel.

    with LocalStore(segment_bytes=1 << 30) as store:
        os.environ.update(store.client_environment())
        ...                        # clients; close them before the block ends

Start-up picks free ports, waits for the master's health and for the storage node's segment, checks
meanwhile that both processes live, and starts again with new port numbers when one exits (another
program may take a port between our probe and their bind). Storage is a process of its own, so that
data outlive every client; with several of them an object can have as many replicas. Stop clients
first; `stop()` then ends storage and, last, the master. No process can outlive this one, whatever
kills it (see `child_guard`).
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import signal
import socket
import stat
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO

from mooncake_trtllm import child_guard

__all__ = ["LocalStore", "LocalStoreError", "WheelMissingError", "wheel_version"]

_HOST = "127.0.0.1"
_START_ATTEMPTS = 5
_POLL_S = 0.02
_WHEEL_NAMES = (
    "mooncake-transfer-engine-non-cuda",
    "mooncake-transfer-engine",
    "mooncake-transfer-engine-cuda13",
)

# What every process of the store is given where the user has not chosen: without the pool each
# buffer costs a TCP connection, and the stock timeouts are half a minute.
_MOONCAKE_DEFAULTS = {
    "MC_TCP_ENABLE_CONNECTION_POOL": "1",
    "MC_TCP_STATUS_TIMEOUT_SEC": "3",
    "MC_RPC_TIMEOUT_MS": "2000",
    "MC_STORE_CLIENT_SETUP_RETRIES": "1",
    "MC_LOG_LEVEL": "ERROR",
}


class LocalStoreError(RuntimeError):
    """The private store could not be started, or stopped answering."""


class WheelMissingError(LocalStoreError):
    """Mooncake's wheel, which carries the two server programs, is not installed."""


def wheel_version() -> str | None:
    """The version of the installed Mooncake wheel, or None. Imports nothing of it."""
    for name in _WHEEL_NAMES:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def server_program(name: str) -> Path:
    """The path of `mooncake_master` or `mooncake_client` inside the wheel, made executable.

    Raises WheelMissingError. Does not import `mooncake` (which would start threads).
    """
    spec = importlib.util.find_spec("mooncake")
    for location in (spec.submodule_search_locations or []) if spec else []:
        path = Path(location) / name
        if path.is_file():
            mode = path.stat().st_mode
            if not mode & stat.S_IXUSR:
                path.chmod(mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
            return path
    raise WheelMissingError(
        f"{name}: not found, because no Mooncake wheel is installed in this environment. "
        f"Remedy: pip install {_WHEEL_NAMES[0]}==0.3.13.post1, or set MOONCAKE_MASTER to a "
        "running store, or use the memory back end"
    )


class LocalStore:
    """Owns one master and its storage processes. Not for use from several threads at once."""

    def __init__(
        self,
        *,
        segment_bytes: int = 1 << 30,
        storage_processes: int = 1,
        client_ttl_s: int = 10,
        start_timeout_s: float = 30.0,
    ) -> None:
        if segment_bytes < 16 << 20:
            raise ValueError(
                f"segment_bytes={segment_bytes}: a segment holds at least 16 MiB; "
                "remedy: pass 16777216 or more"
            )
        if storage_processes < 1:
            raise ValueError(
                f"storage_processes={storage_processes}: a store has at least one; remedy: pass 1"
            )
        self.segment_bytes = segment_bytes
        self.storage_processes = storage_processes
        self.client_ttl_s = client_ttl_s
        self.start_timeout_s = start_timeout_s
        self.version = wheel_version()
        self._master: subprocess.Popen[bytes] | None = None
        self._storages: dict[str, subprocess.Popen[bytes]] = {}  # by their addresses
        self._rpc_port = self._admin_port = 0
        self._logs: dict[str, IO[bytes]] = {}

    # Life cycle ------------------------------------------------------------------------------

    def start(self) -> LocalStore:
        """Starts both processes and returns when data can be stored. Raises LocalStoreError."""
        if self._master is not None:
            raise LocalStoreError("this LocalStore is already started; remedy: stop() it first")
        master, storage = server_program("mooncake_master"), server_program("mooncake_client")
        failure: LocalStoreError | None = None
        try:
            for _ in range(_START_ATTEMPTS):
                try:
                    self._start_once(master, storage)
                    return self
                except LocalStoreError as error:
                    failure = error
                    self._stop_processes()
        except BaseException:
            self.stop()
            raise
        self.stop()
        raise LocalStoreError(
            f"the private store did not start in {_START_ATTEMPTS} attempts; last: {failure}"
        )

    def stop(self) -> None:
        """Ends storage, then the master. Idempotent; close every client before."""
        self._stop_processes()
        while self._logs:
            self._logs.popitem()[1].close()

    def __enter__(self) -> LocalStore:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def kill_storage(self, *, wait_expired_s: float = 60.0) -> float:
        """Kills storage and waits until the master has expired its segments; returns the seconds.

        Until then the store still answers "exists" for objects that are gone.
        """
        if not self._storages:
            raise LocalStoreError("storage is not running; remedy: start() the store first")
        for address in list(self._storages):
            self.kill_storage_process(address)
        begin = time.monotonic()
        self._await(
            lambda: not self.segments(), wait_expired_s, "the master to expire the dead segments"
        )
        return time.monotonic() - begin

    def kill_storage_process(self, address: str) -> None:
        """Kills one storage process, by its segment's name, and does not wait for its expiry."""
        process = self._storages.pop(address, None)
        if process is None:
            raise LocalStoreError(
                f"no storage process has the address {address}; remedy: use one of "
                f"{list(self._storages)}"
            )
        process.kill()
        process.wait()

    # What clients need -----------------------------------------------------------------------

    @property
    def master_address(self) -> str:
        return f"{_HOST}:{self._rpc_port}"

    @property
    def admin_url(self) -> str:
        return f"http://{_HOST}:{self._admin_port}"

    @property
    def master_pid(self) -> int:
        return self._master.pid if self._master else 0

    @property
    def storage_pid(self) -> int:
        """The first one's that lives, 0 if none does."""
        return next((process.pid for process in self._storages.values()), 0)

    @property
    def storage_addresses(self) -> list[str]:
        """Of the storage processes that live; also the names of their segments."""
        return list(self._storages)

    def client_environment(self) -> dict[str, str]:
        """The variables by which a connector finds this store."""
        return {
            "MOONCAKE_MASTER": self.master_address,
            "MOONCAKE_TE_META_DATA_SERVER": "P2PHANDSHAKE",
            "MOONCAKE_PROTOCOL": "tcp",
            "MOONCAKE_LOCAL_HOSTNAME": _HOST,
            "MOONCAKE_GLOBAL_SEGMENT_SIZE": "0",
            "MC_REPLICATION_ADMIN": f"{_HOST}:{self._admin_port}",
        }

    def keys(self) -> list[str]:
        """Every key in the store, sorted. Grants no lease."""
        return sorted(self._admin_lines("/get_all_keys"))

    def segments(self) -> list[str]:
        """The segments that the master counts as alive. Grants no lease."""
        return self._admin_lines("/get_all_segments")

    def replicas(self, key: str) -> list[str]:
        """The endpoints of the storage processes that hold an object's copies.

        As the master has it; none if there is no such object. Grants a lease.
        """
        try:
            reply = json.loads(
                self._admin_get(f"/query_key?key={urllib.parse.quote(key, safe='/')}")
            )
        except (LocalStoreError, ValueError):
            return []
        return [str(copy["transport_endpoint_"]) for copy in reply.get("data", [])]

    # Inside ----------------------------------------------------------------------------------

    def _start_once(self, master: Path, storage: Path) -> None:
        self._rpc_port, self._admin_port, *storage_ports = _free_ports(2 + self.storage_processes)
        environment = {**_MOONCAKE_DEFAULTS, **os.environ}
        self._master = self._spawn(
            "master",
            [
                str(master),
                f"--rpc_address={_HOST}",
                f"--rpc_port={self._rpc_port}",
                f"--metrics_host={_HOST}",
                f"--metrics_port={self._admin_port}",
                f"--client_ttl={self.client_ttl_s}",
                "--minloglevel=1",
            ],
            environment,
        )
        self._await(self._master_ready, self.start_timeout_s, "mooncake_master to become ready")
        for port in storage_ports:
            address = f"{_HOST}:{port}"
            self._storages[address] = self._spawn(
                address,
                [
                    str(storage),
                    f"--host={_HOST}",
                    f"--port={port}",
                    f"--global_segment_size={self.segment_bytes}",
                    "--local_buffer_size=16MB",
                    "--protocol=tcp",
                    f"--master_server_address={self.master_address}",
                    "--metadata_server=P2PHANDSHAKE",
                    "--minloglevel=1",
                ],
                environment,
            )
        self._await(
            lambda: len(self.segments()) >= self.storage_processes,
            self.start_timeout_s,
            "mooncake_client to mount memory",
        )

    def _spawn(
        self, name: str, argv: list[str], environment: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        if name in self._logs:
            self._logs.pop(name).close()
        # Without a name in the file system, so that nothing can be left behind.
        log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop()
        self._logs[name] = log
        return child_guard.spawn(argv, env=environment, output=log)

    def _await(self, ready: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Polls until `ready`, at most `timeout_s`; fails at once when a process of ours ends."""
        deadline = time.monotonic() + timeout_s
        while True:
            for name, process in (("master", self._master), *self._storages.items()):
                if process is not None and process.poll() is not None:
                    role = "master" if process is self._master else "storage"
                    raise LocalStoreError(
                        f"the store's {role} process (pid {process.pid}) ended with "
                        f"{describe_exit(process.returncode)} while waiting for {what}: "
                        f"{self._log_tail(name)}"
                    )
            if ready():
                return
            if time.monotonic() > deadline:
                raise LocalStoreError(f"waited {timeout_s:.0f} s in vain for {what}")
            time.sleep(_POLL_S)

    def _master_ready(self) -> bool:
        try:
            return json.loads(self._admin_get("/health")).get("service_ready") is True
        except (LocalStoreError, ValueError):
            return False

    def _admin_lines(self, path: str) -> list[str]:
        return [line for line in self._admin_get(path).splitlines() if line]

    def _admin_get(self, path: str) -> str:
        # No proxy: the address is always this machine's.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(self.admin_url + path, timeout=10) as reply:
                return str(reply.read().decode())
        except (urllib.error.URLError, OSError) as error:
            raise LocalStoreError(
                f"{self.admin_url}{path}: the private store's master does not answer ({error})"
            ) from error

    def _log_tail(self, name: str) -> str:
        log = self._logs.get(name)
        return (child_guard.said(log) if log else "") or "empty log"

    def _stop_processes(self) -> None:
        storages, self._storages = self._storages, {}
        master, self._master = self._master, None
        for process in (*storages.values(), master):
            if process is not None:
                child_guard.stop(process)


def _free_ports(count: int) -> list[int]:
    """Distinct ports that were free on loopback just now."""
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(count)]
    try:
        for probe in sockets:
            probe.bind((_HOST, 0))
        return [probe.getsockname()[1] for probe in sockets]
    finally:
        for probe in sockets:
            probe.close()


def describe_exit(status: int) -> str:
    """An exit status of a child in words."""
    if status < 0:
        try:
            return f"signal {signal.Signals(-status).name}"
        except ValueError:
            return f"signal {-status}"
    return f"status {status}"
