"""A Mooncake Store of our own: a master and storage processes from Mooncake's wheel.

    with LocalStore(segment_bytes=1 << 30) as store:
        os.environ.update(store.client_environment())
        ...                        # clients; close them before the block ends

It listens on loopback, with the peer-to-peer handshake, unless told otherwise; with
`metadata="http"` the master also runs Mooncake's HTTP metadata server, and everybody uses that.
Start-up picks free ports, waits for the master's health and for the storage node's segment, checks
meanwhile that both processes live, and starts again with new port numbers when one exits (another
program may take a port between our probe and their bind). Storage is a process of its own, so that
data outlive every client. Stop clients first; `stop()` then ends storage and, last, the master.
Neither process can outlive this one, whatever kills it (see `child_guard`).
"""

from __future__ import annotations

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
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

from mooncake_trtllm import child_guard
from mooncake_trtllm.mooncake_wheel import CLIENT_ENVIRONMENT, INSTALL, wheel_version

__all__ = [
    "METADATA_MODES",
    "LocalStore",
    "LocalStoreError",
    "StorePorts",
    "WheelMissingError",
]

METADATA_MODES = ("p2p", "http")

_LOOPBACK = "127.0.0.1"
_START_ATTEMPTS = 5
_POLL_S = 0.02


class LocalStoreError(RuntimeError):
    """The private store could not be started, or stopped answering."""


class WheelMissingError(LocalStoreError):
    """Mooncake's wheel, which carries the two server programs, is not installed."""


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
        f"Remedy: {INSTALL}, or set MOONCAKE_MASTER to a running store, or use another back end"
    )


@dataclass(frozen=True)
class StorePorts:
    """Where a store listens; 0: a port that is free at start."""

    rpc: int = 0
    admin: int = 0
    storage: int = 0
    metadata: int = 0


class LocalStore:
    """Owns one master and its storage processes. Not for use from several threads at once."""

    def __init__(
        self,
        *,
        segment_bytes: int = 1 << 30,
        storage_processes: int = 1,
        client_ttl_s: int = 10,
        start_timeout_s: float = 30.0,
        metadata: str = "p2p",
        host: str = _LOOPBACK,
        ports: StorePorts | None = None,
        log_folder: Path | None = None,
    ) -> None:
        if metadata not in METADATA_MODES:
            raise ValueError(f"metadata={metadata!r}: unknown; remedy: one of {METADATA_MODES}")
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
        self.metadata = metadata
        self.host = host
        self.version = wheel_version()
        self._log_folder = log_folder
        self._wanted = ports or StorePorts()
        self._ports = StorePorts()
        self._more_storage_ports: list[int] = []
        self._master: subprocess.Popen[bytes] | None = None
        self._storages: dict[str, subprocess.Popen[bytes]] = {}  # by name, those that live
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
        for name in self.storage_names:
            self.kill_storage_process(name)
        begin = time.monotonic()
        self._await(
            lambda: not self.segments(), wait_expired_s, "the master to expire the dead segments"
        )
        return time.monotonic() - begin

    def kill_storage_process(self, name: str) -> None:
        """Kills one of the storage processes, and does not wait for the expiry of its segment."""
        process = self._storages.pop(name, None)
        if process is None:
            raise LocalStoreError(
                f"no storage process {name!r} lives; remedy: one of {self.storage_names}"
            )
        process.kill()
        process.wait()

    # What clients need -----------------------------------------------------------------------

    @property
    def master_address(self) -> str:
        return f"{self.host}:{self._ports.rpc}"

    @property
    def admin_url(self) -> str:
        return f"http://{self.host}:{self._ports.admin}"

    @property
    def metadata_server(self) -> str:
        """As Mooncake's clients take it."""
        if self.metadata == "p2p":
            return "P2PHANDSHAKE"
        return f"http://{self.host}:{self._ports.metadata}/metadata"

    @property
    def master_pid(self) -> int:
        return self._master.pid if self._master else 0

    @property
    def storage_pid(self) -> int:
        """The first one's that lives, 0 if none does."""
        return next((process.pid for process in self._storages.values()), 0)

    @property
    def storage_names(self) -> list[str]:
        """Of the storage processes that live."""
        return list(self._storages)

    def client_environment(self) -> dict[str, str]:
        """The variables by which a connector finds this store."""
        return {
            "MOONCAKE_MASTER": self.master_address,
            "MOONCAKE_TE_META_DATA_SERVER": self.metadata_server,
            "MOONCAKE_PROTOCOL": "tcp",
            "MOONCAKE_LOCAL_HOSTNAME": self.host,
            "MOONCAKE_GLOBAL_SEGMENT_SIZE": "0",
            # The file that it may name would replace all of these.
            "MOONCAKE_CONFIG_PATH": "",
            "MC_REPLICATION_ADMIN": f"{self.host}:{self._ports.admin}",
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
            reply = json.loads(self._admin_get("/query_key?key=" + urllib.parse.quote(key)))
        except (LocalStoreError, ValueError):
            return []
        return [str(copy["transport_endpoint_"]) for copy in reply.get("data", [])]

    # Inside ----------------------------------------------------------------------------------

    def _start_once(self, master: Path, storage: Path) -> None:
        self._ports = self._pick_ports()
        environment = {**CLIENT_ENVIRONMENT, **os.environ}
        self._master = self._spawn(
            "master",
            [
                str(master),
                f"--rpc_address={self.host}",
                f"--rpc_port={self._ports.rpc}",
                f"--metrics_host={self.host}",
                f"--metrics_port={self._ports.admin}",
                f"--client_ttl={self.client_ttl_s}",
                "--minloglevel=1",
                *self._metadata_flags(),
            ],
            environment,
        )
        self._await(self._master_ready, self.start_timeout_s, "mooncake_master to become ready")
        for number, port in enumerate([self._ports.storage, *self._more_storage_ports], 1):
            name = "storage" if number == 1 else f"storage-{number}"
            self._storages[name] = self._spawn(
                name, self._storage_command(storage, port), environment
            )
        self._await(
            lambda: len(self.segments()) >= self.storage_processes,
            self.start_timeout_s,
            "mooncake_client to mount memory",
        )

    def _storage_command(self, program: Path, port: int) -> list[str]:
        return [
            str(program),
            f"--host={self.host}",
            f"--port={port}",
            f"--global_segment_size={self.segment_bytes}",
            "--local_buffer_size=16MB",
            "--protocol=tcp",
            f"--master_server_address={self.master_address}",
            f"--metadata_server={self.metadata_server}",
            "--minloglevel=1",
        ]

    def _pick_ports(self) -> StorePorts:
        wanted = self._wanted
        free = _free_ports(3 + self.storage_processes, self.host)
        rpc, admin, storage, metadata, *self._more_storage_ports = free
        return StorePorts(
            wanted.rpc or rpc,
            wanted.admin or admin,
            wanted.storage or storage,
            wanted.metadata or metadata,
        )

    def _metadata_flags(self) -> list[str]:
        if self.metadata == "p2p":
            return []
        return [
            "--enable_http_metadata_server=true",
            f"--http_metadata_server_host={self.host}",
            f"--http_metadata_server_port={self._ports.metadata}",
            # Else entries of clients that died stay until the master ends.
            "--enable_metadata_cleanup_on_timeout=true",
        ]

    def _spawn(
        self, name: str, argv: list[str], environment: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        if name in self._logs:
            self._logs.pop(name).close()
        log: IO[bytes]
        if self._log_folder is not None:
            log = open(self._log_folder / f"{name}.log", "w+b")  # noqa: SIM115 - closed by stop()
        else:
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
                    raise LocalStoreError(
                        f"the store's {name} process (pid {process.pid}) ended with "
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


def _free_ports(count: int, host: str) -> list[int]:
    """Distinct ports that were free on `host` just now."""
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(count)]
    try:
        for probe in sockets:
            probe.bind((host, 0))
        return [probe.getsockname()[1] for probe in sockets]
    except OSError as error:
        raise LocalStoreError(
            f"cannot listen on {host} ({error}); remedy: an IPv4 address of this machine"
        ) from error
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
