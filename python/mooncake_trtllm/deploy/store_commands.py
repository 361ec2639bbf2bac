"""`up`, `down`, `status`, `env`: a store that stays up between commands."""

from __future__ import annotations

import argparse
import errno
import json
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

from mooncake_trtllm import child_guard
from mooncake_trtllm.cli.exits import BROKEN, GOOD, UNREACHABLE, UsageError
from mooncake_trtllm.cli.output import human_bytes
from mooncake_trtllm.cli.stores import check_fits, size_in_bytes
from mooncake_trtllm.deploy.python_path import python_path
from mooncake_trtllm.deploy.run_folder import Record, RunFolder
from mooncake_trtllm.local_store import METADATA_MODES, LocalStoreError

__all__ = ["add_store_options", "add_to", "client_environment"]

_START_LIMIT_S = 180.0
_STOP_LIMIT_S = 20.0
_KILL_LIMIT_S = 5.0
_POLL_S = 0.02
_PORTS = ("rpc", "admin", "storage", "metadata")
_LARGEST_PORT = 65535
_LEAST_SEGMENT_BYTES = 16 << 20
_DEFAULT_SEGMENT_BYTES = 1 << 30
_NOT_UP = "no store is up; remedy: run_ctx_gen_store.sh up, or the --run-dir of the one meant"


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the four commands."""
    up = commands.add_parser("up", help="start master, metadata server and storage; they stay up")
    add_store_options(up)
    up.add_argument(
        "--segment-bytes",
        type=size_in_bytes,
        default=_DEFAULT_SEGMENT_BYTES,
        metavar="N",
        help="memory of the storage process, as in settings: 1073741824, 512MB, 1GiB (default: "
        f"{_DEFAULT_SEGMENT_BYTES})",
    )
    for what in _PORTS:
        up.add_argument(
            f"--{what}-port",
            type=int,
            default=0,
            metavar="N",
            help="default: one that is free",
        )
    up.set_defaults(run=_up)
    for name, run, text in (
        ("down", _down, "stop what `up` started, and nothing else"),
        ("status", _status, "say what runs; exit code 3 where no whole store does"),
        ("env", _env, 'print the environment of clients: eval "$(run_ctx_gen_store.sh env)"'),
    ):
        commands.add_parser(name, help=text).set_defaults(run=run)


def add_store_options(parser: argparse.ArgumentParser) -> None:
    """How a store is started."""
    parser.add_argument(
        "--metadata",
        choices=METADATA_MODES,
        default="p2p",
        help="how transfer engines find each other: handshake between peers, or Mooncake's HTTP "
        "metadata server, which the master then runs (default: p2p)",
    )
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="address of this machine to listen on and to tell clients (default: 127.0.0.1); the "
        "store has no access control",
    )


def client_environment(folder: RunFolder) -> dict[str, str] | None:
    """Of the store that is up; None where none is."""
    record = folder.read() if folder.in_use() else None
    return record.environment if record and record.keeper.alive else None


def _up(options: argparse.Namespace) -> int:
    if options.segment_bytes < _LEAST_SEGMENT_BYTES:
        raise UsageError(
            f"--segment-bytes {options.segment_bytes}: too small; remedy: {_LEAST_SEGMENT_BYTES} "
            "or more"
        )
    check_fits(options.segment_bytes, "--segment-bytes", "fewer bytes, or a larger machine")
    folder = RunFolder.open(options.run_dir)
    lock = folder.take_lock()
    if lock is None:
        raise UsageError(
            f"a store is up already, or starting ({_where(folder)}); remedy: "
            "run_ctx_gen_store.sh down, or another --run-dir for a second one"
        )
    try:
        _check_ports(options)
        folder.forget()
        _start_keeper(options, folder, lock)
    finally:
        os.close(lock)
    record = folder.read()
    if record is None:
        raise LocalStoreError(f"the store ended at once; remedy: see {folder.log_path}")
    sys.stdout.write(_text(record))
    own = f"--run-dir {shlex.quote(str(options.run_dir))} " if options.run_dir else ""
    print(f'clients: eval "$(run_ctx_gen_store.sh {own}env)"')
    return GOOD


def _ports(options: argparse.Namespace) -> dict[str, int]:
    """As they were asked for; 0: one that is free."""
    return {name: getattr(options, f"{name}_port") for name in _PORTS}


def _check_ports(options: argparse.Namespace) -> None:
    """Raises UsageError for a port that was asked for and cannot be had."""
    asked = {name: port for name, port in _ports(options).items() if port}
    for name, port in asked.items():
        remedy = f"remedy: choose another --{name}-port, or leave it out for one that is free"
        if not 0 < port <= _LARGEST_PORT:
            raise UsageError(f"--{name}-port {port}: no port from 1 to {_LARGEST_PORT}; {remedy}")
        if list(asked.values()).count(port) > 1:
            raise UsageError(f"--{name}-port {port}: port {port} is asked for twice; {remedy}")
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            # As servers do: a connection that ended there lately is no hindrance.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((options.host, port))
                probe.listen()
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    raise UsageError(
                        f"--{name}-port {port}: port {port} is taken on {options.host}; {remedy}"
                    ) from None
                if error.errno == errno.EACCES:
                    raise UsageError(
                        f"--{name}-port {port}: port {port} is not allowed ({error.strerror}); "
                        f"{remedy}"
                    ) from None
                # A wrong --host is said by the store.


def _start_keeper(options: argparse.Namespace, folder: RunFolder, lock: int) -> None:
    """Returns when the store is ready; nothing is left running otherwise."""
    reader, writer = os.pipe()
    order = {
        "folder": str(folder.path.resolve()),
        "lock": lock,
        "ready": writer,
        "store": {
            "segment_bytes": options.segment_bytes,
            "metadata": options.metadata,
            "host": options.host,
            "ports": _ports(options),
        },
    }
    with open(folder.log_path, "wb") as log:
        keeper = subprocess.Popen(
            [sys.executable, "-m", "mooncake_trtllm.deploy.keeper", json.dumps(order)],
            env={**os.environ, "PYTHONPATH": python_path()},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(lock, writer),
            start_new_session=True,
            cwd="/",
        )
    try:
        os.close(writer)
        said = _line(reader, _START_LIMIT_S)
    except BaseException:
        child_guard.stop(keeper, grace_s=_STOP_LIMIT_S)
        raise
    finally:
        os.close(reader)
    if said != "ready":
        child_guard.stop(keeper, grace_s=_STOP_LIMIT_S)
        raise LocalStoreError(said or f"the store did not start; remedy: see {folder.log_path}")
    # It outlives this process, which does not wait for it.
    keeper.returncode = 0


def _line(reader: int, limit_s: float) -> str:
    """What the keeper says before it goes on or ends; empty where it says nothing in time."""
    ready, _, _ = select.select([reader], [], [], limit_s)
    return os.read(reader, 4096).decode(errors="replace") if ready else ""


def _down(options: argparse.Namespace) -> int:
    folder = RunFolder.open(options.run_dir)
    if not folder.in_use():
        stale = folder.forget()
        print("no store is up" + ("; a record that a crash left is removed" if stale else ""))
        return GOOD
    record = _awaited_record(folder)
    if record is None or not record.keeper.alive:
        print(
            f"run folder {folder.path} is locked by a process that its record does not name; "
            "nothing was stopped; remedy: end that process (see /proc/locks)",
            file=sys.stderr,
        )
        return BROKEN
    if not record.keeper.signal(signal.SIGTERM, _STOP_LIMIT_S):
        record.keeper.signal(signal.SIGKILL, _KILL_LIMIT_S)
    # The kernel kills its children when it is killed itself; that is soon, not at once.
    deadline = time.monotonic() + _KILL_LIMIT_S
    left = [record.keeper, record.master, record.storage]
    while any(process.alive for process in left):
        if time.monotonic() > deadline:
            pids = [process.pid for process in left if process.alive]
            print(f"still running after all: {pids}", file=sys.stderr)
            return BROKEN
        time.sleep(_POLL_S)
    folder.forget()
    print(f"stopped the store on {record.environment['MOONCAKE_MASTER']}")
    print(f"in shells that took its `env`: unset {' '.join(record.environment)}")
    return GOOD


def _awaited_record(folder: RunFolder) -> Record | None:
    """The record of a store that may still be starting."""
    deadline = time.monotonic() + _STOP_LIMIT_S
    while folder.read() is None and folder.in_use() and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return folder.read()


def _status(options: argparse.Namespace) -> int:
    folder = RunFolder.open(options.run_dir)
    record = folder.read() if folder.in_use() else None
    if record is None:
        print("no store is up")
        return UNREACHABLE
    sys.stdout.write(_text(record))
    health, segments = _get(record, "/health"), _get(record, "/get_all_segments")
    whole = health is not None and '"service_ready":true' in health and bool(segments)
    whole = whole and record.master.alive and record.storage.alive
    print(
        "healthy" if whole else f"NOT healthy; remedy: down and up; see the logs in {folder.path}"
    )
    return GOOD if whole else UNREACHABLE


def _env(options: argparse.Namespace) -> int:
    environment = client_environment(RunFolder.open(options.run_dir))
    if environment is None:
        print(f"mooncake-trtllm: error: {_NOT_UP}", file=sys.stderr)
        return UNREACHABLE
    for name, value in environment.items():
        print(f"export {name}={shlex.quote(value)}")
    return GOOD


def _where(folder: RunFolder) -> str:
    record = folder.read()
    where = f"master {record.environment['MOONCAKE_MASTER']}, " if record else ""
    return f"{where}run folder {folder.path}"


def _text(record: Record) -> str:
    lines = [
        ("master", record.master, record.environment["MOONCAKE_MASTER"]),
        ("storage", record.storage, human_bytes(record.segment_bytes)),
    ]
    text = "".join(
        f"{name:<9} pid {process.pid}{'' if process.alive else ' (DEAD)'}, {what}\n"
        for name, process, what in lines
    )
    server = record.environment["MOONCAKE_TE_META_DATA_SERVER"]
    return f"{text}{'metadata':<9} {server}\n{'admin':<9} {record.admin_url}\n"


def _get(record: Record, path: str) -> str | None:
    # No proxy: the address is this machine's.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(record.admin_url + path, timeout=5) as reply:
            return str(reply.read().decode(errors="replace"))
    except (urllib.error.URLError, OSError):
        return None
