"""Metrics for Prometheus: one HTTP server per process and setting, while a connector needs it.

Whatever fails here costs metrics and nothing else: one warning, and the engine goes on. The library
`prometheus_client` writes the text; it is imported when a port is set. Its own server is not used,
since it starts a thread per connection and does not end those.

The server handles one connection at a time and gives each a bound; so a client that says little
costs other scrapes a few seconds, and never a thread.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import socket
import socketserver
import threading
import wsgiref.simple_server
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

from mooncake_trtllm._lifecycle import track
from mooncake_trtllm._log import log
from mooncake_trtllm._stats import Stat, stat_table

__all__ = ["Exporter", "exporter"]

_PREFIX = "mooncake_trtllm"
_CONNECTION_S = 5.0
_STOP_S = 0.5  # The thread is a daemon.
_PAUSE_S = 1.0
_MAX_PORT = 65535
_LABELS = ("rank", "connector")


class Source(Protocol):
    """What is exported of one connector."""

    def metrics(self) -> dict[str, Any]:
        """Return what the method of this name of the connector returns."""


@runtime_checkable
class Explainer(Protocol):
    """A source that can also say what became of single requests."""

    def explain(self) -> list[str]:
        """Return a line for each."""


@dataclass(frozen=True)
class _Entry:
    source: Source
    role: str
    rank: int
    number: int
    """Tells connectors of one role and rank in this process apart."""
    address: tuple[str, int]


class Exporter:
    """The servers of a process. No method raises.

    remove() may be called by the garbage collector at any time, also on a thread that is inside
    another method: the lock is reentrant, and what such a call changes is settled by the outer one.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._entries: dict[int, _Entry] = {}
        self._servers: dict[tuple[str, int], _Server] = {}
        self._keys = itertools.count(1)
        self._settling = False

    def add(self, source: Source, role: str, rank: int, address: tuple[str, int]) -> int:
        """Export `source` from now on; returns the key for remove(). Port 0: nothing happens."""
        if not address[1]:
            return 0
        with self._lock:
            key = next(self._keys)
            others = [e for e in self._entries.values() if (e.role, e.rank) == (role, rank)]
            number = max((entry.number for entry in others), default=-1) + 1
            self._entries[key] = _Entry(source, role, rank, number, address)
            self._settle()
        return key

    def remove(self, key: int) -> None:
        """Export it no longer; the last one of an address ends its server. Idempotent."""
        if not key:
            return
        with self._lock:
            self._entries.pop(key, None)
            self._settle()

    def give_up(self) -> None:
        """Start anew in a forked child; the parent's server stays the parent's."""
        for server in self._servers.values():
            server.give_up()
        self._lock = threading.RLock()
        self._entries, self._servers, self._settling = {}, {}, False

    def _settle(self) -> None:
        """Bring servers in line with entries."""
        if self._settling:
            return
        self._settling = True
        try:
            while (change := self._next_change()) is not None:
                change()
        except Exception:  # noqa: BLE001 - metrics never leave the connector
            log.exception("metrics are not served")
        finally:
            self._settling = False

    def _next_change(self) -> Callable[[], None] | None:
        lowest: dict[tuple[str, int], int] = {}
        for entry in list(self._entries.values()):
            lowest[entry.address] = min(entry.rank, lowest.get(entry.address, entry.rank))
        for address, server in self._servers.items():
            # Ranks may be threads of one process: the port is then that of the lowest one.
            if address not in lowest or lowest[address] < server.rank:
                return functools.partial(self._stop, address)
        for address, rank in lowest.items():
            if address not in self._servers:
                return functools.partial(self._start, address, rank)
        return None

    def _stop(self, address: tuple[str, int]) -> None:
        self._servers.pop(address).stop()

    def _start(self, address: tuple[str, int], rank: int) -> None:
        server = self._servers[address] = _Server(address, rank)
        server.start(lambda: [e for e in list(self._entries.values()) if e.address == address])


class _Server:
    """One port. One that could not be opened stays silent."""

    def __init__(self, address: tuple[str, int], rank: int) -> None:
        self.rank = rank
        self._host, self._port = address[0], address[1] + rank
        self._stopped = threading.Event()
        self._listener: _Listener | None = None
        self._connection: socket.socket | None = None
        self._thread: threading.Thread | None = None

    def start(self, entries: Callable[[], list[_Entry]]) -> None:
        """Listen, or warn once that there will be no metrics, and why."""
        where = f"MC_METRICS_PORT: metrics are not served on {self._host}:{self._port}"
        try:
            application = _application(entries)
        except Exception as error:  # noqa: BLE001 - an installation may be broken in any way
            log.warning_once(
                "%s: prometheus_client cannot be imported (%s). Remedy: pip install "
                "prometheus-client, or set MC_METRICS_PORT=0",
                where,
                error,
            )
            return
        try:
            if self._port > _MAX_PORT:
                raise OSError(f"rank {self.rank} is added to the port, which ends at {_MAX_PORT}")
            self._listener = _Listener(self._host, self._port, application)
        except OSError as error:
            log.warning_once(
                "%s: %s. Remedy: a free MC_METRICS_PORT for each engine on this machine (rank r "
                "takes port + r), and an address of this machine in MC_METRICS_HOST",
                where,
                error,
            )
            return
        self._thread = threading.Thread(
            target=self._serve, args=(self._listener,), name="kvc-metrics", daemon=True
        )
        self._thread.start()
        log.info("metrics are served on http://%s:%d/metrics", self._host, self._port)

    def _serve(self, listener: _Listener) -> None:
        while not self._stopped.is_set():
            try:
                connection, client = listener.socket.accept()
            except OSError:  # the end, or no file descriptor is free
                self._stopped.wait(_PAUSE_S)
                continue
            self._connection = connection
            with contextlib.suppress(Exception):
                if not self._stopped.is_set():
                    listener.finish_request(connection, client)
            self._connection = None
            with contextlib.suppress(OSError):
                connection.close()

    def stop(self) -> None:
        """End thread and sockets. It may be called on the server's own thread."""
        self._stopped.set()
        for one in self._sockets():
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_STOP_S)
        if self._listener is not None:
            self._listener.server_close()

    def give_up(self) -> None:
        """Close a forked child's copies, without ending the parent's connections."""
        self._stopped.set()
        for one in self._sockets():
            one.close()

    def _sockets(self) -> list[socket.socket]:
        listening = None if self._listener is None else self._listener.socket
        return [one for one in (listening, self._connection) if one is not None]


def _shut_down(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it may be closed by now
        connection.shutdown(socket.SHUT_RDWR)


class _Listener(wsgiref.simple_server.WSGIServer):
    allow_reuse_port = False  # another engine's port must count as taken

    def __init__(self, host: str, port: int, application: Any) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)
        self.set_app(application)

    def server_bind(self) -> None:
        """Bind without looking up the machine's name, which may take long."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()


class _Handler(wsgiref.simple_server.WSGIRequestHandler):
    timeout = _CONNECTION_S

    def handle(self) -> None:
        """Serve the connection, however slowly its client reads and writes, within its bound."""
        end = threading.Timer(self.timeout, _shut_down, [self.connection])
        end.daemon = True
        end.start()
        try:
            super().handle()
        finally:
            end.cancel()

    def log_message(self, *_: Any) -> None:
        """Say nothing: a scrape is not worth a line."""


def _application(entries: Callable[[], list[_Entry]]) -> Any:
    import prometheus_client

    registry = prometheus_client.CollectorRegistry()
    registry.register(_Collector(entries))
    metrics = prometheus_client.make_wsgi_app(registry)

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ.get("PATH_INFO") != "/explain":
            return cast("Iterable[bytes]", metrics(environ, start_response))
        text = "".join(f"{line}\n" for line in _explanations(entries()))
        start_response("200 OK", [("Content-Type", "text/plain; charset=utf-8")])
        return [text.encode()]

    return answer


def _explanations(entries: list[_Entry]) -> Iterator[str]:
    """Of the schedulers; where there are several, each line says whose it is."""
    schedulers = [(e.number, e.source) for e in entries if isinstance(e.source, Explainer)]
    for number, source in schedulers:
        prefix = f"connector {number}: " if len(schedulers) > 1 else ""
        for line in source.explain():
            yield prefix + line


class _Collector:
    """Reads the connectors when Prometheus asks."""

    def __init__(self, entries: Callable[[], list[_Entry]]) -> None:
        self._entries = entries

    def describe(self) -> list[Any]:
        """Nothing to check for duplicates: the registry has one collector."""
        return []

    def collect(self) -> Iterable[Any]:
        """Yield the families of all connectors. One that cannot be read is left out."""
        families: dict[str, Any] = {}
        for entry in self._entries():
            try:
                values = entry.source.metrics()
                for stat in stat_table(entry.role):
                    if stat.name in values:
                        _add(families, entry, stat, values[stat.name])
            except Exception:  # noqa: BLE001 - the others are shown all the same
                log.exception_once("metrics of the %s of rank %d", entry.role, entry.rank)
        return families.values()


def _add(families: dict[str, Any], entry: _Entry, stat: Stat, value: Any) -> None:
    from prometheus_client import core

    labels = [str(entry.rank), str(entry.number)]
    name = f"{_PREFIX}_{entry.role}_{stat.family}"
    family = families.get(name)
    if family is None:
        kinds = {
            "counter": core.CounterMetricFamily,
            "gauge": core.GaugeMetricFamily,
            "histogram": core.HistogramMetricFamily,
        }
        named = [*_LABELS, "reason"] if stat.reason else [*_LABELS]
        unit = "_seconds" if stat.kind == "histogram" else ""
        family = families[name] = kinds[stat.kind](
            name + unit, _family_help(entry.role, stat.family), labels=named
        )
    if stat.kind == "histogram":
        buckets = [(_bound(bound), count) for bound, count in value["buckets"]]
        family.add_metric(labels, buckets, value["sum_seconds"])
    else:
        family.add_metric([*labels, stat.reason] if stat.reason else labels, value)


def _family_help(role: str, family: str) -> str:
    texts = [stat for stat in stat_table(role) if stat.family == family]
    return " ".join(f"{s.reason}: {s.help}" if s.reason else s.help for s in texts)


def _bound(bound: float | str) -> str:
    return bound if isinstance(bound, str) else repr(bound)


exporter = Exporter()
track(exporter)
